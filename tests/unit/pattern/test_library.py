"""The library finds its groups in what both of PyTorch's exporters write, and in quantised models."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from collage.pattern import library

from .graphs import graph

pytest.importorskip("torch")
from .exported import EXPORTERS, export, quantise

WHOLE = [  # the branch, and the pattern that takes it whole
    *((f"conv{tail}", "conv_bias_activation") for tail in ("", "_relu", "_bn_relu6", "_depthwise_hardswish", "_silu")),
    *((f"conv{tail}", "conv_bias_activation") for tail in ("_gelu", "_mish", "_prelu", "_softplus")),
    ("convtranspose_leaky", "conv_bias_activation"),
    ("residual_conv", "residual_add"),
    ("residual_linear", "residual_add"),
    *((name, "gemm_activation") for name in ("linear", "linear_relu", "gemm_tanh", "linear_gelu", "gemm_gelu")),
    *((name, "linear_gelu") for name in ("linear_gelu", "linear_nobias_gelu", "linear_gelutanh", "gemm_gelu")),
    ("gelu_written_out", "gelu"),
    ("layernorm", "layer_norm"),
    ("layernorm_written_out", "layer_norm"),
    ("rmsnorm_written_out", "rms_norm"),
    ("groupnorm_silu", "group_norm_silu"),
    *((f"attention{tail}", "attention") for tail in ("", "_mask", "_causal", "_scale", "_written_out")),
]

BEFORE = {"Transpose", "Reshape", "Shape", "Slice", "Cast", "Sqrt", "Div", "Tanh", "Constant", "Trilu", "Where"}
"""What makes the inputs of a group (transposed keys, masks, the skip of a residual), and is no part of it."""


def leads_to(model: ir.Model, output: str) -> set[ir.Node]:
    """All nodes that an output needs."""
    (value,) = (v for v in model.graph.outputs if v.name == output)
    pending, found = [value.producer()], set()
    while pending:
        node = pending.pop()
        if node is not None and node not in found:
            found.add(node)
            pending.extend(node.predecessors())
    return found


def check_whole(model: ir.Model, branch: str, name: str) -> None:
    matches = library.patterns()[name].find_all(model, "maximal")
    (match,) = (m for m in matches if m.root.name == branch and m.root.is_graph_output())
    assert {n.op_type for n in leads_to(model, branch) - set(match.nodes)} <= (
        BEFORE | {"Expand", "ConstantOfShape", "Concat", "Equal"}
    )
    captured = match.captures.get("x")
    assert captured is None or captured.producer() not in match.nodes


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(("branch", "name"), WHOLE)
def test_each_group_is_found_whole(exporter: str, branch: str, name: str) -> None:
    check_whole(export(exporter), branch, name)


HALF = ("conv_silu", "linear_gelu", "linear_gelutanh", "layernorm", "groupnorm_silu", "attention_mask")


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_groups_in_half_precision(exporter: str) -> None:
    model = export(exporter, half=True, only=HALF)
    for branch, name in WHOLE:
        if branch in HALF:
            check_whole(model, branch, name)


def test_groups_in_an_old_opset() -> None:
    """Opset 13 has neither LayerNormalization nor HardSwish nor Gelu."""
    only = ("conv_depthwise_hardswish", "conv_mish", "layernorm", "groupnorm_silu", "linear_gelutanh")
    model = export("torchscript", opset=13, only=only)
    for branch, name in WHOLE:
        if branch in only and branch != "conv_depthwise_hardswish":
            check_whole(model, branch, name)


def test_groups_that_newer_opsets_have_as_one_operator() -> None:
    only = ("attention_mask", "groupnorm_silu")
    model = export("dynamo", opset=23, only=only)
    assert {"Attention", "GroupNormalization"} <= {node.op_type for node in model.graph}
    check_whole(model, "attention_mask", "attention")
    check_whole(model, "groupnorm_silu", "group_norm_silu")


# ---------------------------------------------------------------------- quantised

QUANTISED = ("conv", "conv_relu", "linear", "gemm_tanh", "residual_conv")


def kinds(model: ir.Model, name: str) -> list[list[str]]:
    found = library.patterns()[name].find_all(model, "maximal")
    return sorted(sorted({node.op_type for node in match.nodes}) for match in found)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("style", ["QDQ", "QOperator", "dynamic"])
def test_quantised_groups(exporter: str, style: str, tmp_path) -> None:
    model = quantise(export(exporter, only=QUANTISED), style, tmp_path)
    conv, matmul, add = (kinds(model, name) for name in ("quantized_conv", "quantized_matmul", "quantized_add"))
    assert len(conv) == 3 and len(matmul) == 2
    if style == "QDQ":
        assert conv == [["Conv", "DequantizeLinear", "QuantizeLinear"]] * 3
        assert matmul[0] == ["Add", "DequantizeLinear", "MatMul", "QuantizeLinear"]
        assert matmul[1] == ["DequantizeLinear", "Gemm", "QuantizeLinear"]
        assert ["Add", "DequantizeLinear", "QuantizeLinear"] in add
    elif style == "QOperator":
        assert conv == [["QLinearConv"]] * 3 and matmul == [["QGemm"], ["QLinearMatMul"]] and ["QLinearAdd"] in add
    else:
        assert all({"ConvInteger", "Cast", "Mul", "Add"} <= set(found) for found in conv)
        assert matmul == [["Add", "Cast", "MatMulInteger", "Mul"]] * 2


def test_a_dequantised_input_may_feed_several_convolutions() -> None:
    text = (
        "a = DequantizeLinear(x, s, z)\nb = DequantizeLinear(w, s, z)\nc = Conv(a, b)\nr = Relu(c)\n"
        "y = QuantizeLinear(r, s, z)\nd = DequantizeLinear(w, s, z)\ne = Conv(a, d)\nf = QuantizeLinear(e, s, z)"
    )
    found = kinds(graph(text, outputs="y f", initializers="w s z"), "quantized_conv")
    assert found == [
        ["Conv", "DequantizeLinear", "QuantizeLinear"],
        ["Conv", "DequantizeLinear", "QuantizeLinear", "Relu"],
    ]


# ---------------------------------------------------------------------- fusion needs inner results for itself


def test_layer_norm_written_out() -> None:
    text = (
        "m = ReduceMean(x)\nd = Sub(x, m)\nq = Pow(d, two)\nv = ReduceMean(q)\ne = Add(v, w)\nr = Sqrt(e)\n"
        "n = Div(d, r)\ns = Mul(n, w)\ny = Add(s, w)"
    )
    g = graph(text, initializers="w two")
    g.initializers["two"].const_value = ir.tensor([2.0], name="two")
    (match,) = library.layer_norm().find_all(g, "maximal")
    assert len(match.nodes) == 9 and match["x"].name == "x"
    tapped = graph(text, outputs="y v", initializers="w two")
    assert not library.layer_norm().find_all(tapped, "maximal")


def test_patterns_are_fresh_each_time() -> None:
    first, second = library.patterns(), library.patterns()
    assert list(first) == list(second)
    assert all(first[name] is not second[name] for name in first)


def test_every_pattern_is_public() -> None:
    assert {*library.patterns(), "ACTIVATIONS", "patterns"} == set(library.__all__)
