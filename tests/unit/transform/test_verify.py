"""VerifyAfterEach names the pass that breaks a model, whichever way it does."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser
from tests.unit.transform.graphs import random_model

from collage._errors import PassError
from collage.frontend import read_model
from collage.transform import (
    InferType,
    PassContext,
    Repeat,
    Sequential,
    VerifyAfterEach,
    create_module_pass,
    default_passes,
)


@pytest.fixture
def model() -> ir.Model:
    return read_model(
        parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]> g (float[2, 3] x) => (float[2, 3] y)
        { a = Relu (x)   b = Cast <to = 7> (a)   c = Cast <to = 1> (b)   y = Add (a, c) }""")
    )


def with_node(index: int, change):
    def transform(mod, ctx):
        change(mod, mod.graph[index])
        return mod

    return create_module_pass("culprit", 0, transform)


def change_operator(mod, node):
    node.op_type = "Neg"


def reverse(mod, node):
    nodes = list(mod.graph)
    mod.graph.remove(nodes)
    mod.graph.extend(reversed(nodes))


def rename_input(mod, node):
    mod.graph.inputs[0].name = "other"


def drop_cast(mod, node):
    node.outputs[0].replace_all_uses_with(node.inputs[0])


BREAKS = {
    "other numbers": (0, change_operator, "changed the results of the model: output 'y' is off by"),
    "order": (0, reverse, "after pass 'culprit': the model is no longer valid"),
    "interface": (0, rename_input, "changed the model's interface"),
    "types": (2, drop_cast, "after pass 'culprit': types do not fit"),
}


@pytest.mark.parametrize("case", BREAKS)
def test_the_pass_that_breaks_the_model_is_named(model, case):
    index, change, message = BREAKS[case]
    before = str(model)
    with PassContext(instruments=[VerifyAfterEach()]), pytest.raises(PassError, match=message):
        Sequential([InferType(), Sequential([with_node(index, change)]), InferType()])(model)
    assert str(model) == before


def test_it_passes_what_is_right(model):
    verify = VerifyAfterEach()
    with PassContext(opt_level=3, instruments=[verify]):
        default_passes()(model)
        for seed in range(5):
            default_passes()(read_model(random_model(seed)[0]))
    assert verify.not_compared == []


def test_it_compares_with_what_was_before_each_pass(model):
    scale = with_node(3, lambda mod, node: setattr(node, "op_type", "Mul"))
    with PassContext(instruments=[VerifyAfterEach(tolerance=1e9)]):
        Repeat(Sequential([scale]), max_rounds=2)(model)
    with PassContext(instruments=[VerifyAfterEach()]), pytest.raises(PassError, match="'culprit' changed the results"):
        Repeat(Sequential([scale]), max_rounds=2)(model)


def test_what_is_not_compared_is_said():
    noisy = ir.from_proto(
        parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]> g (float[3] x) => (float[3] y)
        { n = RandomNormalLike (x)   y = Add (x, n) }""")
    )
    verify, quick = VerifyAfterEach(), VerifyAfterEach(numeric=False)
    with PassContext(instruments=[verify, quick]):
        InferType()(noisy)
    assert verify.not_compared == [("InferType", "the model has random operators")]
    assert quick.not_compared == [("InferType", "comparing outputs is switched off")]


def test_inputs_and_evaluator_can_be_given(model):
    given = {"x": np.full((2, 3), -1, np.float32)}
    seen = []

    def evaluate(mod, inputs):
        seen.append(inputs)
        return [np.zeros(1)]

    with PassContext(instruments=[VerifyAfterEach(inputs=given, evaluate=evaluate)]):
        InferType()(model)
    assert seen == [given, given]


AWKWARD = {
    "zeros": "a = Add (x, small)  y = Log (a)",
    "equal rows": """mean = ReduceMean (x, last)  centred = Sub (x, mean)  square = Mul (centred, centred)
        a = Add (square, small)  y = Reciprocal (a)""",
}


@pytest.mark.parametrize("kind", AWKWARD)
def test_small_constants_are_missed_where_all_else_is_zero_or_equal(kind):
    """On random inputs alone no output is off by more than rounding."""
    text = f"""<ir_version: 10, opset_import: ["" : 18]> g (float[2, 3] x) => (float[2, 3] y)
    <int64[1] last = {{-1}}, float small = {{1e-9}}> {{ {AWKWARD[kind]} }}"""
    model = read_model(parser.parse_model(text))

    def drop_constant(mod, node):
        (add,) = [each for each in mod.graph if each.op_type == "Add"]
        add.outputs[0].replace_all_uses_with(add.inputs[0])
        mod.graph.remove(add, safe=True)

    x = {"x": np.float32([[-3, 1, 2], [5, 6, 9]]) ** 2}
    with PassContext(instruments=[VerifyAfterEach(inputs=x)]):
        with_node(0, drop_constant)(model)
    with (
        PassContext(instruments=[VerifyAfterEach()]),
        pytest.raises(PassError, match="output 'y', for zeros,"),
    ):
        with_node(0, drop_constant)(model)


def test_extremes_are_compared_too():
    """A factor of 1.0001 is within the tolerance on every number but those that a limit cuts off."""
    text = """<ir_version: 10, opset_import: ["" : 18]> g (float[2, 6] x) => (float[2, 6] y) <float limit = {1000}> {
        y = Min (x, limit)
    }"""
    model = read_model(parser.parse_model(text))

    def drop_limit(mod, node):
        node.resize_inputs(1)

    with (
        PassContext(instruments=[VerifyAfterEach()]),
        pytest.raises(PassError, match="'y', for extremes, is off by up to"),
    ):
        with_node(0, drop_limit)(model)


def test_models_that_cannot_take_other_numbers_are_compared_on_random_ones(model):
    calls = []

    def evaluate(mod, inputs):
        calls.append(inputs["x"])
        if not inputs["x"].any():
            raise ValueError("no zeros")
        return [inputs["x"]]

    verify = VerifyAfterEach(evaluate=evaluate)
    with PassContext(instruments=[verify]):
        InferType()(model)
    assert verify.not_compared == [] and len(calls) == 4 + 3
    assert any((np.ptp(x, axis=1) == 0).all() and x.any() for x in calls)


def test_integers_alone_have_one_set_of_inputs():
    model = ir.from_proto(
        parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 18]> g (int64[3] x) => (int64[3] y) { y = Neg (x) }"""
        )
    )
    calls = []
    with PassContext(instruments=[VerifyAfterEach(evaluate=lambda mod, inputs: calls.append(1) or [inputs["x"]])]):
        InferType()(model)
    assert len(calls) == 2
