"""Made-up floating-point inputs, of three kinds."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from collage._errors import UsageError
from collage.frontend import (
    FLOATS,
    RANKS,
    Floats,
    _inputs,
    check_lengths,
    describe_inputs,
    make_inputs,
    probe_inputs,
    read_model,
)

TEXT = """
<ir_version: 10, opset_import: ["": 17]>
g (float[64, 64] x, float16[64] h, int64[8] i, bool[3] b) => (float[64, 64] y) { y = Relu (x) }
"""


@pytest.mark.parametrize(("kind", "low", "high"), [("fractions", 0.0, 1.0), ("above one", 1.0, 2.0)])
def test_they_lie_where_the_kind_says(kind: Floats, low: float, high: float) -> None:
    made = make_inputs(read_model(onnx.parser.parse_model(TEXT)), 0, floats=kind)
    for name in ("x", "h"):
        assert low < made[name].min() and made[name].max() <= high
        assert made[name].dtype == {"x": np.float32, "h": np.float16}[name]
    assert made["x"].max() - made["x"].min() > 0.9


def test_other_inputs_are_the_same_for_all_kinds_and_normal_is_the_first() -> None:
    model = read_model(onnx.parser.parse_model(TEXT))
    plain = make_inputs(model, 5)
    for kind in FLOATS:
        made = make_inputs(model, 5, floats=kind)
        assert (made["i"] == plain["i"]).all() and (made["b"] == plain["b"]).all()
        assert (kind == FLOATS[0]) == bool((made["x"] == plain["x"]).all())
    assert plain["x"].min() < -1.0


def read(text: str) -> ir.Model:
    return read_model(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> g {text}')
    )


def test_indices_of_both_ends_of_edges_lie_among_all_nodes() -> None:
    model = read(
        "(float[400,400] x, int64[2,900] edges) => (float[900,400] y) <int64 sender = {0}> {"
        "s = Gather (edges, sender)  y = Gather (x, s) }"
    )
    edges = make_inputs(model)["edges"]
    assert 0 <= edges.min() < 8
    assert 392 <= edges.max() < 400


@pytest.mark.parametrize(
    ("text", "name", "wanted"),
    [
        ("(float[2,3] x, int64[3] s) => (float[a,b,c] y) { y = Reshape (x, s) }", "s", [1, 1, -1]),
        ("(float[1,3,8,4] x, int64[4] s) => (float[a,b,c,d] y) { y = Resize (x, , , s) }", "s", [1, 3, 8, 4]),
        (
            "(float[1,3,8,n] x, int64[2] s) => (float[a,b,c,d] y) { y = Resize <axes = [3, 1]> (x, , , s) }",
            "s",
            [224, 3],
        ),
        ("(float[5,2] x, int64[2] s) => (float[5,2] y) { y = ReverseSequence (x, s) }", "s", [5, 5]),
        (
            "(float[2,5] x, int64[2] s) => (float[2,5] y) { y = ReverseSequence <time_axis = 1, batch_axis = 0> (x, s) }",
            "s",
            [5, 5],
        ),
        ("(float[n] x, int64[1] k) => (float[a] y, int64[a] i) { y, i = TopK (x, k) }", "k", [1]),
    ],
)
def test_sizes_and_lengths_fit_the_other_inputs(text: str, name: str, wanted: list[int]) -> None:
    model = read(text)
    assert make_inputs(model)[name].tolist() == wanted
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    session.run(None, make_inputs(model))


@pytest.mark.parametrize(
    ("node", "weight", "wanted"),
    [
        ("MatMul (x, w)", (8, 4), (1, 8)),
        ("MatMul (w, x)", (8, 4), (4, 1)),
        ("Gemm <transB = 1> (x, w)", (8, 4), (1, 4)),
        ("Conv (x, w)", (6, 3, 3, 3), (1, 3, 224, 224)),
        ("Conv <group = 2> (x, w)", (6, 3, 3), (1, 6, 64)),
        ("Add (x, w)", (5, 7), (5, 7)),
    ],
)
def test_an_input_of_unknown_rank_is_what_its_weight_takes(
    node: str, weight: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xy")
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[1] x) => (float[1] y) {{ y = {node} }}'
    )
    proto.graph.input[0].CopyFrom(x)
    proto.graph.output[0].CopyFrom(y)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(weight, np.float32), "w"))
    made = make_inputs(read_model(proto))
    assert made["x"].shape == wanted
    onnxruntime.InferenceSession(proto.SerializeToString()).run(None, made)


def test_lists_and_optionals_are_made_up_and_indices_lie_in_them() -> None:
    model = read("""(seq(float[n, 3]) x, int64 i, optional(float[2]) o) => (float[m, 3] y, float[n, 3] z, float[2] u) {
        y = ConcatFromSequence <axis = 0> (x)
        z = SequenceAt (x, i)
        u = OptionalGetElement (o)
    }""")
    assert str(describe_inputs(model)[0]) == "x: seq(tensor(float))"
    for seed in range(5):
        made = make_inputs(model, seed, {"n": 4})
        assert {item.shape for item in made["x"]} == {(4, 3)} and {item.dtype.name for item in made["x"]} == {"float32"}
        assert 0 <= int(made["i"]) < len(made["x"])
        assert made["o"].shape == (2,)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    session.run(None, made)


def test_sizes_of_a_tensor_of_unknown_rank_are_ones() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18]>
        g (float x, int64[2] s) => (float y) { y = Resize <axes = [2, 3]> (x, , , s) }"""
    )
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert make_inputs(read_model(proto))["s"].tolist() == [1, 1]


@pytest.mark.parametrize("depth", ["float {nan}", "float {inf}", "float {0}", "int64 {9223372036854775807}"])
def test_indices_go_with_any_depth(depth: str) -> None:
    kind, number = depth.split()
    model = read(
        f"(int64[3] i) => (float[3, d] y) <{kind} d = {{1}}, float[2] v = {{0, 1}}> {{ y = OneHot (i, d, v) }}"
    )
    value = model.graph.initializers["d"]
    value.const_value = ir.tensor(
        np.array(float(number[1:-1])).astype(kind) if kind == "float" else np.int64(2**63 - 1)
    )
    assert (make_inputs(model)["i"] >= 0).all()


def test_inputs_that_no_machine_holds_are_refused_with_the_remedy() -> None:
    with pytest.raises(UsageError, match=r"(?s)'x'.*\[128, 128, 72057594037927936\].*lengths"):
        make_inputs(read('(float[seq, len, "seq**8"] x) => (float[a, b, c] y) { y = Abs (x) }'))
    with pytest.raises(UsageError, match="too large"):
        make_inputs(read("(float[n, m] x) => (float[a, b] y) { y = Abs (x) }"), dims={"n": 0, "m": 1 << 62})


def test_lengths_are_refused_before_inputs_are_made_up_unless_these_are_given() -> None:
    model = read("(float[n] x) => (float[n] y) { y = Abs (x) }")
    check_lengths(model, {"n": 1 << 31})
    check_lengths(model, {"n": 9999999999999999}, given=["x"])
    with pytest.raises(UsageError, match="too large"):
        check_lengths(model, {"n": 9999999999999999})


def test_large_inputs_are_drawn_piece_by_piece_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = read("(float[9, 5] x, int8[7] i, float16[4] h, float[0] e) => (float[9, 5] y) { y = Abs (x) }")
    for kind in FLOATS:
        monkeypatch.undo()
        whole = make_inputs(model, floats=kind)
        monkeypatch.setattr(_inputs, "_DRAWN_AT_ONCE", 2)
        parts = make_inputs(model, floats=kind)
        assert all(np.array_equal(whole[name], parts[name]) for name in whole)
        assert all(whole[name].dtype == parts[name].dtype for name in whole)


def test_made_up_inputs_take_no_more_memory_than_they_have() -> None:
    model = read("(float[4, 1048576] x, int8[8388608] i) => (float[4, 1048576] y) { y = Abs (x) }")
    tracemalloc.start()
    try:
        made = make_inputs(model)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < sum(value.nbytes for value in made.values()) + (20 << 20)


@pytest.mark.parametrize("rank", [*RANKS, None])
def test_a_rank_is_tried_where_nothing_says_one(rank: int | None) -> None:
    text = (
        """<ir_version: 10, opset_import: ["": 17]> g (float[2, n] k, float x) => (float[2, n] y) { y = Add (k, x) }"""
    )
    proto = onnx.parser.parse_model(text)
    proto.graph.input[1].type.tensor_type.ClearField("shape")
    made = make_inputs(read_model(proto), rank=rank)
    assert made["x"].ndim == (rank or 0) and made["k"].shape == (2, 1)


def test_lengths_of_sequences_are_full_and_probes_shorten_them() -> None:
    text = """<ir_version: 10, opset_import: ["": 17]>
    g (float[5, 2, 3] x, int32[2] n) => (float[1, 2, 1] h) <float[1, 1, 3] w = {1, 2, 3}, float[1, 1, 1] r = {1}> {
        y, h = RNN <hidden_size = 1> (x, w, r, , n)
    }"""
    model = read_model(onnx.parser.parse_model(text))
    made = make_inputs(model)
    assert made["n"].tolist() == [5, 5]
    probing = probe_inputs(model, "zeros", made)
    assert probing is not None and probing["n"].tolist() == [1, 1]
