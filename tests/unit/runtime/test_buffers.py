"""Memory of runs: nothing overlaps while it is needed, and what a run returned is the caller's."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from collage.runtime import Executor, Step
from collage.runtime._buffers import Lifetime, OutputBuffer, pack
from collage.testing import executable_of
from collage.toolchains import InPlaceKernel, Layout, aligned_bytes

LENGTH = 5
LAYOUT = Layout("float32", (LENGTH,))


@st.composite
def lifetimes(draw: st.DrawFn) -> Lifetime:
    first = draw(st.integers(0, 20))
    return Lifetime(draw(st.integers(1, 5000)), first, first + draw(st.integers(0, 20)))


@given(st.lists(lifetimes(), max_size=30))
def test_packed_buffers_overlap_only_where_their_lifetimes_do_not(needed: list[Lifetime]) -> None:
    offsets, total = pack(needed)
    for i, (offset, mine) in enumerate(zip(offsets, needed, strict=True)):
        assert offset % 64 == 0 and offset + mine.size_bytes <= total
        for start, other in zip(offsets[:i], needed[:i], strict=True):
            apart = offset + mine.size_bytes <= start or start + other.size_bytes <= offset
            assert apart or mine.last < other.first or other.last < mine.first


def test_a_chain_needs_two_buffers() -> None:
    assert pack([Lifetime(64, i, i + 1) for i in range(50)])[1] == 128


@given(st.integers(1, 300), st.integers(0, 100))
def test_new_memory_begins_so_many_bytes_after_a_line_of_the_cache(size: int, offset: int) -> None:
    block = aligned_bytes(size, offset)
    assert block.nbytes == size and (block.ctypes.data - offset) % 64 == 0
    owner = block.base
    assert owner.base is None
    assert owner.ctypes.data <= block.ctypes.data and block.ctypes.data + size <= owner.ctypes.data + owner.nbytes


def test_an_output_s_memory_is_used_again_when_nobody_refers_to_it() -> None:
    buffer = OutputBuffer(LAYOUT)
    result = buffer.take().view()
    address = result.ctypes.data
    part: Any = memoryview(result[1:3])
    del result
    other = buffer.take().view()
    assert other.ctypes.data != address
    part.release()
    del part
    assert buffer.take().ctypes.data == address


@pytest.mark.parametrize("hold", [lambda y: y[2:], lambda y: memoryview(y), lambda y: np.from_dlpack(y), lambda y: y.T])
def test_whoever_holds_part_of_an_output_holds_its_memory(hold: Any) -> None:
    buffer = OutputBuffer(LAYOUT)
    held = hold(buffer.take().view())
    for _ in range(5):
        assert not np.shares_memory(np.asarray(held), buffer.take())


class Writes:
    """A kernel that writes in place what ``mixed`` says, and notices inputs that change while it does."""

    reuses_outputs = True

    def __init__(self, count: int) -> None:
        self.layouts = (LAYOUT,) * count

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        raise AssertionError("it writes in place")

    def run_into(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        before = [x.copy() for x in inputs]
        for y in outputs:
            y[:] = np.nan
        for x, old in zip(inputs, before, strict=True):
            np.testing.assert_array_equal(x, old)
        for place, y in enumerate(outputs):
            y[:] = mixed(inputs, place)


class Makes:
    """A kernel that makes new arrays, or returns its own memory, or views of its first input."""

    def __init__(self, count: int, kind: str) -> None:
        self.kind, self.count = kind, count
        self.reuses_outputs = kind != "new"
        self.own = [np.zeros(LENGTH, np.float32) for _ in range(count)]

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        if self.kind == "view":
            return [inputs[0][:] for _ in range(self.count)]
        if self.kind == "new":
            return [mixed(inputs, place) for place in range(self.count)]
        for place, y in enumerate(self.own):
            y[:] = mixed(inputs, place)
        return list(self.own)


def mixed(inputs: Sequence[Any], place: int) -> Any:
    total = sum((np.float32(i + 1) * x for i, x in enumerate(inputs)), np.zeros(LENGTH, np.float32))
    return np.tanh(total + np.float32(place)).astype(np.float32)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[tuple[str, list[str], list[str]]], list[str], list[str]]:
    inputs = [f"x{i}" for i in range(draw(st.integers(1, 3)))]
    values, wires = list(inputs), []
    for i in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(["in place", "in place", "new", "own", "view"]))
        read = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        made = [f"v{i}_{j}" for j in range(draw(st.integers(1, 2)))]
        wires.append((kind, read, made))
        values += made
    return wires, inputs, draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))


@given(programs(), st.booleans())
def test_results_are_right_and_alias_nothing(
    program: tuple[list[tuple[str, list[str], list[str]]], list[str], list[str]], in_order: bool
) -> None:
    """Against a dictionary; over several runs all of whose results are kept, and some are fed to the next."""
    wires, inputs, outputs = program
    steps = [
        Step(
            f"k{i}",
            Writes(len(made)) if kind == "in place" else Makes(len(made), kind),
            tuple(read),
            tuple(made),
        )
        for i, (kind, read, made) in enumerate(wires)
    ]
    executor = Executor(steps, inputs, outputs, in_order=in_order)
    held: list[tuple[Any, Any]] = []
    random = np.random.default_rng(0)
    for run in range(4):
        feeds = [random.standard_normal(LENGTH).astype(np.float32) for _ in inputs]
        if run == 2:
            feeds = [held[i % len(held)][0] for i in range(len(inputs))]
        values = dict(zip(inputs, feeds, strict=True))
        for kind, read, made in wires:
            given_to = [values[name] for name in read]
            for place, name in enumerate(made):
                values[name] = given_to[0] if kind == "view" else mixed(given_to, place)
        found = executor.run(feeds) if run % 2 else executor.trace(feeds)[0]
        for i, (y, name) in enumerate(zip(found, outputs, strict=True)):
            np.testing.assert_array_equal(y, values[name])
            others = [*feeds, *(other for other, _ in held), *found[:i], *found[i + 1 :]]
            assert not any(np.shares_memory(y, other) for other in others)
            held.append((y, y.copy()))
    for y, kept in held:
        np.testing.assert_array_equal(y, kept)


def branches() -> Any:
    """y and z, each 64 KiB, from two kernels that share what a third made."""
    weight = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Relu", ["m"], ["r"], name="relu"),
        helper.make_node("Neg", ["r"], ["y"], name="neg"),
        helper.make_node("Abs", ["m"], ["z"], name="abs"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [128, 128]) for name in "xyz"]
    graph = helper.make_graph(nodes, "branches", ports[:1], ports[1:], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def feed(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((128, 128)).astype(np.float32)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_runtimes_write_into_memory_that_is_handed_out(target: str) -> None:
    exe = executable_of(branches(), target)
    record = exe.recipe.kernels[0]
    kernel = exe._contexts.hold()._steps[0][0]
    assert isinstance(kernel, InPlaceKernel) and len(kernel.layouts) == len(record.outputs)
    written = [np.full(layout.shape, np.nan, layout.dtype) for layout in kernel.layouts]
    kernel.run_into([feed(0)], written)
    assert not any(np.isnan(y).any() for y in written)


@pytest.mark.parametrize("targets", [["onnxruntime"], ["openvino"], ["onnxruntime", "openvino", "llvm"]])
def test_results_of_threads_are_their_own(targets: list[str]) -> None:
    """Eight threads keep all that they got: nothing is overwritten, nothing is shared, and it is what one thread gets."""
    exe = executable_of(branches(), [([i], targets[i % len(targets)]) for i in range(4)], contexts=3)
    inputs = [feed(seed) for seed in range(8)]
    expected = [{name: y.copy() for name, y in exe.run([x]).items()} for x in inputs]
    held: list[list[dict[str, Any]]] = [[] for _ in inputs]

    def work(number: int) -> None:
        held[number] = [exe.run([inputs[number]]) for _ in range(12)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arrays = [y for results in held for outputs in results for y in outputs.values()]
    spans = sorted((y.ctypes.data, y.ctypes.data + y.nbytes) for y in [*arrays, *inputs])
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    for number, results in enumerate(held):
        assert len(results) == 12
        for outputs in results:
            for name, y in outputs.items():
                np.testing.assert_allclose(y, expected[number][name], rtol=1e-4, atol=1e-4)
