"""Two plain functions make a rule; tests of several values."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from collage._errors import PatternError
from collage.pattern import explain, is_op, make, rewrite, rule, where_all, wildcard


def model(text: str) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {text}')
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


SWISH = "(float[4] x) => (float[4] y) { s = Sigmoid (x) y = Mul (s, x) }"


def swish(x):
    return is_op("Mul")(x, is_op("Sigmoid")(x))


def test_two_functions_are_a_rule() -> None:
    def fused(op, x):
        return op.node("Swish", x, domain="my.ops")

    result = rewrite(model(SWISH), rule(swish, fused))
    assert [node.op_type for node in result.model.graph] == ["Swish"]
    assert result.applied[0].rule == "fused"


def test_a_replacement_may_look_at_the_match_and_decline() -> None:
    assert not rewrite(model(SWISH), rule(swish, lambda match: None, name="nothing")).applied


def test_several_values_are_replaced() -> None:
    def both(x):
        return is_op("Relu")(x), is_op("Neg")(x)

    def swapped(op, x):
        return op.Neg(op.Neg(x)), op.Abs(x)

    text = "(float[4] x) => (float[4] y, float[4] z) { y = Relu (x) z = Neg (x) }"
    result = rewrite(model(text), rule(both, swapped), iterative=False)
    assert sorted(node.op_type for node in result.model.graph) == ["Abs", "Neg", "Neg"]


def test_functions_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PatternError, match="nothing in the pattern is called 'z'; there are x"):
        rule(swish, lambda op, z: z, name="r")
    with pytest.raises(PatternError, match="2 values for 1 pattern"):
        rewrite(model(SWISH), rule(swish, lambda op, x: (op.Relu(x), op.Abs(x)), name="r"))


PRODUCTS = """(float[2,3] x, float[3,5] v, float[3,7] w) => (float[2,5] y, float[2,7] z)
    { y = MatMul (x, v) z = MatMul (x, w) }"""


def test_values_are_related_by_a_test_of_all_of_them() -> None:
    def together_12(a, b):
        return a.shape[1] + b.shape[1] == 12

    def pair(test):
        x, left, right = wildcard("x"), wildcard("left"), wildcard("right")
        first, second = is_op("MatMul")(x, left), is_op("MatMul")(x, right)
        where_all((left, right), test, "they have the wanted number of columns together")
        return first, second

    first, _ = pair(together_12)
    assert len(first.find_all(model(PRODUCTS))) == 2  # Either may be the first.
    first, _ = pair(lambda a, b: a.shape[1] + b.shape[1] == 13)
    assert not first.find_all(model(PRODUCTS))
    assert "must be so that they have the wanted number" in explain(first, model(PRODUCTS)).message
    first, _ = pair(lambda a, b: a.shape[1] < b.shape[1])
    (match,) = first.find_all(model(PRODUCTS))
    assert match["left"].name == "v"


def test_a_copy_keeps_its_relation() -> None:
    a, b = wildcard(), wildcard()
    add = is_op("Add")(a, b)
    where_all((a, b), lambda x, y: x is y, "they are one value")
    _, copy = make(2, add)
    assert copy.find_all(model("(float[2] x) => (float[2] y) { y = Add (x, x) }"))
    assert not copy.find_all(model("(float[2] x, float[2] z) => (float[2] y) { y = Add (x, z) }"))


def test_one_pattern_is_not_several() -> None:
    with pytest.raises(PatternError, match="several patterns"):
        where_all((wildcard(),), lambda a: True, "it is so")
