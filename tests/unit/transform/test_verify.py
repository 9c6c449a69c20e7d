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
    "other numbers": (0, change_operator, "changed what the model computes: output 'y' is off by"),
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
    with PassContext(instruments=[VerifyAfterEach()]), pytest.raises(PassError, match="'culprit' changed what"):
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
