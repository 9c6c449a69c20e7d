"""Written-out operators are recognised in what both exporters of PyTorch emit; results stay."""

from __future__ import annotations

import io
import math
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser
from tests.unit.transform.graphs import assert_same, run

from collage.frontend import read_model
from collage.transform import (
    InferType,
    PassContext,
    RecogniseAttention,
    RecogniseGelu,
    RecogniseLayerNorm,
    RecogniseOperators,
    RecogniseRMSNorm,
    prepare,
)

torch = pytest.importorskip("torch")
F = torch.nn.functional


class LayerNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.bias = torch.nn.Parameter(torch.rand(16)), torch.nn.Parameter(torch.rand(16))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred**2).mean(-1, keepdim=True)
        return centred / torch.sqrt(variance + 1e-5) * self.scale + self.bias


class RMSNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(16))

    def forward(self, x):
        return self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class ErfGelu(torch.nn.Module):
    def forward(self, x):
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


class TanhGelu(torch.nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class Attention(torch.nn.Module):
    def forward(self, x):
        q = x.reshape(2, 8, 2, 8).transpose(1, 2)
        k, v = q + 1, q * 2
        mask = torch.where(torch.ones(8, 8).tril() > 0, 0.0, -1e4)
        return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(8) + mask, dim=-1) @ v


CASES = {
    "LayerNormalization": (LayerNorm, RecogniseLayerNorm, 17),
    "RMSNormalization": (RMSNorm, RecogniseRMSNorm, 23),
    "Gelu": (ErfGelu, RecogniseGelu, 20),
    "Gelu by tanh": (TanhGelu, RecogniseGelu, 20),
    "Attention": (Attention, RecogniseAttention, 23),
}


def export(module, exporter: str, opset: int, x) -> onnx.ModelProto:
    """The module as ONNX; of the older exporter, whose opsets end at 20, with the number raised where need be."""
    if exporter == "dynamo":
        return torch.onnx.export(module, (x,), dynamo=True, opset_version=max(opset, 18), verbose=False).model_proto
    file = io.BytesIO()
    torch.onnx.export(module, (x,), file, dynamo=False, opset_version=min(opset, 20))
    proto = onnx.load_from_string(file.getvalue())
    for imported in proto.opset_import:
        imported.version = max(imported.version, opset)
    return proto


def recognise(model: ir.Model, pass_) -> ir.Model:
    with PassContext(opt_level=3):
        return pass_(model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("case", CASES)
def test_what_exporters_write_out(case, exporter):
    module, pass_, opset = CASES[case]
    x = torch.randn(2, 8, 16)
    model = prepare(read_model(export(module().eval(), exporter, opset, x)))
    found = recognise(model, pass_())
    counts = Counter(node.op_type for node in found.graph)
    assert counts[case.split()[0]] == 1
    assert not counts.keys() & {"ReduceMean", "Sqrt", "Erf", "Tanh", "Softmax"}
    inputs = {str(model.graph.inputs[0].name): x.numpy()}
    expected = run(model, inputs)
    assert_same(expected, run(found, inputs), 1e-5)
    runtime = pytest.importorskip("openvino")
    core = runtime.Core()
    file = io.BytesIO(ir.to_proto(found).SerializeToString())
    compiled = core.compile_model(core.read_model(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert_same(expected, [compiled([x.numpy()])[0]], 1e-3)


def read(text: str, opset: int = 23) -> ir.Model:
    return prepare(read_model(parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')))


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


GELU = """g (float[2, 3] x) => (float[2, 3] y) <float r = {ROOT}, float one = {1}, float[HALF] half = {0.5}> {
    d = Div (x, r)   e = Erf (d)   s = Add (e, one)   m = Mul (x, s)   y = Mul (m, half)
}"""


def gelu(root: str = "1.41421354", half: str = "1") -> str:
    return GELU.replace("ROOT", root).replace("HALF", half)


def test_an_operator_that_the_opset_lacks_is_left_alone():
    assert ops(recognise(read(gelu(), opset=20), RecogniseGelu())) == ["Gelu"]
    model = read(gelu(), opset=18)
    assert ops(recognise(model, RecogniseGelu())) == ops(model)


@pytest.mark.parametrize("text", [gelu(root="1.5"), gelu(half="1,1,1").replace("float[2, 3] y", "float[1, 2, 3] y")])
def test_what_only_looks_like_gelu(text):
    model = read(text)
    assert ops(recognise(model, RecogniseGelu())) == ops(model)


def test_a_value_inside_that_is_an_output_forbids_it():
    model = read(gelu().replace("=> (float[2, 3] y)", "=> (float[2, 3] y, float[2, 3] s)"))
    assert ops(recognise(model, RecogniseGelu())) == ops(model)


NORM = """g (TYPE[2, 3, 4] x) => (TYPE[2, 3, 4] y)
    <TYPE eps = {0.001}, TYPE two = {2}, int64[COUNT] axes = {AXES}, TYPE[4] s = {1, 2, 3, 4}> {
    m = ReduceMean <keepdims = 1> (x, axes)   d = Sub (x, m)   q = Pow (d, two)
    v = ReduceMean <keepdims = 1> (q, axes)   e = Add (v, eps)   r = Sqrt (e)   n = Div (d, r)   y = Mul (n, s)
}"""


@pytest.mark.parametrize(
    ("dtype", "axes", "found"),
    [
        ("float", "-1", ["LayerNormalization"]),
        ("float", "2", ["LayerNormalization"]),
        ("float", "1, 2", ["LayerNormalization", "Mul"]),
        ("float", "2, 1", ["LayerNormalization", "Mul"]),
        ("float", "1", None),
        ("double", "-1", None),
    ],
)
def test_layer_normalisation_is_over_the_last_axes_in_single_precision(dtype, axes, found):
    text = NORM.replace("TYPE", dtype).replace("COUNT", str(axes.count(",") + 1)).replace("AXES", axes)
    model = read(text)
    result = recognise(model, RecogniseLayerNorm())
    assert ops(result) == (found or ops(model))
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype({"float": "f4", "double": "f8"}[dtype])
    assert_same(run(model, {"x": x}), run(result, {"x": x}))


ATTENTION = """g (float[2, 4, 5, 8] q, float[2, KV, 6, 8] k, float[2, KV, 6, 8] v) => (float[2, 4, 5, 8] y)
    <float c = {0.25}> {
    t = Transpose <perm = [0, 1, 3, 2]> (k)   p = MatMul (q, t)   s = Mul (p, c)
    w = Softmax <axis = AXIS> (s)   y = MatMul (w, v)
}"""


@pytest.mark.parametrize(("heads", "axis", "found"), [(4, -1, True), (4, 3, True), (1, -1, False), (4, 2, False)])
def test_attention_needs_equal_heads_and_a_softmax_over_the_keys(heads, axis, found):
    model = read(ATTENTION.replace("KV", str(heads)).replace("AXIS", str(axis)))
    result = recognise(model, RecogniseAttention())
    assert ops(result) == (["Attention"] if found else ops(model))
    random = np.random.default_rng(0)
    inputs = {str(v.name): random.standard_normal(list(v.shape)).astype(np.float32) for v in model.graph.inputs}
    assert_same(run(model, inputs), run(result, inputs))


MASKED = """g (T[BATCH, 4, 5, 8] q, T[2, 4, 6, 8] k, T[2, 4, 6, 8] v, T[MASK] mask) => (T[2, 4, 5, 8] y)
    <T c = {SCALE}> {
    t = Transpose <perm = [0, 1, 3, 2]> (k)   p = MatMul (q, t)   s = Mul (p, c)   a = Add (s, mask)
    w = Softmax (a)   y = MatMul (w, v)
}"""


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        ("2, 4, 5, 6", True),
        ("1, 1, 5, 6", True),
        ("4, 5, 6", True),
        ("5, 6", True),
        ("6", False),
        ("1, 6", False),
        ("2, 1, 1, 6", False),
        ("2, 1, 5, 1", False),
        ("1, 1, 1, 1", False),
    ],
)
def test_a_mask_has_a_number_for_every_score(mask, found):
    """ONNX's operator takes a short mask to hide what it does not reach, where an Add repeats it."""
    check_masked(found, mask=mask)


@pytest.mark.parametrize("change", [{"scale": "0"}, {"scale": "-1"}, {"batch": "1"}, {"dtype": "double"}])
def test_attention_that_the_operator_does_not_do(change):
    check_masked(False, **change)


def test_keys_of_groups_whose_reshapes_were_joined():
    """Exporters repeat keys with an Expand to five axes; two Reshapes behind each other become one."""
    model = read("""g (float[2, 4, 5, 3] q, float[2, 2, 1, 6, 3] k, float[2, 4, 6, 3] v) => (float[N, H, L, W] y)
        <int64[5] many = {2, 2, 2, 6, 3}, int64[3] three = {8, 6, 3}, int64[4] four = {2, 4, 3, 6}> {
        wide = Expand(k, many)
        flat = Reshape(wide, three)
        turned = Transpose<perm = [0, 2, 1]>(flat)
        keys = Reshape(turned, four)
        scores = MatMul(q, keys)
        shares = Softmax(scores)
        y = MatMul(shares, v)
    }""")
    result = recognise(model, RecogniseAttention())
    assert "Attention" in ops(result)
    random = np.random.default_rng(0)
    inputs = {str(v.name): random.standard_normal(list(v.shape)).astype(np.float32) for v in model.graph.inputs}
    assert_same(run(model, inputs), run(result, inputs))


def check_masked(found: bool, mask="5, 6", scale="0.25", batch="2", dtype="float") -> None:
    text = MASKED.replace("MASK]", mask + "]").replace("SCALE", scale).replace("BATCH", batch)
    model = read(text.replace("T[", dtype + "[").replace("<T", "<" + dtype))
    result = recognise(model, RecogniseAttention())
    assert ops(result) == (["Attention"] if found else ops(model))
    random = np.random.default_rng(0)
    inputs = {str(v.name): random.standard_normal(list(v.shape)).astype(v.dtype.numpy()) for v in model.graph.inputs}
    assert_same(run(model, inputs), run(result, inputs))


@pytest.mark.parametrize(
    ("choice", "fill", "mask", "found"),
    [
        ("Where (mask, fill, s)", -np.inf, "5, 6", True),
        ("Where (mask, s, fill)", float(np.finfo(np.float32).min), "1, 1, 5, 6", True),
        ("Where (mask, s, fill)", -1e4, "5, 6", False),
        ("Where (mask, fill, s)", -np.inf, "5, 1", False),
    ],
)
def test_attention_whose_scores_are_hidden_by_a_condition(choice: str, fill: float, mask: str, found: bool) -> None:
    text = (
        MASKED.replace("T[MASK] mask", f"bool[{mask}] mask").replace("Add (s, mask)", choice).replace("SCALE", "0.25")
    )
    model = read(
        text.replace("BATCH", "2")
        .replace("T[", "float[")
        .replace("<T c = {0.25}>", "<float c = {0.25}, float fill = {-1.0}>")
    )
    model.graph.initializers["fill"].const_value = ir.tensor(np.float32(fill), name="fill")
    result = recognise(model, RecogniseAttention())
    assert ("Attention" in ops(result)) is found
    random = np.random.default_rng(0)
    inputs = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in {"q": (2, 4, 5, 8), "k": (2, 4, 6, 8), "v": (2, 4, 6, 8)}.items()
    }
    given = np.arange(np.prod(shape := [int(n) for n in mask.split(",")])).reshape(shape) % 3 == 0
    assert_same(run(model, {**inputs, "mask": given}), run(result, {**inputs, "mask": given}))


def test_all_of_them_are_one_sequence_that_infers_types_first():
    model = read_model(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]> {gelu()}'))
    ran = []
    with PassContext(opt_level=3, trace=lambda m, info, before: ran.append(info.name) if before else None):
        assert ops(RecogniseOperators()(model)) == ["Gelu"]
    assert ran[:2] == [InferType().info.name, "RecogniseLayerNorm"] and ran.count("InferType") == 1
