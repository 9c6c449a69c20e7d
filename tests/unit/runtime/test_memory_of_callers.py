"""What callers lend stays as it was, and what they get is theirs: to keep, and to write to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import parser
from tests.unit.runtime.test_executable import FakeRegistry, unary

import collage
from collage._errors import ToolchainError
from collage.testing import FakeToolchain, executable_of

TARGETS = ["host", "onnxruntime", "openvino"]


def model(body: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\ng {body}')


def of_any_length(fixed: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a symbol for the first length of each input and output."""
    copy = onnx.ModelProto()
    copy.CopyFrom(fixed)
    for value in (*copy.graph.input, *copy.graph.output):
        length = value.type.tensor_type.shape.dim[0]
        length.dim_param = f"n{length.dim_value}"
    return copy


MODELS = {
    "an input": model("(float[4,16] x) => (float[4,16] p, float[4,16] y) { p = Identity(x) y = Exp(x) }"),
    "a view of an input": model(
        "(float[4,16] x) => (float[64] p, float[4,16] y) <int64[1] s = {-1}> { p = Reshape(x, s) y = Exp(x) }"
    ),
    "a constant": model(
        "(float[4,16] x) => (float[4] k, float[4,16] y) <float[4] w = {1, 2, 3, 4}> { k = Identity(w) y = Exp(x) }"
    ),
    "one value twice": model("(float[4,16] x) => (float[4,16] y, float[4,16] z) { y = Exp(x) z = Identity(y) }"),
    "two equal values": model("(float[4,16] x) => (float[4,16] y, float[4,16] z) { y = Exp(x) z = Exp(x) }"),
    "a value and a view of it": model(
        "(float[4,16] x) => (float[4,16] y, float[64] z) <int64[1] s = {-1}> { y = Exp(x) z = Reshape(y, s) }"
    ),
    "a value and a part of it": model(
        "(float[4,16] x) => (float[4,16] y, float[2,16] z) <int64[1] s = {1}, int64[1] t = {3}>"
        "{ y = Exp(x) z = Slice(y, s, t) }"
    ),
    "two parts of a value": model(
        "(float[4,16] x) => (float[2,16] a, float[2,16] b) { y = Exp(x) a, b = Split<axis = 0>(y) }"
    ),
    "a sorted input": model(
        "(float[4,16] x) => (float[4,16] v, int64[4,16] i) <int64[1] k = {16}> { v, i = TopK(x, k) }"
    ),
}


def placed(x: np.ndarray[Any, Any], offset_bytes: int) -> np.ndarray[Any, Any]:
    """A copy that begins so many bytes after a line of the cache."""
    memory = np.empty(x.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset_bytes
    copy = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def outputs_of(reference: Any, x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    return [np.array(y) for y in reference.run({"x": x.copy()}).values()]


@pytest.mark.parametrize("change", [lambda fixed: fixed, of_any_length], ids=["fixed", "any length"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_whoever_writes_to_an_output_spoils_nothing(name: str, target: str, change: Any) -> None:
    exe, reference = executable_of(change(MODELS[name]), target), executable_of(MODELS[name], "host")
    kept: list[tuple[list[Any], list[Any]]] = []
    for seed, offset_bytes in enumerate([0, 4, 0, 32, 0]):
        original = np.random.default_rng(seed).standard_normal((4, 16)).astype(np.float32)
        x = placed(original, offset_bytes)
        wanted, got = outputs_of(reference, original), list(exe.run({"x": x}).values())
        kept.append((wanted, got))
        np.testing.assert_array_equal(x, original)
        for expected, actual in [pair for values in kept for pair in zip(*values, strict=True)]:
            np.testing.assert_allclose(actual, expected, rtol=1e-5)
        for i, output in enumerate(got):
            assert not np.shares_memory(output, x)
            assert not any(np.shares_memory(output, other) for other in got[i + 1 :])
        if seed % 2:
            for _, outputs in kept:
                for output in outputs:
                    output[...] = 77
            kept.clear()


@pytest.mark.parametrize("target", TARGETS)
def test_an_input_may_be_read_only_and_of_any_layout(target: str) -> None:
    exe = executable_of(MODELS["one value twice"], target)
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    closed = x.copy()
    closed.flags.writeable = False
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32)
    layouts = [closed, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], unaligned.reshape(x.shape)]
    for given in layouts:
        np.testing.assert_allclose(exe.run({"x": given})["z"], np.exp(x), rtol=1e-5)


@pytest.mark.parametrize("given", [torch.ones(2, 4, dtype=torch.uint64), torch.ones(2, 4, dtype=torch.int64)])
@pytest.mark.parametrize("target", ["host", "onnxruntime"])
def test_both_of_c_s_integers_of_eight_bytes_become_pytorch_s(given: torch.Tensor, target: str) -> None:
    kind = {torch.uint64: onnx.TensorProto.UINT64, torch.int64: onnx.TensorProto.INT64}[given.dtype]
    output = executable_of(unary("Identity", kind, (2, 4)), target).run({"x": given})["y"]
    assert output.dtype == given.dtype and torch.equal(output, given)


def test_a_negation_that_pytorch_put_off_is_done() -> None:
    exe = executable_of(unary("Identity", shape=(2, 4)), "host")
    assert torch.equal(exe.run({"x": torch._neg_view(torch.ones(2, 4))})["y"], -torch.ones(2, 4))


class Wrapped(FakeToolchain):
    """Has what its kernels return changed."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self._change = change

    def load(self, *arguments: Any) -> Any:
        kernel, change = super().load(*arguments), self._change

        class Kernel:
            reuses_outputs = False

            def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
                return change(inputs, kernel(inputs))

        return Kernel()


def read_only(inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
    views = [output.view() for output in outputs]
    for view in views:
        view.flags.writeable = False
    return views


def test_outputs_that_a_runtime_closes_are_opened() -> None:
    exe = executable_of(unary("Relu"), "fake", toolchains=FakeRegistry(Wrapped(read_only)))
    exe.run([np.ones(4, np.float32)])["y"][...] = 2


class Remembering:
    """Returns the same memory each time, as for a constant."""

    def __init__(self) -> None:
        self._memory = np.zeros(4, np.float32)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        self._memory[...] = outputs[0]
        return [self._memory]


class Aligned:
    """Computes in its input, where that lies as it likes."""

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        if inputs[0].ctypes.data % 64 == 0:
            inputs[0][...] = outputs[0]
        return outputs


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda inputs, outputs: [inputs[0].view()], "'y' in the memory of one of its inputs"),
        (Remembering(), "'y' in the memory of what it returned before"),
        (Aligned(), "changed its input 'x'"),
    ],
)
def test_debug_mode_finds_kernels_that_share_memory(change: Any, said: str, tmp_path: Path) -> None:
    toolchains = FakeRegistry(Wrapped(change))
    exe = executable_of(unary("Relu"), [([0], "fake")], toolchains=toolchains)
    debugged = collage.load(exe.save(tmp_path / "m.collage"), toolchains=toolchains, debug=True)
    x = placed(np.float32([-1, 1, -2, 2]), 4)
    with pytest.raises(ToolchainError, match=said):
        for _ in range(2):
            debugged.run([x])
