"""The front door takes models with ONNX Runtime's own operators, those without a domain too."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from collage._errors import ModelError
from collage.frontend import check_model, has_contrib_ops, read_model
from collage.frontend.contrib_ops import give_domain, take_domain

NORMALISED = """
    g (float[2,5,8] x, float[8] s) => (float[2,5,8] y)
    {
        a = SimplifiedLayerNormalization (x, s)
        b = LayerNormalization <epsilon = 0.1> (a, s, s)
        y = com.microsoft.BiasGelu (b, s)
    }
"""


def model_of(body: str, version: int) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {version}, "com.microsoft" : 1]>{body}')


@pytest.mark.parametrize("version", [13, 14, 16, 17, 22])
def test_what_onnx_runtime_writes_without_a_domain_is_read(version: int) -> None:
    model = read_model(model_of(NORMALISED, version))
    assert [(node.domain, node.op_type) for node in model.graph] == [
        ("", "SimplifiedLayerNormalization"),
        ("", "LayerNormalization"),
        ("com.microsoft", "BiasGelu"),
    ]
    assert model.opset_imports[""] == version and has_contrib_ops(model)


@pytest.mark.parametrize("version", [7, 9, 12])
def test_the_rest_of_an_old_model_is_raised_around_it(version: int) -> None:
    body = NORMALISED.replace(
        "y = com.microsoft.BiasGelu (b, s)", "c = Unsqueeze <axes = [0]> (b) y = Squeeze <axes = [0]> (c)"
    )
    model = read_model(model_of(body, version))
    assert model.opset_imports[""] == 13
    assert [node.op_type for node in model.graph][1:] == ["LayerNormalization", "Unsqueeze", "Squeeze"]
    assert all(node.domain == "" for node in model.graph)
    assert [len(node.inputs) for node in model.graph][2:] == [2, 2]


def test_bodies_are_read_too() -> None:
    branches = (
        "then_branch = t () => (float[2,5,8] u) {u = SimplifiedLayerNormalization (x, s)}, "
        "else_branch = e () => (float[2,5,8] o) {o = LayerNormalization (x, s)}"
    )
    text = f"g (bool q, float[2,5,8] x, float[8] s) => (float[2,5,8] y) {{y = If <{branches}> (q)}}"
    assert has_contrib_ops(read_model(model_of(text, 16)))


def test_other_unknown_operators_are_refused_as_before() -> None:
    for op_type in ("Imaginary", "BiasGelu", "RMSNormalization"):
        with pytest.raises(ModelError, match="is not an operator of version 16"):
            read_model(model_of(f"g (float[2] x, float[2] s) => (float[2] y) {{y = {op_type} (x, s)}}", 16))


def test_domains_come_and_go() -> None:
    model = model_of(NORMALISED, 17)
    before = model.SerializeToString(deterministic=True)
    check_model(model)
    assert model.SerializeToString(deterministic=True) == before
    give_domain(model)
    assert [node.domain for node in model.graph.node] == ["com.microsoft", "", "com.microsoft"]
    take_domain(model)
    assert model.SerializeToString(deterministic=True) == before
