"""Outputs that are written to memory of the caller's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.unit.runtime.conftest import assert_right, expected

from collage._errors import InputError
from collage.runtime import Executable, aligned_copy
from collage.testing import executable_of


def decoder(length: int | str) -> onnx.ModelProto:
    """One step of a cache: past [1, length, 4], x [1, 1, 4] -> present, which is past moved on by one, and its sum."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["all"], axis=1),
        helper.make_node("Slice", ["all", "one", "end", "axis"], ["present"]),
        helper.make_node("ReduceSum", ["present", "axis"], ["y"], keepdims=0),
    ]
    constants = [
        helper.make_tensor(name, TensorProto.INT64, [1], [value])
        for name, value in {"one": 1, "end": 2**31, "axis": 1}.items()
    ]
    ports = {"past": [1, length, 4], "x": [1, 1, 4], "present": [1, length, 4], "y": [1, 4]}
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ports.items()}
    graph = helper.make_graph(
        nodes, "step", [infos["past"], infos["x"]], [infos["present"], infos["y"]], initializer=constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def step(past: Any, x: Any) -> dict[str, Any]:
    present = np.concatenate([past, x], 1)[:, 1:]
    return {"present": present, "y": present.sum(1)}


def unaligned(shape: tuple[int, ...]) -> Any:
    size = int(np.prod(shape))
    block = np.zeros(size * 4 + 128, np.uint8)
    offset = (-block.ctypes.data % 64) + 4
    return block[offset : offset + size * 4].view(np.float32).reshape(shape)


@pytest.mark.parametrize("length", [6, "past_length"])
@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "llvm"])
def test_outputs_are_written_where_they_are_told(length: int | str, target: str) -> None:
    exe = executable_of(decoder(length), target)
    rng = np.random.default_rng(0)
    past, x = rng.standard_normal((1, 6, 4), np.float32), rng.standard_normal((1, 1, 4), np.float32)
    wanted = step(past, x)
    for present in (
        aligned_copy(np.zeros_like(past)),
        unaligned((1, 6, 4)),
        np.zeros((6, 1, 4), np.float32).swapaxes(0, 1),
    ):
        for _ in range(2):
            present[...] = 0
            outputs = exe.run({"past": past, "x": x}, out={"present": present})
            assert outputs["present"] is present
            np.testing.assert_array_equal(present, wanted["present"])
            np.testing.assert_allclose(outputs["y"], wanted["y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(exe.run([past, x])["present"], wanted["present"])


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_a_cache_is_updated_in_place(target: str) -> None:
    """The array of an input is that of an output."""
    exe = executable_of(decoder(6), target)
    rng = np.random.default_rng(1)
    cache, known = aligned_copy(np.zeros((1, 6, 4), np.float32)), np.zeros((1, 6, 4), np.float32)
    for _ in range(9):
        x = rng.standard_normal((1, 1, 4), np.float32)
        wanted = step(known, x)
        outputs = exe.run({"past": cache, "x": x}, out={"present": cache})
        known = wanted["present"]
        np.testing.assert_array_equal(cache, known)
        np.testing.assert_allclose(outputs["y"], wanted["y"], rtol=1e-5, atol=1e-6)


def test_an_input_that_another_library_hands_on_is_not_overwritten() -> None:
    """The input is a view that does not name the output's array as its base, and a later kernel reads it too."""
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Sub", ["x", "y"], ["z"])]
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 16]) for name in "xyz")
    graph = helper.make_graph(nodes, "split", [x], [y, z])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    exe = executable_of(model, [([0], "onnxruntime"), ([1], "openvino")])
    blocks = [np.zeros((4, 16), np.float32) for _ in range(64)]
    block = next(block for block in blocks if block.ctypes.data % 64 == 0)
    known = np.random.default_rng(2).standard_normal((4, 16), np.float32)
    for view in (np.asarray(memoryview(block)), np.from_dlpack(block)):
        block[...] = known
        outputs = exe.run({"x": view}, out={"y": block})
        np.testing.assert_array_equal(block, np.maximum(known, 0))
        np.testing.assert_array_equal(outputs["z"], np.minimum(known, 0))


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_a_kernel_that_can_writes_in_place(target: str) -> None:
    """Two buffers take turns, and nothing is copied between the steps of a decoder."""
    exe = executable_of(decoder(6), target)
    buffers = [aligned_copy(np.zeros((1, 6, 4), np.float32)) for _ in range(2)]
    context = exe._contexts.hold()
    try:
        made = context.run_to([buffers[0], np.ones((1, 1, 4), np.float32)], [buffers[1], None])
        slots = context._slots([buffers[0], np.ones((1, 1, 4), np.float32)])
        assert slots is not None and made[0] is buffers[1]
        assert set(context._written) == {0, 1}
    finally:
        exe._contexts.release(context)


def test_every_executor_takes_targets(small: Executable) -> None:
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    out = {"y": np.zeros((3, 200, 2), np.float32), "r": np.zeros((3, 6), np.float32)}
    outputs = small.run({"x": x}, out=out)
    for name, wanted in expected(x).items():
        assert outputs[name] is out[name]
        np.testing.assert_allclose(out[name], wanted, rtol=1e-4, atol=1e-6)
    assert_right(small)
    nothing = small.run({"x": x[:0]}, out={"r": np.zeros((0, 6), np.float32)})
    assert nothing["r"].shape == (0, 6)


def test_tensors_of_pytorch_are_written_to(small: Executable) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 6)
    r = torch.zeros(3, 6)
    outputs = small.run({"x": x}, out={"r": r})
    assert outputs["r"] is r and isinstance(outputs["y"], torch.Tensor)
    torch.testing.assert_close(r, x.relu())
    with pytest.raises(InputError, match="contiguous"):
        small.run({"x": x}, out={"r": torch.zeros(6, 3).T})


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ({"z": np.zeros((3, 6), np.float32)}, "no output 'z'"),
        ({"r": [0.0]}, "arrays of NumPy"),
        ([np.zeros((3, 6), np.float32)], "by name"),
        ({"r": np.zeros((3, 6))}, "float64"),
        ({"r": np.zeros((3, 5), np.float32)}, "does not fit"),
        ({"r": np.zeros((3, 6, 1), np.float32)}, "does not fit"),
        ({"r": np.zeros((4, 6), np.float32)}, "is to be written to"),
        ({"r": np.broadcast_to(np.float32(0), (3, 6))}, "read-only"),
    ],
)
def test_what_cannot_be_written_to_is_refused(small: Executable, out: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        small.run({"x": np.zeros((3, 6), np.float32)}, out=out)
    assert_right(small)


def test_two_outputs_cannot_share_memory(small: Executable) -> None:
    block = np.zeros(1200, np.float32)
    with pytest.raises(InputError, match="same memory"):
        small.run(
            {"x": np.zeros((3, 6), np.float32)}, out={"y": block.reshape(3, 200, 2), "r": block[:18].reshape(3, 6)}
        )


def test_a_trace_writes_there_too(small: Executable) -> None:
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    r = np.zeros((3, 6), np.float32)
    outputs, spans = small.trace({"x": x}, out={"r": r})
    np.testing.assert_array_equal(r, np.maximum(x, 0))
    assert outputs["r"] is r and len(spans) == len(small.recipe.kernels)
    assert all(began <= ended for began, ended in spans)
