"""ONNX Runtime keeps the contract, and takes the types that only it can take."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from collage import CollageError
from collage.target import Target
from collage.testing._toolchain_case import ToolchainTestCase, with_weights_in_file
from collage.testing._toolchain_kernels import COMMON, kernel
from collage.toolchains import LoadOptions, Toolchain
from collage.toolchains.host.toolchain import HostToolchain
from collage.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
from collage.toolchains.onnxruntime.unoptimised import UnoptimisedModel

TARGET = Target.parse("llvm -compiler=onnxruntime")


class TestOnnxRuntime(ToolchainTestCase):
    toolchain = OnnxRuntimeToolchain()


class TestOnnxRuntimeAsWritten(ToolchainTestCase):
    toolchain = OnnxRuntimeToolchain()
    target = "llvm -compiler=onnxruntime -opt-level=0 -threads=1"


def run(text: str, inputs: Sequence[Any], workspace: Path) -> Sequence[Any]:
    toolchain = OnnxRuntimeToolchain()
    compiled = toolchain.compile(kernel("k", text), TARGET, workspace)
    return toolchain.load(compiled, TARGET, workspace, LoadOptions())(inputs)


def test_strings(tmp_path: Path) -> None:
    x = np.array([["a", "b"], ["", "ü"]], object)
    (y,) = run("(string[2,2] x) => (string[2,2] y) {y = Identity (x)}", [x], tmp_path)
    assert y.tolist() == x.tolist()


def test_sequences_and_optionals(tmp_path: Path) -> None:
    parts = [np.ones(2, np.float32), np.zeros((1, 3), np.float32)]
    (y,) = run("(seq(float) s) => (seq(float) y) {y = Identity (s)}", [parts], tmp_path)
    assert [part.tolist() for part in y] == [part.tolist() for part in parts]
    (n,) = run("(seq(float) s) => (int64 n) {n = SequenceLength (s)}", [[]], tmp_path)
    assert n == 0
    for value, expected in ((parts[0], True), (None, False)):
        (y,) = run("(optional(float[2]) o) => (bool y) {y = OptionalHasElement (o)}", [value], tmp_path)
        assert bool(y) is expected


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_narrow_weights_leave_activations_alone(dtype: type[np.generic], tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(4, 64)).astype(np.float32), rng.integers(0, 100, (64, 32)).astype(dtype)
    scale = rng.uniform(0.1, 1, 32).astype(np.float32)
    text = "(float[4,64] x) => (float[4,32] y) {d = DequantizeLinear <axis=1> (w, scale) y = MatMul (x, d)}"
    toolchain = OnnxRuntimeToolchain()
    compiled = toolchain.compile(kernel("k", text, {"w": w, "scale": scale}), TARGET, tmp_path)
    (y,) = toolchain.load(compiled, TARGET, tmp_path, LoadOptions())([x])
    np.testing.assert_allclose(y, x @ (w * scale), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bfloat16", ml_dtypes.bfloat16),
        ("float8e4m3fn", ml_dtypes.float8_e4m3fn),
        ("float8e5m2", ml_dtypes.float8_e5m2),
    ],
)
@pytest.mark.parametrize("shape", [(5,), (), (0, 3)])
def test_narrow_floats_pass_both_ways(name: str, dtype: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    text = (
        f"({name}{list(shape) if shape else ''} x, float[1] f) => ({name}{list(shape) if shape else ''} y, float[1] g)"
    )
    y, g = run(f"{text} {{y = Identity (x) g = Neg (f)}}", [x, np.ones(1, np.float32)], tmp_path)
    assert y.dtype == dtype and y.shape == shape
    assert y.tobytes() == x.tobytes()
    assert g.tolist() == [-1]


@pytest.mark.parametrize("texts", [[["a", "é"], ["", "b c"]], [], "one"])
def test_texts_pass_beside_narrow_types(texts: Any, tmp_path: Path) -> None:
    words, x = np.array(texts, object), np.ones(3, ml_dtypes.bfloat16)
    shape = list(words.shape) if words.shape else ""
    text = f"(string{shape} s, bfloat16[3] x) => (string{shape} t, bfloat16[3] y) {{t = Identity (s) y = Identity (x)}}"
    found, y = run(text, [words, x], tmp_path)
    assert found.shape == words.shape and found.tolist() == words.tolist()
    assert y.dtype == x.dtype and y.tobytes() == x.tobytes()


def test_an_output_that_is_an_input_is_a_copy_beside_narrow_types(tmp_path: Path) -> None:
    x = np.ones(4, np.float32)
    _, same = run("(float[4] x) => (bfloat16[4] y, float[4] x) {y = Cast <to = 16> (x)}", [x], tmp_path)
    assert same.tolist() == x.tolist() and not np.shares_memory(same, x)


@pytest.mark.parametrize(("name", "dtype"), [("int4", ml_dtypes.int4), ("uint4", ml_dtypes.uint4)])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_four_bit_integers(name: str, dtype: Any, count: int, tmp_path: Path) -> None:
    values = np.arange(count).astype(np.float32)
    to = ir.DataType[name.upper()].value
    (narrow,) = run(f"(float[N] x) => ({name}[N] y) {{y = Cast <to = {to}> (x)}}", [values], tmp_path)
    assert narrow.dtype == dtype and narrow.astype(np.float32).tolist() == values.tolist()
    (wide,) = run(f"({name}[N] x) => (float[N] y) {{y = Cast <to = 1> (x)}}", [narrow], tmp_path)
    assert wide.tolist() == values.tolist()


def test_weights_stay_where_they_are(tmp_path: Path) -> None:
    model = with_weights_in_file(COMMON[1], tmp_path)
    compiled = OnnxRuntimeToolchain().compile(model, TARGET, tmp_path)
    assert compiled.files == ("matmul.onnx", "weights")
    saved = ir.load(tmp_path / "matmul.onnx")
    assert all(isinstance(v.const_value, ir.ExternalTensor) for v in saved.graph.initializers.values())


@pytest.mark.parametrize("base", ["", "elsewhere"])
def test_weights_outside_the_workspace_are_refused(base: str, tmp_path: Path) -> None:
    elsewhere, workspace = tmp_path / "elsewhere", tmp_path / "workspace"
    elsewhere.mkdir()
    workspace.mkdir()
    model = with_weights_in_file(COMMON[1], elsewhere)
    with pytest.raises(CollageError, match="outside the workspace"):
        OnnxRuntimeToolchain().compile(model, TARGET, workspace if base else tmp_path)


def test_large_embedded_weights_are_spilled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collage.toolchains.sdk.model_files.SPILL_BYTES", 1000)
    toolchain, case = OnnxRuntimeToolchain(), COMMON[1]
    model = case.model()
    compiled = toolchain.compile(model, TARGET, tmp_path)
    assert compiled.files == ("matmul.onnx", "matmul.data")
    (y,) = toolchain.load(compiled, TARGET, tmp_path, LoadOptions())(case.inputs)
    expected = case.inputs[0] @ case.weights["w"] + case.weights["b"]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    assert all(not isinstance(v.const_value, ir.ExternalTensor) for v in model.graph.initializers.values())


def test_an_output_of_unknown_rank_is_no_scalar(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> k (float[N,M] x) => (y) {y = Squeeze (x)}'
    model, toolchain = ir.from_proto(onnx.parser.parse_model(text)), OnnxRuntimeToolchain()
    model.graph.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    loaded = toolchain.load(toolchain.compile(model, TARGET, tmp_path), TARGET, tmp_path, LoadOptions())
    for shape in ((3, 1), (1, 1), (2, 3)):
        assert loaded([np.ones(shape, np.float32)])[0].shape == np.squeeze(np.ones(shape)).shape


def test_nothing_is_reported_to_anybody(tmp_path: Path) -> None:
    program = (
        "from collage.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain\n"
        "import onnx.parser, onnxruntime\n"
        "text = '<ir_version: 10, opset_import: [\"\" : 20]> agraph (float[2] x) => (float[2] y) {y = Abs (x)}'\n"
        "onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString())\n"
    )
    # What it has to report is identified by a file that it leaves among temporary ones.
    environment = {name: text for name, text in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, timeout=120, env={**environment, "TMPDIR": str(tmp_path)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("reduction", "add"), [("add", np.add), ("max", np.maximum)])
@pytest.mark.parametrize("toolchain", [OnnxRuntimeToolchain(), HostToolchain()], ids=["onnxruntime", "host"])
def test_sums_at_equal_points_lose_no_update(
    toolchain: Toolchain, reduction: str, add: np.ufunc, tmp_path: Path
) -> None:
    text = (
        "(float[40,64] x, int64[9000,1] i, float[9000,64] u) => (float[40,64] y)"
        f'{{y = ScatterND <reduction = "{reduction}"> (x, i, u)}}'
    )
    rng = np.random.default_rng(0)
    x, u = rng.standard_normal((40, 64)).astype("f"), rng.standard_normal((9000, 64)).astype("f")
    i, right = rng.integers(0, 40, (9000, 1)), x.copy()
    add.at(right, i[:, 0], u)
    target = Target("llvm", compiler=toolchain.name)
    compiled = toolchain.compile(kernel("k", text), target, tmp_path)
    loaded = toolchain.load(compiled, target, tmp_path, LoadOptions(threads=2))
    path = tmp_path / compiled.metadata["model"]
    for _ in range(5):
        np.testing.assert_array_equal(loaded([x, i, u])[0], right)
        np.testing.assert_array_equal(UnoptimisedModel(path).run({"x": x, "i": i, "u": u}, ["y"])["y"], right)
