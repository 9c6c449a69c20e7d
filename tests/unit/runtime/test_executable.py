"""One executable from several threads and tasks, with tensors of others, profiled, checked, and rescued."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from tests.unit.runtime.conftest import Build, assert_right, expected

import collage
from collage._errors import InputError, ToolchainError, UsageError
from collage.runtime import Executable, Profile
from collage.testing import FakeToolchain, executable_of
from collage.toolchains import Registry


def unary(op: str, kind: int = TensorProto.FLOAT, shape: Sequence[Any] = (4,), **attributes: Any) -> onnx.ModelProto:
    nodes = [helper.make_node(op, ["x"], ["y"], name="node", **attributes)]
    ports = [helper.make_tensor_value_info(name, kind, list(shape)) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


class FakeRegistry(Registry):
    """The installed toolchains and a fake one."""

    def __init__(self, fake: Any) -> None:
        super().__init__()
        self._loaded["fake"] = fake


@pytest.mark.parametrize("contexts", [1, 2])
def test_threads_get_their_own_answers(build: Build, contexts: int) -> None:
    exe = build(contexts=contexts)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(40):
                assert_right(exe, seed=seed * 1000 + i, rows=1 + (seed + i) % 5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


class Meeting(FakeToolchain):
    """Its kernels wait until so many of them run at once, and say how many ever did."""

    def __init__(self, size: int) -> None:
        super().__init__(seconds=0.02)
        self.most = self.running = 0
        self.all_here, self._counting = threading.Barrier(size, timeout=60), threading.Lock()

    def load(self, *arguments: Any) -> Any:
        kernel = super().load(*arguments)

        def meet(inputs: Sequence[Any]) -> Sequence[Any]:
            with self._counting:
                self.running += 1
                self.most = max(self.most, self.running)
            self.all_here.wait()
            outputs = kernel(inputs)
            with self._counting:
                self.running -= 1
            return outputs

        meet.reuses_outputs = False  # type: ignore[attr-defined]
        return meet


@pytest.mark.parametrize("contexts", [1, 2])
def test_runs_go_on_at_once_up_to_the_number_of_contexts(contexts: int) -> None:
    meeting = Meeting(contexts)
    exe = executable_of(unary("Relu"), "fake", toolchains=FakeRegistry(meeting), contexts=contexts)
    x = np.ones(4, np.float32)
    with ThreadPoolExecutor(6) as threads:
        for found in [threads.submit(exe.run, [x]) for _ in range(6)]:
            np.testing.assert_array_equal(found.result()["y"], x)
    assert meeting.most == contexts


def test_an_event_loop_goes_on_meanwhile() -> None:
    """The kernel waits for the loop: if the loop waited for the kernel, neither would ever go on."""
    meeting = Meeting(2)
    exe = executable_of(unary("Relu"), "fake", toolchains=FakeRegistry(meeting))

    async def main() -> None:
        run = asyncio.create_task(exe.arun([np.float32([-1, 0, 1, 2])]))
        while not meeting.running:
            assert not run.done()
            await asyncio.sleep(0.005)
        meeting.all_here.wait()
        np.testing.assert_array_equal((await run)["y"], [0, 0, 1, 2])

    asyncio.run(main())


def test_contexts_are_at_least_one(artefact: Path) -> None:
    with pytest.raises(UsageError, match="at least one context"):
        collage.load(artefact, contexts=0)


def test_affinity_is_left_as_found(small: Executable) -> None:
    before = os.sched_getaffinity(0)
    for targets in (["onnxruntime"], ["openvino"], ["llvm"]):
        assert_right(small)
        executable_of(unary("Relu"), targets[0]).run([np.ones(4, np.float32)])
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("rows", [1, 7, 0])
def test_right_at_other_lengths(small: Executable, rows: int) -> None:
    assert_right(small, rows=rows)


def test_outputs_are_the_caller_s_own(small: Executable) -> None:
    first, second = (np.full((1, 6), value, np.float32) for value in (1, 2))
    kept = small.run([first])
    copies = {name: value.copy() for name, value in kept.items()}
    small.run([second])
    for name, value in kept.items():
        np.testing.assert_array_equal(value, copies[name])
        value += 1  # And writing to them changes nothing.
    np.testing.assert_array_equal(small.run([first])["y"], copies["y"])
    np.testing.assert_array_equal(first, np.ones((1, 6)))


# Tensors of others


def test_torch_in_torch_out(small: Executable) -> None:
    x = torch.randn(2, 6, requires_grad=True)
    outputs = small.run({"x": x})
    for name, wanted in expected(x.detach().numpy()).items():
        assert isinstance(outputs[name], torch.Tensor)
        torch.testing.assert_close(outputs[name], torch.from_numpy(wanted), rtol=1e-4, atol=1e-6)
    strided = torch.randn(6, 2).T
    np.testing.assert_allclose(small(strided)[1], np.maximum(strided.numpy(), 0))


def test_torch_s_narrow_types_come_and_go_without_loss() -> None:
    exe = executable_of(unary("Identity", TensorProto.BFLOAT16), "host")
    x = torch.tensor([1.5, -2.25, 3e38, float("inf")], dtype=torch.bfloat16)
    assert torch.equal(exe(x), x)
    assert exe.run([np.ones(4, ml_dtypes.bfloat16)])["y"].dtype == ml_dtypes.bfloat16
    with pytest.raises(ValueError, match="'x' is float32"):
        exe.run([x.float()])


def test_dlpack_in_and_out(small: Executable) -> None:
    class Foreign:
        """Speaks DLPack and nothing else."""

        def __init__(self, array: np.ndarray) -> None:
            self._array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self._array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self._array.__dlpack_device__()

    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    outputs = small.run([Foreign(x)])
    assert isinstance(outputs["y"], np.ndarray)
    np.testing.assert_allclose(torch.from_dlpack(outputs["y"]), expected(x)["y"], rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="looks at a device that must not be there")
def test_a_tensor_on_another_device_is_refused(small: Executable) -> None:
    with pytest.raises(InputError, match="'x' is not a usable tensor: it is on meta"):
        small.run([torch.empty(2, 6, device="meta")])


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16", "INT4", "UINT4", "INT8", "FLOAT8E4M3FN", "BOOL", "DOUBLE"])
def test_element_types(kind: str) -> None:
    number = TensorProto.DataType.Value(kind)
    model = unary("Identity", number)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 21))
    exe = executable_of(model, "host")
    dtype = np.dtype(exe.inputs[0].dtype)
    x = np.array([0, 1, 1, 0]).astype(dtype)
    y = exe.run([x])["y"]
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype(np.float32), x.astype(np.float32))


def test_strings() -> None:
    exe = executable_of(unary("Identity", TensorProto.STRING, [2]), "onnxruntime")
    assert exe.run([["ab", "\u00e4\u4e2d"]])["y"].tolist() == ["ab", "\u00e4\u4e2d"]


def test_scalars_and_nothing() -> None:
    assert executable_of(unary("Neg", shape=()), "onnxruntime").run([3.0])["y"] == -3
    assert executable_of(unary("Neg", shape=(0, 3)), "openvino").run([np.zeros((0, 3), "f")])["y"].shape == (0, 3)


# Profiles


def test_kernels_that_run_at_once_leave_no_negative_overhead(small: Executable) -> None:
    records = small.recipe.kernels
    assert len(records) == 3
    at_once = [(0, 50_000), (10_000, 90_000), (20_000, 60_000)]
    assert Profile.of(records, [at_once], [100_000]).overhead_us == pytest.approx(10)
    with_a_gap = [(0, 50_000), (70_000, 90_000), (70_000, 80_000)]
    assert Profile.of(records, [with_a_gap], [100_000]).overhead_us == pytest.approx(30)


def test_a_profile_accounts_for_the_whole(small: Executable, tmp_path: Path) -> None:
    x = np.ones((3, 6), np.float32)
    profile = small.profile([x], runs=5)
    assert [kernel.name for kernel in profile.kernels] == [kernel.name for kernel in small.recipe.kernels]
    assert all(0 < kernel.p10_us <= kernel.median_us <= kernel.p90_us for kernel in profile.kernels)
    assert len(profile.runs) == 5
    assert 0 < profile.overhead_us < profile.total_us
    assert json.loads(json.dumps(profile.as_json()))["runs"] == 5
    assert str(profile).count("\n") == 3
    events = json.loads(profile.to_chrome_trace(tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == 15
    assert all(event["ts"] >= 0 and event["dur"] > 0 for event in spans)
    assert len({event["tid"] for event in spans}) == 3
    with pytest.raises(UsageError, match="at least one run"):
        small.profile([x], runs=0)


def test_a_profile_sees_which_kernel_is_slow() -> None:
    model = unary("Relu")
    model.graph.node.append(helper.make_node("Neg", ["y"], ["z"], name="slow"))
    model.graph.output[0].name = "z"
    parts = [([0], "onnxruntime"), ([1], "fake")]
    exe = executable_of(model, parts, toolchains=FakeRegistry(FakeToolchain(seconds=0.05)))
    fast, slow = exe.profile([np.ones(4, np.float32)], runs=3).kernels
    assert slow.median_us >= 50_000 > fast.median_us
    assert slow.share > 0.5 > fast.share


# Rescue


class Picky(FakeToolchain):
    """Computes rightly, but only at the length that it was first given."""

    def load(self, *arguments: Any) -> Any:
        kernel = super().load(*arguments)
        served: list[Any] = []

        class Kernel:
            reuses_outputs = False

            def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
                served.append(inputs[0].shape)
                if inputs[0].shape != served[0]:
                    raise RuntimeError(f"cannot do\n{inputs[0].shape}")
                return kernel(inputs)

        return Kernel()


def test_a_length_that_a_kernel_does_not_take_runs_on_the_host_and_is_said() -> None:
    exe = executable_of(unary("Relu", shape=("n",)), "fake", toolchains=FakeRegistry(Picky()))
    exe.run([np.ones(4, np.float32)])
    assert exe.notes == []
    with pytest.warns(RuntimeWarning, match=r"failed on x\[2\]: cannot do \(2,\); the host ran it instead"):
        np.testing.assert_array_equal(exe.run([np.float32([-1, 1])])["y"], [0, 1])
    assert len(exe.notes) == 1
    np.testing.assert_array_equal(exe.run([np.float32([-1, 1, 2])])["y"], [0, 1, 2])  # Said once.
    assert len(exe.notes) == 1


def test_what_the_host_cannot_do_either_is_the_caller_s_error() -> None:
    nodes = [helper.make_node("Gather", ["t", "x"], ["y"])]
    table = helper.make_tensor("t", TensorProto.FLOAT, [2], [1.0, 2.0])
    inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, [1])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    exe = executable_of(model, "onnxruntime", contexts=1)
    for _ in range(2):  # A run that fails gives its context back.
        with pytest.raises(ToolchainError, match="and the host cannot"):
            exe.run([np.array([5])])
    assert exe.run([np.array([1])])["y"] == 2


# Debug mode


def test_debug_mode_lets_right_kernels_be(artefact: Path) -> None:
    assert_right(collage.load(artefact, debug=True))


class Meddling(FakeToolchain):
    """Computes rightly, in its input."""

    def load(self, *arguments: Any) -> Any:
        class Kernel:
            reuses_outputs = False

            def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
                np.maximum(inputs[0], 0, out=inputs[0])
                return [inputs[0].copy()]

        return Kernel()


@pytest.mark.parametrize(
    ("toolchain", "said"),
    [
        (FakeToolchain("run:shape"), r"returned float32\[1, 4\] for y: float32\[4\]"),
        (Meddling(), "changed its input 'x'"),
    ],
)
def test_debug_mode_finds_the_kernel_that_is_wrong(toolchain: Any, said: str, tmp_path: Path) -> None:
    toolchains = FakeRegistry(toolchain)
    path = executable_of(unary("Relu"), "fake", toolchains=toolchains).save(tmp_path / "m.collage")
    collage.load(path, toolchains=toolchains).run([np.float32([-1, 0, 1, 2])])  # Nobody looks.
    with pytest.raises(ToolchainError, match=said):
        collage.load(path, toolchains=toolchains, debug=True).run([np.float32([-1, 0, 1, 2])])
