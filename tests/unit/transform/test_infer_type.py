"""InferType: what follows counts more than what a file claims, and a claim more than nothing."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, parser
from tests.unit.transform.graphs import run

from collage._errors import ModelError
from collage.frontend import Budgets, read_model
from collage.transform import InferType, Repeat, default_passes, prepare

HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.example" : 1, "com.microsoft" : 1]>'


def model_of(text: str, **claims: list[int | str]) -> onnx.ModelProto:
    model = parser.parse_model(f"{HEADER} g {text}")
    for name, shape in claims.items():
        model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    return model


def shapes(model: onnx.ModelProto) -> dict[str, str]:
    inferred = InferType()(ir.from_proto(model))
    return {str(value.name): str(value.shape) for node in inferred.graph for value in node.outputs}


@pytest.mark.parametrize(
    "node",
    [
        "GroupNormalization <num_groups = 2> (x, s, s)",
        "MeanVarianceNormalization (x)",
        "SimplifiedLayerNormalization (x, s)",
        "com.microsoft.FastGelu (x)",
        "com.microsoft.BiasGelu (x, s)",
    ],
)
def test_what_inference_does_not_know_hides_no_shapes_behind_it(node: str) -> None:
    text = f"(float[n,4,3,3] x, float[3] s) => (float[a,b,c,d] y) {{v = {node} w = GlobalAveragePool (v) y = Relu (w)}}"
    found = shapes(model_of(text))
    assert found["v"] == "[n,4,3,3]" and found["w"] == "[n,4,1,1]"
    branches = (
        f"then_branch = t () => (float[a,b,c,d] u) {{v = {node} u = Relu (v)}}, "
        "else_branch = e () => (float[a,b,c,d] o) {o = Relu (x)}"
    )
    inner = f"(bool q, float[2,4,3,3] x, float[3] s) => (float[a,b,c,d] y) {{y = If <{branches}> (q)}}"
    assert shapes(model_of(inner))["y"] == "[2,4,3,3]"


@pytest.mark.parametrize(("attribute", "bins"), [("", 9), ("<onesided = 1>", 9), ("<onesided = 0>", 16)])
def test_a_fourier_transform_is_one_sided_unless_it_says_otherwise(attribute: str, bins: int) -> None:
    constants = "<int64 step = {8}, int64 n = {16}>"
    text = f"(float[2,128,1] x) => (float[a,b,c,d] y) {constants} {{y = STFT {attribute} (x, step, , n)}}"
    assert shapes(model_of(text))["y"] == f"[2,15,{bins},2]"


def test_what_follows_from_the_inputs_beats_what_a_file_claims() -> None:
    text = "(float[2,3] x) => (float[2,4] y) {a = Relu (x) b = Neg (a) y = Exp (b)}"
    assert shapes(model_of(text, a=[2, 5], b=[6])) == {"a": "[2,3]", "b": "[2,3]", "y": "[2,3]"}


def test_nothing_is_computed_ahead_from_a_false_claim() -> None:
    prepared = prepare(read_model(model_of("(float[2,3] x) => (int64[2] y) {a = Relu (x) y = Shape (a)}", a=[2, 5])))
    (identity,) = prepared.graph
    (folded,) = identity.inputs
    assert folded is not None and folded.const_value is not None
    assert folded.const_value.numpy().tolist() == [2, 3]


def test_claims_count_where_nothing_follows_and_names_of_dimensions_stay() -> None:
    text = "(float[n,3] x) => (float[n,k] y) {a = com.example.Odd (x) b = Relu (a) c = Concat <axis = 1> (b, b) y = Neg (c)}"
    found = shapes(model_of(text, a=["n", 7]))
    assert (found["a"], found["b"], found["c"]) == ("[n,7]", "[n,7]", "[n,14]")
    assert found["y"] == "[n,14]"


def test_a_small_claim_does_not_let_in_what_is_too_large() -> None:
    text = "(float[1] x) => (float[1] y) <int64[2] s = {900000, 900000}> {a = Expand (x, s) y = ReduceSum <keepdims = 0> (a)}"
    for claims in ({}, {"a": [1]}):
        with pytest.raises(ModelError, match="810,000,000,000 elements"):
            read_model(model_of(text, **claims), budgets=Budgets())


def test_false_claims_do_not_decide_how_contributed_operators_are_understood() -> None:
    text = (
        "(float[2,3,4] x, float[5,4] w) => (float[a,b,c] y) "
        "{v = Relu (x) u = com.microsoft.FusedMatMul <transA = 0, transB = 1> (v, w) t = com.microsoft.FusedMatMul"
        " <transA = 1> (v, u) y = Relu (t)}"
    )
    found = shapes(model_of(text, v=[7]))
    assert found["v"] == "[2,3,4]" and found["u"] == "[2,3,5]" and found["t"] == found["y"] == "[2,4,5]"


CARRIED = """<ir_version: 10, opset_import: ["" : 18]> g (float[1] x, int64 turns) => (float[k] y, int64[turns, 1] lengths)
<bool yes = {1}> {
    y, lengths = Loop (turns, yes, x) <body = b (int64 i, bool c, float[%s] held) => (bool d, float[%s] next, int64[1] length) {
        d = Identity (c)
        next = %s
        length = Shape (held)
    }>
}"""


@pytest.mark.parametrize("claim", ["1", "same"])
def test_what_a_loop_carries_has_the_length_that_it_keeps_only(claim: str) -> None:
    """Whatever the body claims: the first turn's length is not the second's."""
    feeds = {"x": np.float32([2]), "turns": np.asarray(3)}
    growing = parser.parse_model(CARRIED % (claim, claim, "Concat <axis = 0> (held, x)"))
    prepared = default_passes()
    assert [array.tolist() for array in run(prepared(read_model(growing)), feeds)] == [[2.0] * 4, [[1], [2], [3]]]
    assert all(member.converged for member in prepared.passes if isinstance(member, Repeat))
    kept = prepare(read_model(parser.parse_model(CARRIED % (claim, claim, "Add (held, x)"))))
    body = next(node for node in kept.graph if node.op_type == "Loop").attributes["body"].as_graph()
    assert claim == "same" or list(body.inputs[2].shape) == [1]


def test_a_symbol_of_an_input_beats_a_number_that_is_claimed() -> None:
    """People make the batch symbolic at the input alone."""
    model = model_of("(float[batch, 4] x) => (float[1, 4] y) { a = Relu (x) y = Neg (a) }", a=[1, 4])
    assert shapes(model) == {"a": "[batch,4]", "y": "[batch,4]"}


def test_a_number_that_is_claimed_stays_where_no_symbol_of_an_input_follows() -> None:
    model = model_of("(float[n] x, float[m] z) => (float[7] y) { y = Concat <axis = 0> (x, z) }")
    assert shapes(model) == {"y": "[7]"}
