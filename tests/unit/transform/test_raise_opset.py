"""A newer operator set by pass: whole operators are then recognised in what exporters of older sets write."""

from __future__ import annotations

import io
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from tests.unit.transform.graphs import assert_same, run

from collage._errors import ConfigError
from collage.frontend import read_model
from collage.transform import PassContext, RaiseOpset, parse_pipeline

PIECES = """<ir_version: 8, opset_import: ["" : 14]> g (float[4, 3] x) => (float[4, 3] y)
    <float two = {2}, float e = {1e-5}, float[3] s = {1, 2, 3}, float[3] b = {3, 2, 1}> {
    m = ReduceMean <axes = [-1]> (x)   c = Sub (x, m)   q = Pow (c, two)   v = ReduceMean <axes = [-1]> (q)
    w = Add (v, e)   r = Sqrt (w)   n = Div (c, r)   t = Mul (n, s)   y = Add (t, b)
}"""


def read(text: str):
    return read_model(parser.parse_model(text))


def raised(model, *, to: int = 23):
    with PassContext(opt_level=3):
        return RaiseOpset(to).run(model)


def test_pieces_of_an_older_set_become_one_operator():
    model = read(PIECES)
    assert model.opset_imports[""] == 14
    with PassContext(opt_level=2):  # What a pipeline names runs whatever its level.
        found = parse_pipeline("RaiseOpset{to=17},RecogniseOperators")(model)
    assert [node.op_type for node in found.graph] == ["LayerNormalization"] and found.opset_imports[""] == 17
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    assert_same(run(model, {"x": x}), run(found, {"x": x}), 1e-5)
    assert len(model.graph) == 9 and model.opset_imports[""] == 14


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("exporter", "opset", "is_masked"), [("torchscript", 14, True), ("dynamo", 18, False)])
def test_attention_as_exporters_write_it(exporter, opset, is_masked):
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):
        def forward(self, x, mask=None):
            q = x.reshape(2, 6, 4, 8).transpose(1, 2)
            return torch.nn.functional.scaled_dot_product_attention(q, q + 1, q * 2, attn_mask=mask)

    inputs = [torch.randn(2, 6, 32), *([torch.randn(2, 1, 6, 6)] if is_masked else [])]
    file = io.BytesIO()
    if exporter == "dynamo":
        program = torch.onnx.export(Attention().eval(), tuple(inputs), dynamo=True, opset_version=opset, verbose=False)
        proto = program.model_proto
    else:
        torch.onnx.export(Attention().eval(), tuple(inputs), file, dynamo=False, opset_version=opset)
        proto = onnx.load_from_string(file.getvalue())
    model = read_model(proto)
    found = parse_pipeline("prepare,RaiseOpset,RecogniseAttention")(model)
    counts = Counter(node.op_type for node in found.graph)
    assert counts["Attention"] == 1 and not counts["Softmax"] and not counts["MatMul"]
    given = {str(value.name): x.numpy() for value, x in zip(model.graph.inputs, inputs, strict=True)}
    assert_same(run(model, given), run(found, given), 1e-4)


KEYS = """<ir_version: 10, opset_import: ["" : 23]> g (float[2, 4, 6, 8] q, float[2, 4, 6, 8] k, float[2, 4, 6, 8] v)
    => (float[2, 4, 6, 8] y) <int64[3] merged = {MERGED}, int64[4] parted = {PARTED}> {
    a = Reshape (k, merged)   t = Transpose <perm = [0, 2, 1]> (a)   b = Reshape (t, parted)
    s = MatMul (q, b)   p = Softmax (s)   y = MatMul (p, v)
}"""


@pytest.mark.parametrize(
    ("merged", "parted", "is_found"),
    [("8, 6, 8", "2, 4, 8, 6", True), ("-1, 6, 8", "2, 4, 8, 6", True), ("2, 24, 8", "2, 4, 8, 6", False)],
)
def test_keys_whose_heads_are_merged_meanwhile(merged, parted, is_found):
    model = read(KEYS.replace("MERGED", merged).replace("PARTED", parted))
    found = parse_pipeline("InferType,RecogniseAttention")(model)
    assert ("Attention" in {node.op_type for node in found.graph}) == is_found
    draw = np.random.default_rng(1)
    given = {name: draw.standard_normal((2, 4, 6, 8)).astype(np.float32) for name in "qkv"}
    assert_same(run(model, given), run(found, given), 1e-4)


def test_a_newer_model_stays_and_a_remark_tells():
    model = read('<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { y = Relu (x) }')
    result = raised(model, to=17)
    assert result.model is model and "operator set 20 already" in str(result.diagnostics[0])


def test_a_model_that_cannot_be_converted_stays_and_a_warning_tells():
    text = """<ir_version: 8, opset_import: ["" : 14, "my" : 1]> g (float[2] x) => (float[2] y) { y = my.f (x) }
        <domain: "my", opset_import: ["" : 14]> f (x) => (y) { y = Relu (x) }"""
    model = ir.from_onnx_text(text)
    result = raised(model)
    assert result.model is model and "functions" in str(result.diagnostics[0])


@pytest.mark.parametrize("to", [12, 24, "20", True])
def test_sets_that_there_are_not(to):
    with pytest.raises(ConfigError, match="from 13 to 23"):
        RaiseOpset(to)
