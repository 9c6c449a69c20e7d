"""Gathers and scatters in TVM's loops, against ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from collage._errors import InputError
from collage.frontend import read_model
from collage.target import Target
from collage.toolchains import LoadOptions, compile_for, load_for
from collage.toolchains.tvm.toolchain import TvmToolchain
from collage.transform import prepare

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")


class Case(NamedTuple):
    """One operator: its inputs by name, and how it is written."""

    op: str
    feeds: Mapping[str, np.ndarray]
    attributes: Mapping[str, Any]
    repeats: tuple[int, ...] | None = None

    def nodes(self) -> list[onnx.NodeProto]:
        """Return the operator, with an Expand before it that repeats its indices."""
        inputs = list(self.feeds)
        if self.repeats is None:
            return [helper.make_node(self.op, inputs, ["y"], **self.attributes)]
        inputs[1] = "e"
        return [
            helper.make_node("Expand", ["i", "s"], ["e"]),
            helper.make_node(self.op, inputs, ["y"], **self.attributes),
        ]


def model_of(cases: list[Case]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return one model with all cases side by side, and its inputs."""
    nodes, inputs, outputs, weights, feeds = [], [], [], [], {}
    for n, case in enumerate(cases):
        for node in case.nodes():
            for names in (node.input, node.output):
                names[:] = [f"{name}{n}" for name in names]
            nodes.append(node)
        for name, array in case.feeds.items():
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(f"{name}{n}", dtype, array.shape))
            feeds[f"{name}{n}"] = array
        if case.repeats is not None:
            weights.append(numpy_helper.from_array(np.array(case.repeats, np.int64), f"s{n}"))
        dtype = helper.np_dtype_to_tensor_dtype(case.feeds["x"].dtype)
        outputs.append(helper.make_tensor_value_info(f"y{n}", dtype, None))
    graph = helper.make_graph(nodes, "cases", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), feeds


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], folder: Path, threads: int = 2) -> list[np.ndarray]:
    kernel = prepare(read_model(model))
    kernel.graph.name = "kernel"
    compiled = compile_for(TvmToolchain(), kernel, TARGET, folder)
    loaded = load_for(TvmToolchain(), compiled, TARGET, folder, LoadOptions(threads=threads))
    return [np.array(y) for y in loaded([feeds[name] for name in compiled.inputs])]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype.startswith("int"):
        return rng.integers(-9, 9, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def scattered_elements(rng: np.random.Generator, reduction: str, dtype: str, ranks: list[int]) -> Iterator[Case]:
    """Random scatters along any axis, with indices that are repeated along other axes or not."""
    for rank in ranks:
        shape = [int(n) for n in rng.integers(1, 7, rank)]
        if rank == 2:
            shape[1] = int(rng.choice([1, 16, 40, 64, 96, 100]))
        axis = int(rng.integers(0, rank))
        count = int(rng.choice([0, 1, 5, 11]))
        whole = [*shape[:axis], count, *shape[axis + 1 :]]
        kept = [n if not count or rng.random() < (0.8 if i == axis else 0.4) else 1 for i, n in enumerate(whole)]
        indices = rng.integers(-shape[axis], shape[axis], kept).astype(rng.choice(["int32", "int64"]))
        feeds = {"x": numbers(rng, (*shape,), dtype), "i": indices, "u": numbers(rng, (*whole,), dtype)}
        attributes = {"axis": axis - rank * int(rng.integers(0, 2)), "reduction": reduction}
        yield Case("ScatterElements", feeds, attributes, None if kept == whole or 0 in whole else tuple(whole))


def scattered_points(rng: np.random.Generator, reduction: str, dtype: str, ranks: list[int]) -> Iterator[Case]:
    for rank in ranks:
        shape = [int(n) for n in rng.integers(1, 7, rank)]
        count = int(rng.integers(1, rank + 1))
        points = [int(n) for n in rng.integers(0, 5, int(rng.integers(1, 3)))]
        indices = np.stack([rng.integers(-n, n, points) for n in shape[:count]], -1)
        feeds = {"x": numbers(rng, (*shape,), dtype), "i": indices}
        yield Case("ScatterND", feeds | {"u": numbers(rng, (*points, *shape[count:]), dtype)}, {"reduction": reduction})


def gathers(rng: np.random.Generator, dtype: str) -> Iterator[Case]:
    for rank in (1, 2, 3, 4):
        shape = [int(n) for n in rng.integers(1, 7, rank)]
        axis, count = int(rng.integers(0, rank)), int(rng.choice([0, 1, 5]))
        x = numbers(rng, (*shape,), dtype)
        some = [int(n) for n in rng.integers(0, 4, int(rng.integers(0, 3)))]
        i = rng.integers(-shape[axis], shape[axis], some).astype(rng.choice(["int32", "int64"]))
        yield Case("Gather", {"x": x, "i": i}, {"axis": axis - rank * int(rng.integers(0, 2))})
        whole = [*shape[:axis], count, *shape[axis + 1 :]]
        kept = [n if not count or rng.random() < (0.8 if at == axis else 0.4) else 1 for at, n in enumerate(whole)]
        i = rng.integers(-shape[axis], shape[axis], kept)
        yield Case(
            "GatherElements", {"x": x, "i": i}, {"axis": axis}, None if kept == whole or 0 in whole else tuple(whole)
        )
        batches = int(rng.integers(0, rank))
        entries = shape[batches : batches + int(rng.integers(1, rank - batches + 1))]
        lead = [*shape[:batches], *(int(n) for n in rng.integers(0, 4, int(rng.integers(0, 2))))]
        points = np.stack([rng.integers(-n, n, lead) for n in entries], -1)
        yield Case("GatherND", {"x": x, "i": points}, {"batch_dims": batches})


def expected(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return ReferenceEvaluator(model).run(None, dict(feeds))


def assert_equal(cases: list[Case], folder: Path) -> None:
    model, feeds = model_of(cases)
    for case, made, right in zip(cases, run(model, feeds, folder), expected(model, feeds), strict=True):
        what = (case.op, {k: (v.shape, v.dtype) for k, v in case.feeds.items()}, case.attributes, case.repeats)
        np.testing.assert_array_equal(made, right, err_msg=str(what))


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_scatters_are_those_of_the_reference_to_the_last_bit(dtype: str, tmp_path: Path) -> None:
    rng, cases = np.random.default_rng(int(dtype[-2:]) + len(dtype)), list[Case]()
    for reduction in ("none", "add", "mul", "max", "min"):
        first, second, third, _ = rng.permutation([1, 2, 3, 4]).tolist()
        cases += scattered_elements(rng, reduction, dtype, [first, second])
        cases += scattered_points(rng, reduction, dtype, [third])
    assert_equal(cases, tmp_path)


def test_gathers_are_those_of_the_reference(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    assert_equal([case for dtype in ("float32", "int64", "float32") for case in gathers(rng, dtype)], tmp_path)


@pytest.mark.parametrize("columns", [1, 33, 40, 64, 100])
def test_threads_share_columns_and_keep_the_order_of_additions(columns: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(columns)
    feeds = {"x": numbers(rng, (50, columns), "float32"), "i": rng.integers(-50, 50, (900, 1))}
    feeds["u"] = numbers(rng, (900, columns), "float32")
    model, given = model_of([Case("ScatterElements", feeds, {"axis": 0, "reduction": "add"}, (900, columns))])
    right = feeds["x"].copy()
    np.add.at(right, feeds["i"][:, 0], feeds["u"])
    for threads in (1, 2):
        np.testing.assert_array_equal(run(model, given, tmp_path, threads)[0], right)


def test_nan_is_kept_and_zeros_have_their_sign(tmp_path: Path) -> None:
    nan = float("nan")
    x, u = np.float32([nan, 1, nan, 0, np.inf]), np.float32([1, nan, nan, -0.0, 2])
    cases = [
        Case("ScatterND", {"x": x, "i": np.arange(5).reshape(5, 1), "u": u}, {"reduction": reduction})
        for reduction in ("max", "min", "add", "mul")
    ]
    assert_equal(cases, tmp_path)


@pytest.mark.parametrize("filling", [-0.0, float("nan"), 2.5])
def test_what_is_scattered_into_one_constant_number(filling: float, tmp_path: Path) -> None:
    feeds = {"x": np.full((7, 3), filling, np.float32), "i": np.array([[1], [5], [1]]), "u": np.zeros((3, 3), "f")}
    model, given = model_of([Case("ScatterElements", feeds, {"axis": 0, "reduction": "add"}, (3, 3))])
    right = expected(model, given)
    model.graph.initializer.append(numpy_helper.from_array(given.pop("x0"), "x0"))
    del model.graph.input[0]
    (made,) = run(model, given, tmp_path)
    np.testing.assert_array_equal(made, right[0])
    assert np.array_equal(np.signbit(made), np.signbit(right[0]))


@pytest.mark.parametrize("repeated", [0, 1, (0, 1), None])
@pytest.mark.parametrize("axis", [0, 1])
def test_constant_indices_that_are_alike(axis: int, repeated: int | tuple[int, ...] | None, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    i = (
        rng.integers(-4, 4, (4, 4))
        if repeated is None
        else np.zeros((4, 4), np.int64) + rng.integers(-4, 4, (4, 4)).min(repeated, keepdims=True)
    )
    x, u = numbers(rng, (4, 4), "float32"), numbers(rng, (4, 4), "float32")
    model, given = model_of(
        [
            Case("ScatterElements", {"x": x, "i": i, "u": u}, {"axis": axis, "reduction": "add"}),
            Case("GatherElements", {"x": x, "i": i}, {"axis": axis}),
        ]
    )
    right = expected(model, given)
    for name in ("i0", "i1"):
        model.graph.initializer.append(numpy_helper.from_array(given.pop(name), name))
        model.graph.input.remove(next(each for each in model.graph.input if each.name == name))
    for made, wanted in zip(run(model, given, tmp_path), right, strict=True):
        np.testing.assert_array_equal(made, wanted)


MESSAGES = """
<ir_version: 9, opset_import: ["" : 18]>
messages (float[N,64] x, int64[2,E] edges) => (float[N,64] y)
<int64 receiver = {1}, int64 sender = {0}, int64[1] last = {-1}, int64[1] width = {64}, int64[1] none = {0}> {
  s = Gather <axis = 0> (edges, sender)
  r = Gather <axis = 0> (edges, receiver)
  m = Gather <axis = 0> (x, s)
  c = Unsqueeze (r, last)
  n = Shape (r)
  shape = Concat <axis = 0> (n, width)
  i = Expand (c, shape)
  zeros = Sub (x, x)
  y = ScatterElements <axis = 0, reduction = "add"> (zeros, i, m)
}"""


def test_messages_of_a_graph_of_any_size(tmp_path: Path) -> None:
    model, rng = onnx.parser.parse_model(MESSAGES), np.random.default_rng(0)
    kernel = prepare(read_model(model))
    kernel.graph.name = "messages"
    compiled = compile_for(TvmToolchain(), kernel, TARGET, tmp_path)
    loaded = load_for(TvmToolchain(), compiled, TARGET, tmp_path, LoadOptions(threads=2))
    for nodes, edges in ((3, 5), (200, 1000), (1, 1)):
        x, ends = numbers(rng, (nodes, 64), "float32"), rng.integers(-nodes, nodes, (2, edges))
        right = np.zeros_like(x)
        np.add.at(right, ends[1], x[ends[0]])
        feeds = {"x": x, "edges": ends}
        (made,) = loaded([feeds[name] for name in compiled.inputs])
        np.testing.assert_array_equal(made, right)
        for end, beyond in ((0, nodes), (1, nodes), (1, -nodes - 1), (1, 2**40)):
            wrong = ends.copy()
            wrong[end, -1] = beyond
            feeds = {"x": x, "edges": wrong}
            with pytest.raises(InputError, match="beyond"):
                loaded([feeds[name] for name in compiled.inputs])
