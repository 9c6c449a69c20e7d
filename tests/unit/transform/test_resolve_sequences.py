"""Sequences that are known ahead are replaced by what they hold; the references compute the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from collage.frontend import read_model
from collage.transform import PassContext, ResolveSequences, Sequential, prepare

X = np.arange(24, dtype=np.float32).reshape(2, 4, 3)


def resolved(body: str, x: str = "float[2,4,3] x", y: str = "float[M,N,K] y") -> tuple[onnx.ModelProto, ir.Model]:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> g ({x}) => ({y}) {{{body}}}')
    return proto, Sequential([ResolveSequences()])(read_model(proto))


def kinds(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.all_nodes())


def computed(model: ir.Model | onnx.ModelProto, **feeds: Any) -> list[Any]:
    proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return list(ReferenceEvaluator(proto).run(None, feeds))


TWO = "two = Constant <value_int = 2> () minus = Constant <value_int = -1> () "


@pytest.mark.parametrize(
    "body",
    [
        TWO + "s = SplitToSequence <axis = 1> (x, two) y = SequenceAt (s, minus)",
        TWO + "s = SplitToSequence <axis = -2> (x) y = ConcatFromSequence <axis = 0> (s)",
        TWO + "s = SplitToSequence <axis = 1, keepdims = 0> (x) y = ConcatFromSequence <axis = 2, new_axis = 1> (s)",
        TWO + "s = SequenceEmpty () t = SequenceInsert (s, x) u = SequenceInsert (t, x) "
        "y = ConcatFromSequence <axis = -1> (u)",
        TWO + "n = Neg (x) s = SequenceConstruct (x, x) t = SequenceInsert (s, n, minus) i = Identity (t) "
        "u = SequenceErase (i) y = ConcatFromSequence <axis = 0> (u)",
        "p = Constant <value_ints = [1, 3]> () z = Constant <value_int = 0> () s = SplitToSequence <axis = 1> (x, p) "
        "t = SequenceErase (s, z) y = SequenceAt (t, z)",
        "s = SequenceConstruct (x, x) l = SequenceLength (s) f = Cast <to = 1> (l) y = Mul (x, f)",
    ],
)
def test_what_is_known_is_replaced(body: str) -> None:
    before, after = resolved(body)
    left = [kind for kind in kinds(after) if "Sequence" in kind]
    assert not left
    np.testing.assert_array_equal(computed(before, x=X)[0], computed(after, x=X)[0])
    np.testing.assert_array_equal(computed(before, x=X)[0], computed(prepare(read_model(before)), x=X)[0])


@pytest.mark.parametrize(
    ("body", "x"),
    [
        (
            "s = SplitToSequence <axis = 1> (x, p) y = SequenceAt (s, p)",
            "float[2,4,3] x, int64 p",
        ),  # a place that varies
        ("s = SplitToSequence <axis = 0> (x) y = ConcatFromSequence <axis = 1> (s)", "float[N,4,3] x"),
        (
            "s = SequenceConstruct (x) t = SequenceInsert (s, x, p) y = ConcatFromSequence <axis = 0> (t)",
            "float[2,4,3] x, int64 p",
        ),
        ("y = ConcatFromSequence <axis = 0> (x)", "seq(float[2,4,3]) x"),
        (
            "o = Constant <value_int = 300> () s = SplitToSequence <axis = 0> (x) l = SequenceLength (s) "
            "y = SequenceAt (s, l)",
            "float[300,4,3] x",
        ),  # hundreds of parts
    ],
)
def test_what_is_not_known_stays(body: str, x: str) -> None:
    _, after = resolved(body, x)
    assert "ConcatFromSequence" in kinds(after) or "SequenceAt" in kinds(after)
    assert "Split" not in kinds(after)


def test_a_model_does_not_grow_without_end() -> None:
    joined = "".join(
        f"s{i} = SplitToSequence <axis = 0> (x) c{i} = ConcatFromSequence <axis = 0> (s{i}) " for i in range(200)
    )
    _, after = resolved(joined + f"y = Sum ({', '.join(f'c{i}' for i in range(200))})", "float[120,4,3] x")
    assert kinds(after)["Split"] > 100 and kinds(after)["SplitToSequence"] > 10
    assert kinds(after)["Split"] + kinds(after)["SplitToSequence"] == 200
    assert sum(kinds(after).values()) < 21_000


def test_a_place_that_is_not_there_is_left_to_fail_when_it_runs() -> None:
    _, after = resolved(TWO + "s = SequenceConstruct (x, x) y = SequenceAt (s, two)")
    assert kinds(after)["SequenceAt"] == 1


def test_a_sequence_that_leaves_the_graph_is_still_made_and_others_take_from_it_no_more() -> None:
    body = TWO + "s = SplitToSequence <axis = 1> (x, two) y = SequenceAt (s, minus)"
    before, after = resolved(body, y="seq(float[M,N,K]) s, float[M,N,K] y")
    assert kinds(after)["SplitToSequence"] == 1 and "SequenceAt" not in kinds(after)
    parts, y = computed(after, x=X)
    assert len(parts) == 2
    np.testing.assert_array_equal(y, computed(before, x=X)[1])


def test_bodies_know_what_is_outside_of_them() -> None:
    branch = (
        "then_branch = a () => (float[2,2,3] t) {t = SequenceAt (s, zero)}, "
        "else_branch = b () => (float[2,2,3] u) {u = SequenceAt (s, minus)}"
    )
    body = (
        TWO + "zero = Constant <value_int = 0> () s = SplitToSequence <axis = 1> (x, two) y = If <" + branch + "> (c)"
    )
    before, after = resolved(body, "float[2,4,3] x, bool c")
    assert not [kind for kind in kinds(after) if "Sequence" in kind]
    for c in (np.array(True), np.array(False)):
        np.testing.assert_array_equal(computed(before, x=X, c=c)[0], computed(after, x=X, c=c)[0])


def test_a_sequence_that_a_loop_fills_stays() -> None:
    loop = (
        "body = b (int64 i, bool go, seq(float[2,4,3]) q) => (bool again, seq(float[2,4,3]) t) "
        "{again = Identity (go) t = SequenceInsert (q, x)}"
    )
    body = TWO + "true = Constant <value = bool {1}> () e = SequenceEmpty () s = Loop <" + loop + "> (two, true, e) "
    before, after = resolved(body + "y = ConcatFromSequence <axis = 0> (s)")
    assert kinds(after)["ConcatFromSequence"] == 1
    np.testing.assert_array_equal(computed(before, x=X)[0], computed(after, x=X)[0])


def test_a_model_without_sequences_is_returned_as_it_is() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) {y = Neg (x)}'
    )
    model = read_model(proto)
    assert kinds(ResolveSequences()(model)) == {"Neg": 1}
    with PassContext(disabled_pass=["ResolveSequences"]):
        _, after = resolved("s = SequenceConstruct (x) y = ConcatFromSequence <axis = 0> (s)")
    assert kinds(after)["ConcatFromSequence"] == 1


def test_what_cannot_be_known_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    loop = (
        "body = b (int64 i, bool go, seq(float[2,4,3]) q) => (bool again, seq(float[2,4,3]) t) "
        "{again = Identity (go) t = SequenceInsert (q, x)}"
    )
    body = TWO + "true = Constant <value = bool {1}> () e = SequenceEmpty () s = Loop <" + loop + "> (two, true, e) "
    before, _ = resolved(body + "y = ConcatFromSequence <axis = 0> (s)")
    prepare(read_model(before))
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]


@st.composite
def programs(draw: st.DrawFn) -> onnx.ModelProto:
    """Tensors that are collected, moved about and taken again, by constant places all in range."""
    nodes, constants, count = [], [], 0

    def add(op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def place(low: int, high: int) -> str:
        name = f"c{len(constants)}"
        constants.append(helper.make_tensor(name, onnx.TensorProto.INT64, [], [draw(st.integers(low, high))]))
        return name

    sequence = add("SequenceEmpty")
    for _ in range(draw(st.integers(1, 8))):
        if count and draw(st.booleans()):
            what = draw(st.sampled_from(["erase", "take", "erase the last"]))
            if what == "take":
                sequence, count = (
                    add("SequenceInsert", sequence, add("SequenceAt", sequence, place(-count, count - 1))),
                    count + 1,
                )
            else:
                where = [place(-count, count - 1)] if what == "erase" else []
                sequence, count = add("SequenceErase", sequence, *where), count - 1
        else:
            tensor = add(draw(st.sampled_from(["Neg", "Exp", "Sin"])), "x")
            where = [place(-count, count)] if draw(st.booleans()) else []
            sequence, count = add("SequenceInsert", sequence, tensor, *where), count + 1
    add("SequenceLength", sequence)
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], onnx.TensorProto.INT64, [])]
    if count:
        new_axis = draw(st.integers(0, 1))
        joined = add("ConcatFromSequence", sequence, axis=draw(st.integers(-1, 0)), new_axis=new_axis)
        outputs.append(helper.make_tensor_value_info(joined, onnx.TensorProto.FLOAT, [None] * (1 + new_axis)))
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    graph = helper.make_graph(nodes, "program", [x], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@hypothesis.given(programs())
def test_random_programs_compute_the_same_without_sequences(proto: onnx.ModelProto) -> None:
    """As ONNX Runtime sees them: in ONNX's reference implementation, what is inserted behind the last comes first."""
    after = Sequential([ResolveSequences()])(read_model(proto))
    assert not [kind for kind in kinds(after) if "Sequence" in kind]
    x = np.float32([0.25, -1.5])
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    for y, wanted in zip(computed(after, x=x), expected, strict=True):
        np.testing.assert_allclose(y, wanted, rtol=1e-6)
