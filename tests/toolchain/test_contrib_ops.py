"""Models that ONNX Runtime has optimised, on toolchains that do not know its operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from collage._errors import Unsupported
from collage.target import Target
from collage.testing import executable_of
from collage.toolchains import (
    LoadOptions,
    Support,
    ToolchainBase,
    compile_for,
    kernel_for,
    load_for,
    registry,
    support_for,
)
from collage.transform import InferType

ENCODER = parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[2,5,8] x) => (float[2,5,8] y)
    <float[8,24] w, float[24] b, float[8] s, float[8,8] v, float[8] t>
    {
        a = com.microsoft.Attention <num_heads = 2> (x, w, b)
        n = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (a, x, s, t)
        h = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (n, v)
        y = com.microsoft.BiasGelu (h, t)
    }
""")
NORMALISED = parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 14, "com.microsoft" : 1]>
    g (float[2,5,8] x) => (float[2,5,8] y)
    <float[8] s, float[8] t, float[8,8] w>
    {
        a = SimplifiedLayerNormalization <axis = -1, epsilon = 0.000001> (x, s)
        b = MatMul (a, w)
        c = Add (b, x)
        y = LayerNormalization <axis = -1> (c, s, t)
    }
""")
SATURATED = parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (uint8[3] x) => (uint8[3] y)
    <float s = {0.5}, uint8 z = {100}>
    { y = com.microsoft.QLinearAdd (x, s, z, x, s, z, s, z) }
""")
UNKNOWN = "g (float[2,8] x) => (float[2,8] y) { y = com.microsoft.CropAndResize (x) }"


def with_weights(bare: onnx.ModelProto) -> onnx.ModelProto:
    """With values for what the model calls by name only."""
    model = onnx.ModelProto()
    model.CopyFrom(bare)
    rng = np.random.default_rng(0)
    for weight in model.graph.value_info:
        array = rng.standard_normal([dim.dim_value for dim in weight.type.tensor_type.shape.dim]).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, weight.name))
    del model.graph.value_info[:]
    return model


class Picky(ToolchainBase):
    """Compiles nothing, and takes some operators of ONNX's."""

    name = "picky"
    targets = ("llvm -compiler=picky",)

    def __init__(self, *taken: str, reads: bool = False) -> None:
        self.taken, self.reads_contributed = taken, reads
        self.given: list[list[str]] = []

    def supports(self, node: ir.Node, target: Target) -> Support:
        ok = node.domain == "" and node.op_type in self.taken
        return Support(ok, None if ok else f"no {node.op_type}")

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Any:
        self.given.append([node.op_type for node in kernel.graph])
        raise Unsupported("nothing is taken")


@pytest.mark.parametrize("target", ["llvm", "openvino", "onnxruntime"])
def test_sums_of_bytes_saturate(target: str, tmp_path: Path) -> None:
    toolchains = registry()
    parsed = toolchains.parse_target(target)
    toolchain = toolchains.for_target(parsed)
    if not toolchain.availability().available:
        pytest.skip(f"{toolchain.name} is not installed")
    kernel = InferType()(ir.from_proto(SATURATED))
    compiled = compile_for(toolchain, kernel, parsed, tmp_path)
    (y,) = load_for(toolchain, compiled, parsed, tmp_path, LoadOptions())([np.array([0, 99, 255], np.uint8)])
    np.testing.assert_array_equal(y, [0, 98, 255])


@pytest.mark.parametrize("target", ["llvm", "openvino", "onnxruntime"])
@pytest.mark.parametrize("model", [ENCODER, NORMALISED], ids=["encoder", "normalised"])
def test_toolchains_compute_what_onnx_runtime_does(model: onnx.ModelProto, target: str) -> None:
    found = registry().for_target(registry().parse_target(target)).availability()
    if not found.available:
        pytest.skip(str(found.reason))
    x = np.random.default_rng(1).standard_normal((2, 5, 8)).astype(np.float32)
    (got,), (wanted,) = (executable_of(with_weights(model), t).run({"x": x}).values() for t in (target, "onnxruntime"))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["llvm", "openvino", "onnxruntime"])
def test_toolchains_take_them_operator_by_operator(target: str) -> None:
    """The constants of what an operator is written out as are none of the toolchain's business."""
    parsed = registry().parse_target(target)
    toolchain = registry().for_target(parsed)
    if not toolchain.availability().available:
        pytest.skip(str(toolchain.availability().reason))
    for model in (ENCODER, NORMALISED):
        for node in InferType()(ir.from_proto(with_weights(model))).graph:
            assert support_for(toolchain, node, parsed).ok, node.op_type


def test_who_reads_them_is_given_them_first_and_others_never(tmp_path: Path) -> None:
    target = Target.parse("llvm -compiler=picky")
    for reads, wanted in ((True, ["Attention", "MatMul"]), (False, ["MatMul"])):
        toolchain = Picky(reads=reads)
        with pytest.raises(Unsupported):
            compile_for(toolchain, ir.from_proto(with_weights(ENCODER)), target, tmp_path)
        assert [operators[0] for operators in toolchain.given] == wanted
    plain = ir.from_proto(
        parser.parse_model('<ir_version: 9, opset_import: ["" : 17]> g (float[2] x) => (y) {y = Exp(x)}')
    )
    assert kernel_for(Picky(), plain, target) is plain


def test_an_operator_is_taken_where_all_that_it_is_written_out_as_are() -> None:
    model = ir.from_proto(with_weights(ENCODER))
    target = Target.parse("llvm -compiler=picky")
    gelu = InferType()(model).graph[-1]
    assert support_for(Picky("Add", "Mul", "Erf"), gelu, target).ok
    missing = support_for(Picky("Add", "Mul"), gelu, target)
    assert not missing.ok and missing.reason == "no Erf"
    layer_norm = ir.from_proto(with_weights(NORMALISED)).graph[-1]
    assert support_for(Picky("LayerNormalization"), layer_norm, target).ok
    plain = support_for(Picky("Add"), ir.from_proto(with_weights(NORMALISED)).graph[1], target)
    assert not plain.ok and plain.reason == "no MatMul"
    unknown = ir.from_proto(
        parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>\n{UNKNOWN}')
    )
    assert support_for(Picky("Add"), unknown.graph[0], target).reason == "no CropAndResize"
