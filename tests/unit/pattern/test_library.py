"""The library finds its groups in what both of PyTorch's exporters write, and in quantised models."""

from __future__ import annotations

import io
import warnings

import onnx
import onnx_ir as ir
import pytest

from collage.pattern import library

from .graphs import graph

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Groups(torch.nn.Module):
    """One of each group; inputs are an image, tokens, and three attention operands."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.conv_relu = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.residual = nn.Conv2d(4, 4, 3, padding=1)
        self.linear_relu = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        self.linear_gelu = nn.Sequential(nn.Linear(16, 16), nn.GELU())
        self.linear_tanh_gelu = nn.Sequential(nn.Linear(16, 16), nn.GELU("tanh"))
        self.layer_norm = nn.LayerNorm(16)
        self.group_norm = nn.GroupNorm(2, 4)
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, image, tokens, q, k, v):
        image = self.conv_relu(image)
        image = F.relu(self.residual(image) + torch.tanh(image))
        image = F.silu(self.group_norm(image))
        tokens = self.layer_norm(self.linear_tanh_gelu(self.linear_gelu(self.linear_relu(tokens))))
        return image, tokens, F.scaled_dot_product_attention(q, k, v)


def example() -> tuple:
    heads = [torch.randn(1, 2, 5, 8) for _ in range(3)]
    return torch.randn(1, 4, 8, 8), torch.randn(2, 5, 16), *heads


@pytest.fixture(scope="module", params=["torchscript", "dynamo"])
def exported(request) -> ir.Model:
    torch.manual_seed(0)
    module = Groups().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if request.param == "dynamo":
            return torch.onnx.export(module, example(), dynamo=True, verbose=False).model
        file = io.BytesIO()
        torch.onnx.export(module, example(), file, dynamo=False, opset_version=17)
        return ir.from_proto(onnx.load_from_string(file.getvalue()))


def found(model: ir.Model | ir.Graph, name: str) -> list[set[str]]:
    matches = library.patterns()[name].find_all(model, "maximal")
    return [{node.op_type for node in match.nodes} for match in matches]


@pytest.mark.parametrize(
    ("name", "count", "needed"),
    [
        ("conv_bias_activation", 2, {"Conv", "Relu"}),
        ("residual_add", 1, {"Conv", "Add", "Relu"}),
        ("gemm_activation", 3, {"MatMul", "Add", "Relu"}),
        ("linear_gelu", 2, {"MatMul", "Add"}),
        ("gelu", 2, set()),
        ("layer_norm", 1, set()),
        ("group_norm_silu", 1, {"Sigmoid"}),
        ("silu", 1, {"Sigmoid", "Mul"}),
        ("attention", 1, {"MatMul", "Softmax", "Mul"}),
    ],
)
def test_each_group_is_found_whole(exported: ir.Model, name: str, count: int, needed: set[str]) -> None:
    matches = found(exported, name)
    assert len(matches) == count
    assert any(needed <= match for match in matches)


def test_a_group_is_found_to_its_end(exported: ir.Model) -> None:
    for match in library.linear_gelu().find_all(exported, "maximal"):
        assert match.root_node is not None
        assert match.root_node.op_type in ("Mul", "Gelu")
        assert match["x"].producer() not in match.nodes


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


def test_quantised_groups() -> None:
    qdq = (
        "a = DequantizeLinear(x, s, z)\nb = DequantizeLinear(w, s, z)\nc = {op}(a, b)\nr = Relu(c)\n"
        "y = QuantizeLinear(r, s, z)"
    )
    for name, op in (("quantized_conv", "Conv"), ("quantized_matmul", "MatMul")):
        assert found(graph(qdq.replace("{op}", op), initializers="w s z"), name) == [
            {"DequantizeLinear", op, "Relu", "QuantizeLinear"}
        ]
    whole = graph("y = QLinearConv(x, s, z, w, s, z, s, z)", initializers="w s z")
    assert found(whole, "quantized_conv") == [{"QLinearConv"}]


def test_patterns_are_fresh_each_time() -> None:
    first, second = library.patterns(), library.patterns()
    assert list(first) == list(second)
    assert all(first[name] is not second[name] for name in first)
