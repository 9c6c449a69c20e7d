"""Kernels in coarser types: right within what the types allow, and computed in them rather than around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.calibrated import calibrated
from tests.unit.toolchains.test_int8_model import CNN, CNN_WEIGHTS, PERCEPTRON, PERCEPTRON_WEIGHTS, numbers

from collage._errors import TargetError, Unsupported
from collage.frontend import place_weights, read_model
from collage.graph import NODE_PRECISION
from collage.system.machine import this_machine
from collage.target import Target
from collage.testing._toolchain_case import with_weights_in_file
from collage.testing._toolchain_kernels import KernelCase, kernel
from collage.toolchains import IN_FLOATS, Compiled, LoadOptions, Toolchain
from collage.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
from collage.toolchains.openvino.toolchain import OpenVinoToolchain
from collage.transform import prepare

ZOO = Path(__file__).parents[2] / ".cache" / "zoo"
ZOO_MODELS = sorted(path.parent.name for path in ZOO.glob("*/model.onnx"))
REFUSED = {"llama_f16": "profits", "quantised": "already"}
"""Models of the zoo that int8 leaves alone, and a word of the reason."""
ORT, OPENVINO = OnnxRuntimeToolchain(), OpenVinoToolchain()
BOTH = pytest.mark.parametrize("toolchain", [ORT, OPENVINO], ids=["onnxruntime", "openvino"])


@pytest.fixture(autouse=True)
def only_where_available(request: pytest.FixtureRequest) -> None:
    toolchain = request.node.callspec.params.get("toolchain") if hasattr(request.node, "callspec") else None
    if toolchain is OPENVINO and not OPENVINO.availability().available:
        pytest.skip("openvino is not installed")


def at(toolchain: Toolchain, precision: str) -> Target:
    return Target.parse(toolchain.targets[0]).with_options(precision=precision)


def run(toolchain: Toolchain, model: ir.Model, precision: str, folder: Path, feeds: Mapping[str, Any]) -> Any:
    target = at(toolchain, precision)
    compiled = toolchain.compile(model, target, folder)
    loaded = toolchain.load(compiled, target, folder, LoadOptions(1))
    return loaded([feeds[name] for name in compiled.inputs])


def error(found: Any, exact: Any) -> float:
    return float(np.abs(found - exact).max() / np.abs(exact).max())


MODELS = {
    "perceptron": (PERCEPTRON, PERCEPTRON_WEIGHTS, {"x": numbers(5, 16)}),
    "cnn": (CNN, CNN_WEIGHTS, {"x": numbers(1, 3, 12, 12)}),
    "conv1d": (
        "(float[1,4,50] x) => (float[1,6,23] y) {a = Conv (x, w, b) r = Relu (a) y = Conv <strides = [2]> (r, v)}",
        {"w": numbers(8, 4, 3), "b": numbers(8, seed=1), "v": numbers(6, 8, 3, seed=2)},
        {"x": numbers(1, 4, 50)},
    ),
    "transposed": (
        """(float[1,4,5,5] x) => (float[1,3,11,11] y) {
            a = ConvTranspose <strides = [2,2]> (x, w, b) r = Relu (a) y = Conv <pads = [1,1,1,1]> (r, v)}""",
        {"w": numbers(4, 8, 3, 3), "b": numbers(8, seed=1), "v": numbers(3, 8, 3, 3, seed=2)},
        {"x": numbers(1, 4, 5, 5)},
    ),
    "grouped": (
        """(float[2,8,9,9] x) => (float[2,8,9,9] y) {
            a = Conv <pads = [1,1,1,1], group = 8> (x, w, b) r = Clip (a, zero, six)
            y = Conv <pads = [1,1,1,1], group = 2> (r, v)}""",
        {
            "w": numbers(8, 1, 3, 3),
            "b": numbers(8, seed=1),
            "v": numbers(8, 4, 3, 3, seed=2),
            "zero": np.array(0, np.float32),
            "six": np.array(6, np.float32),
        },
        {"x": numbers(2, 8, 9, 9)},
    ),
}


@BOTH
@pytest.mark.parametrize("name", MODELS)
def test_int8_is_right_within_its_steps(name: str, toolchain: Toolchain, tmp_path: Path) -> None:
    text, weights, feeds = MODELS[name]
    model = calibrated(kernel("k", text, weights), [feeds], tmp_path)
    exact = run(toolchain, model, "f32", tmp_path, feeds)
    found = run(toolchain, model, "int8", tmp_path, feeds)
    for y, wanted in zip(found, exact, strict=True):
        assert y.dtype == wanted.dtype and y.shape == wanted.shape
        assert 0 < error(y, wanted) < 6e-2


def operators_that_ran(compiled: Compiled, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What ONNX Runtime makes of a kernel when the toolchain loads it."""
    import onnxruntime as ort

    made = type(ort.SessionOptions())
    kept = folder / "optimised.onnx"

    def options() -> Any:
        result = made()
        result.optimized_model_filepath = str(kept)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(ort, "SessionOptions", options)
        ORT.load(compiled, at(ORT, "int8"), folder, LoadOptions(1))
    return Counter(node.op_type for node in onnx.load(kept).graph.node)


def test_onnxruntime_computes_a_network_in_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, weights, feeds = MODELS["cnn"]
    model = calibrated(kernel("k", text, weights), [feeds], tmp_path)
    compiled = ORT.compile(model, at(ORT, "int8"), tmp_path)
    ran = operators_that_ran(compiled, tmp_path, monkeypatch)
    assert ran["QLinearConv"] == 5 and ran["Conv"] == 0
    assert ran["QLinearAdd"] == ran["QLinearMul"] == ran["QLinearSigmoid"] == ran["QLinearGlobalAveragePool"] == 1
    assert ran["QGemm"] == 1
    assert ran["QuantizeLinear"] == 1 and ran["DequantizeLinear"] == 0


def test_onnxruntime_computes_products_with_a_bias_beside_them_in_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """(float[1,8,64] x) => (float[1,8,64] y) {
        n = LayerNormalization (x, b) m = MatMul (n, w) a = Add (m, b) y = Add (a, n)
    }"""
    feeds = {"x": numbers(1, 8, 64)}
    weights = {"w": numbers(64, 64, seed=1), "b": numbers(64, seed=2)}
    model = calibrated(kernel("k", text, weights), [feeds], tmp_path)
    ran = operators_that_ran(ORT.compile(model, at(ORT, "int8"), tmp_path), tmp_path, monkeypatch)
    assert ran["MatMulIntegerToFloat"] == ran["QuantizeLinear"] == 1
    assert ran["DequantizeLinear"] == ran["Gemm"] == ran["MatMul"] == 0


def test_openvino_computes_a_network_in_integers(tmp_path: Path) -> None:
    import openvino as ov

    if not OPENVINO.availability().available:
        pytest.skip("openvino is not installed")
    text, weights, feeds = MODELS["cnn"]
    model = calibrated(kernel("k", text, weights), [feeds], tmp_path)
    compiled = OPENVINO.compile(model, at(OPENVINO, "int8"), tmp_path)
    made = ov.Core().compile_model(tmp_path / compiled.files[0], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    types = [
        op.get_rt_info()["runtimePrecision"].astype(str)
        for op in made.get_runtime_model().get_ops()
        if op.get_rt_info()["layerType"].astype(str) in ("Convolution", "FullyConnected")
    ]
    assert len(types) == 6 and set(types) <= {"i8", "u8"}


@pytest.mark.skipif("bf16" not in OPENVINO.availability().precisions, reason="no products of bfloat16")
def test_openvino_computes_in_bf16_what_is_left_in_floats(tmp_path: Path) -> None:
    text, weights, feeds = MODELS["cnn"]
    model = calibrated(kernel("k", text, weights), [feeds], tmp_path)
    exact = run(OPENVINO, model, "f32", tmp_path, feeds)[0]
    whole = error(run(OPENVINO, model, "int8", tmp_path, feeds)[0], exact)
    for node in model.graph:
        if node.op_type != "Gemm":
            node.metadata_props[NODE_PRECISION] = "float32"
    target = at(OPENVINO, "int8").with_options(floats="bf16")
    found = {}
    for each in (at(OPENVINO, "int8"), target):
        loaded = OPENVINO.load(OPENVINO.compile(model, each, tmp_path), each, tmp_path, LoadOptions(1))
        found[each] = loaded(list(feeds.values()))[0]
    assert found[target].dtype == np.float32
    assert not np.array_equal(found[target], found[at(OPENVINO, "int8")])
    assert error(found[target], exact) < 2 * whole + 2e-2


@pytest.mark.parametrize("options", [{"precision": "bf16"}, {"precision": "f32"}, {}])
def test_the_type_of_floats_belongs_to_int8(options: dict[str, str], tmp_path: Path) -> None:
    target = Target.parse(OPENVINO.targets[0]).with_options(floats="bf16", **options)
    with pytest.raises(TargetError, match="name both"):
        OPENVINO.compile(kernel("k", "(float[2] x) => (float[2] y) {y = Exp (x)}"), target, tmp_path)


@BOTH
def test_nodes_that_are_to_stay_in_float_do(toolchain: Toolchain, tmp_path: Path) -> None:
    text, weights, feeds = MODELS["perceptron"]
    model = calibrated(kernel("k", text, weights), [feeds], tmp_path)
    exact = run(toolchain, model, "f32", tmp_path, feeds)[0]
    whole = error(run(toolchain, model, "int8", tmp_path, feeds)[0], exact)
    for node in list(model.graph)[:1]:
        node.metadata_props[NODE_PRECISION] = "float32"
    saved = ir.load(tmp_path / toolchain.compile(model, at(toolchain, "int8"), tmp_path).files[0])
    assert next(node.inputs[1].name for node in saved.graph if node.op_type == "Gemm") == "w"
    assert 0 < error(run(toolchain, model, "int8", tmp_path, feeds)[0], exact) < whole


@pytest.mark.parametrize(
    ("toolchain", "name", "left"),
    [(ORT, "transposed", ["ConvTranspose"]), (OPENVINO, "transposed", []), (ORT, "cnn", [])],
    ids=["onnxruntime-transposed", "openvino-transposed", "onnxruntime-cnn"],
)
def test_products_that_compute_in_floats_all_the_same_are_told_of(
    toolchain: Toolchain, name: str, left: list[str], tmp_path: Path
) -> None:
    text, weights, feeds = MODELS[name]
    model = calibrated(kernel("k", text, weights), [feeds], tmp_path)
    compiled = toolchain.compile(model, at(toolchain, "int8"), tmp_path)
    assert [model.graph.node(i).op_type for i in compiled.metadata.get(IN_FLOATS, [])] == left
    assert IN_FLOATS not in toolchain.compile(model, at(toolchain, "f32"), tmp_path).metadata


@BOTH
def test_without_ranges_int8_is_refused(toolchain: Toolchain, tmp_path: Path) -> None:
    model = kernel("k", PERCEPTRON, PERCEPTRON_WEIGHTS)
    for value in (*model.graph.inputs, *model.graph.outputs, *(v for node in model.graph for v in node.outputs)):
        value.type = ir.TensorType(ir.DataType.FLOAT)
    with pytest.raises(Unsupported, match="range"):
        toolchain.compile(model, at(toolchain, "int8"), tmp_path)


@BOTH
@pytest.mark.parametrize("precision", ["int4", "INT8", "w2", "float16"])
def test_precisions_that_do_not_exist_are_refused(precision: str, toolchain: Toolchain, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="-precision takes f32"):
        toolchain.compile(kernel("k", PERCEPTRON, PERCEPTRON_WEIGHTS), at(toolchain, precision), tmp_path)


ROWS = """(float[B,256] x) => (float[B,300] y) {a = MatMul (x, w) r = Relu (a) y = Gemm <transB = 1> (r, v, c)}"""
ROWS_WEIGHTS = {"w": numbers(256, 288) / 16, "v": numbers(300, 288, seed=1) / 17, "c": numbers(300, seed=2)}


@BOTH
@pytest.mark.parametrize(("precision", "allowed"), [("w8", 2e-2), ("w4", 2e-1)])
@pytest.mark.parametrize("rows", [1, 3])
def test_narrow_weights(precision: str, allowed: float, rows: int, toolchain: Toolchain, tmp_path: Path) -> None:
    feeds = {"x": numbers(rows, 256, seed=3)}
    model = kernel("k", ROWS, ROWS_WEIGHTS)
    for node in model.graph:
        for value in node.outputs:
            value.type = ir.TensorType(ir.DataType.FLOAT)
    product, activation, _ = model.graph
    product.outputs[0].shape = activation.outputs[0].shape = ir.Shape(["B", 288])
    exact = run(toolchain, model, "f32", tmp_path, feeds)[0]
    assert 0 < error(run(toolchain, model, precision, tmp_path, feeds)[0], exact) < allowed


@BOTH
@pytest.mark.parametrize("precision", ["w8", "w4"])
def test_products_of_many_rows_keep_their_weights(precision: str, toolchain: Toolchain, tmp_path: Path) -> None:
    text = "(float[512,256] x) => (float[512,288] y) {y = MatMul (x, w)}"
    with pytest.raises(Unsupported, match="at most"):
        toolchain.compile(kernel("k", text, {"w": ROWS_WEIGHTS["w"]}), at(toolchain, precision), tmp_path)


@BOTH
@pytest.mark.parametrize("precision", ["int8", "w8"])
def test_weights_outside_stay_there_or_are_rounded(precision: str, toolchain: Toolchain, tmp_path: Path) -> None:
    table = numbers(40, 256, seed=4)
    text = "(float[2,256] x, int64[2] i) => (float[2,288] y) {e = Gather (t, i) s = Add (x, e) y = MatMul (s, w)}"
    feeds = {"x": numbers(2, 256, seed=3), "i": np.array([3, 17])}
    case = KernelCase("k", text, list(feeds.values()), {"w": ROWS_WEIGHTS["w"], "t": table})
    model = calibrated(with_weights_in_file(case, tmp_path), [feeds], tmp_path)
    compiled = toolchain.compile(model, at(toolchain, precision), tmp_path)
    assert set(compiled.files) == {f"k.{precision}.onnx", "weights"}
    saved = ir.load(tmp_path / compiled.files[0]).graph.initializers
    assert [name for name, v in saved.items() if isinstance(v.const_value, ir.ExternalTensor)] == ["t"]
    loaded = toolchain.load(compiled, at(toolchain, precision), tmp_path, LoadOptions(1))
    (y,) = loaded([feeds[name] for name in compiled.inputs])
    assert error(y, (feeds["x"] + table[feeds["i"]]) @ ROWS_WEIGHTS["w"]) < 3e-2


def test_dynamic_int8_needs_no_ranges(tmp_path: Path) -> None:
    model = kernel("k", PERCEPTRON, PERCEPTRON_WEIGHTS)
    feeds = {"x": numbers(5, 16)}
    exact = run(ORT, model, "f32", tmp_path, feeds)[0]
    # Without VNNI, sums of products of bytes saturate in 16 bits.
    limit = 5e-1 if this_machine().saturates_products_of_bytes else 6e-2
    assert 0 < error(run(ORT, model, "int8-dynamic", tmp_path, feeds)[0], exact) < limit
    compiled = ORT.compile(model, at(ORT, "int8-dynamic"), tmp_path)
    assert compiled.files == ("k.int8-dynamic.onnx",)
    with pytest.raises(Unsupported, match="none"):
        ORT.compile(kernel("k", "(float[2] x) => (float[2] y) {y = Exp (x)}"), at(ORT, "int8-dynamic"), tmp_path)


def test_artefacts_of_the_dynamic_int8_that_was_called_int8_still_load(tmp_path: Path) -> None:
    """Their kernels are files, with everything inside."""
    model = kernel("k", PERCEPTRON, PERCEPTRON_WEIGHTS)
    compiled = ORT.compile(model, at(ORT, "int8-dynamic"), tmp_path)
    x = numbers(5, 16)
    (new,) = ORT.load(compiled, at(ORT, "int8-dynamic"), tmp_path, LoadOptions(1))([x])
    (old,) = ORT.load(compiled, at(ORT, "int8"), tmp_path, LoadOptions(1))([x])
    np.testing.assert_array_equal(old, new)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("name", ZOO_MODELS)
def test_models_of_the_zoo_are_recognisable_in_int8(name: str, toolchain: Toolchain, tmp_path: Path) -> None:
    with np.load(ZOO / name / "inputs.npz") as arrays:
        feeds = dict(arrays)
    model = calibrated(place_weights(prepare(read_model(ZOO / name / "model.onnx")), tmp_path), [feeds], tmp_path)
    model.graph.name = "k"
    if name in REFUSED:
        with pytest.raises(Unsupported, match=REFUSED[name]):
            toolchain.compile(model, at(toolchain, "int8"), tmp_path)
        return
    try:
        exact = run(toolchain, model, "f32", tmp_path, feeds)
    except Unsupported as refusal:
        pytest.skip(str(refusal))
    for y, wanted in zip(run(toolchain, model, "int8", tmp_path, feeds), exact, strict=True):
        assert y.dtype == wanted.dtype
        if wanted.dtype.kind == "f" and y.shape == wanted.shape:
            distance = float(np.linalg.norm(y - wanted) / max(float(np.linalg.norm(wanted)), 1e-9))
            assert distance < 0.5
