from __future__ import annotations

import math
import re

import numpy as np
import onnx_ir as ir
import pytest

from collage._errors import NothingCanRun
from collage.frontend import free_dimensions
from collage.measure import guessed_lengths
from collage.measure.guessed_lengths import capture_at_some_lengths, lengths_of_weights, other_guesses
from collage.measure.reference_run import MadeUp, UntakenInputs


def model_of(inputs: str) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 9, opset_import: ["": 17]> g ({inputs}) => (float[m] z) {{ z = Relu (x) }}')


def with_zeros(text: str) -> str:
    """Return the text of a graph whose constants, declared after the outputs, have values."""

    def zeros(found: re.Match[str]) -> str:
        return f"{found[0]} = {{{', '.join(['0'] * math.prod(map(int, found[1].split(','))))}}}"

    head, declares, rest = text.partition(") <")
    constants, end, body = rest.partition("> ")
    return head + declares + re.sub(r"float\[([\d, ]+)\] \w+", zeros, constants) + end + body


def nameless(**shapes: list[int | str | None]) -> ir.Model:
    model = model_of("float[1] x")
    model.graph.inputs[:] = [
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        for name, shape in shapes.items()
    ]
    return model


def test_free_dimensions_are_called_as_the_option_calls_them() -> None:
    model = nameless(x=[None, "seq", 3], y=["seq + 1", None])
    assert free_dimensions(model, (), ()) == {"x[0]": 1, "seq": 128, "y[1]": 128}
    assert free_dimensions(model, ("seq",), ("y",)) == {"x[0]": 1}


def test_batches_are_not_guessed_and_each_dimension_alone_is() -> None:
    guesses = list(other_guesses(nameless(x=["n", None], state=[2, "n", None]), (), ()))
    assert {name for guess in guesses for name in guess} == {"x[1]", "state[2]"}
    assert guesses[0] == {"x[1]": 1, "state[2]": 1}
    assert {"x[1]": 256, "state[2]": 256} in guesses
    assert {"x[1]": 256, "state[2]": 1} in guesses and {"x[1]": 1, "state[2]": 256} in guesses


def test_few_dimensions_are_tried_before_all_of_them() -> None:
    guesses = [guess for guess in other_guesses(nameless(x=["n", "c", "h"]), (), ()) if 256 in guess.values()]
    large, small = (
        [{"c": 256}, {"h": 256}, {"c": 256, "h": 256}],
        [{"c": 256}, {"c": 1, "h": 256}, {"c": 256, "h": 256}],
    )
    assert guesses == [*large, *small]


def test_pictures_of_lines_of_text_are_tried_at_their_usual_heights_first() -> None:
    guesses = list(other_guesses(nameless(x=[None, 3, None, "w"], mask=["n", "w"]), (), ()))
    assert guesses[:4] == [{"x[2]": 48}, {"x[2]": 32}, {"x[2]": 64}, {"x[2]": 1}]
    cache = list(other_guesses(nameless(past=["n", 8, None, 64]), (), ()))
    assert cache[0] == {"past[2]": 1}


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("float[n, c, t] x) => (float[n, k, u] y) <float[4, 3, 1] w> { y = Conv <group = 2> (x, w) }", {"c": 6}),
        ("float[n, c, t] x) => (float[n, k, u] y) <float[4, 3, 1] w> { y = ConvTranspose (x, w) }", {"c": 4}),
        ("float[t, b, f] x) => (float[t, d, b, h] y) <float[1, 8, 3] w, float[1, 8, 2] r> "
         "{ y = LSTM <hidden_size = 2> (x, w, r) }", {"f": 3}),
        ("float[n, f] x) => (float[n, k] y) <float[4, 3] w> { y = Gemm <transB = 1> (x, w) }", {"f": 3}),
        ("float[f, n] x) => (float[n, k] y) <float[3, 4] w> { y = Gemm <transA = 1> (x, w) }", {"f": 3}),
        ("float[n, t, f] x) => (float[n, t, k] y) <float[3, 4] w> { y = MatMul (x, w) }", {"f": 3}),
        ("float[n, f, t] x) => (float[n, k, t] y) <float[3, 4] w> { y = MatMul (w, x) }", {"f": 4}),
        ("float[n, c, h] x) => (float[n, c, h] y) <float[5] s> { y = BatchNormalization (x, s, s, s, s) }", {"c": 5}),
        ("float[n, c, h, w] x) => (float[n, d, a, b] y) { y = DepthToSpace <blocksize = 3> (x) }", {"c": 9}),
        ("float[n, h, c] x) => (float[n, k, u] y) <float[4, 3, 1] w> "
         "{ a = Relu (x) b = Transpose <perm = [0, 2, 1]> (a) y = Conv (b, w) }", {"c": 3}),
        ("float[n, c, t] x) => (float[n, k, u] y) <float[4, 3, 1] w> { a = Add (x, x) y = Conv (a, w) }", {}),
        ("float[n, 6, t] x) => (float[n, k, u] y) <float[4, 6, 1] w> { y = Conv (x, w) }", {}),
    ],
)  # fmt: skip
def test_lengths_follow_from_weights(text: str, lengths: dict[str, int]) -> None:
    model = ir.from_onnx_text(f'<ir_version: 9, opset_import: ["": 17]> g ({with_zeros(text)}')
    assert lengths_of_weights(model) == lengths
    assert next(iter(other_guesses(model, (), ()))) == lengths or not lengths


def test_a_leading_dimension_is_guessed_where_there_is_no_other() -> None:
    assert {"n": 256} in list(other_guesses(nameless(x=["n", 8]), (), ()))
    assert {"n": 256} in list(other_guesses(nameless(x=["n"]), (), ()))
    assert list(other_guesses(nameless(x=[4, 8]), (), ())) == []


@pytest.fixture
def takes(monkeypatch):
    """Make a model take one length of ``n`` only."""
    asked = []

    def only(right: int):
        def capture(model, session, dims, given, *, seed):
            asked.append(dict(dims))
            if dims.get("n", 128) != right:
                raise UntakenInputs("no")
            return MadeUp(lambda lengths: {}, {}, "normal")

        monkeypatch.setattr(guessed_lengths, "capture_made_up", capture)
        return asked

    return only


def test_the_length_that_a_model_takes_is_found_and_others_stay(takes) -> None:
    takes(512)
    _, dims = capture_at_some_lengths(nameless(x=["b", "n"]), None, {"b": 3}, {}, seed=0)
    assert dims == {"b": 3, "n": 512}


def test_no_length_of_the_users_is_replaced(takes) -> None:
    asked = takes(512)
    with pytest.raises(UntakenInputs):
        capture_at_some_lengths(nameless(x=["b", "n"]), None, {"n": 4, "b": 1}, {}, seed=0)
    with pytest.raises(NothingCanRun):
        capture_at_some_lengths(nameless(x=["b", "n"]), None, {"n": 4}, {"x": np.zeros((1, 4))}, seed=0)
    assert all(dims["n"] == 4 for dims in asked)


def test_guessing_ends(takes, monkeypatch) -> None:
    monkeypatch.setattr(guessed_lengths, "_MOST_GUESSING_S", -1.0)
    asked = takes(512)
    with pytest.raises(UntakenInputs):
        capture_at_some_lengths(nameless(x=["b", "n"]), None, {}, {}, seed=0)
    assert asked == [{}]
