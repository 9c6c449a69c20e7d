"""Given inputs: what fits, what is said of what does not, and the lengths that they imply."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from collage._errors import InputError
from collage.frontend import check_given, make_inputs, read_model, with_lengths_of

TEXT = """
<ir_version: 10, opset_import: ["": 17]>
g (float[N, seq, 4] x, int64[N, seq] ids, bool[2] flags) => (float[N, seq, 4] y) {
  y = Relu (x)
}
"""


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return read_model(onnx.parser.parse_model(TEXT))


def test_what_fits_comes_back_as_it_is(model: ir.Model) -> None:
    given = {"x": np.zeros((2, 3, 4), np.float32), "ids": np.zeros((2, 3), np.int64)}
    assert all(found is given[name] for name, found in check_given(model, given).items())
    assert check_given(model, {}) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"z": np.zeros(3)}, "unknown input 'z'; the model takes x: float[N, seq, 4]; ids"),
        ({"x": np.zeros((1, 2, 4))}, "'x' is float64, but the model takes x: float[N, seq, 4]"),
        ({"x": np.zeros((1, 2, 5), np.float32)}, "'x' has shape [1, 2, 5]"),
        ({"x": np.zeros((1, 2), np.float32)}, "'x' has shape [1, 2]"),
        ({"flags": [[True], [True, False]]}, "'flags' is not an array: "),
        ({"flags": np.zeros(3, bool)}, "'flags' has shape [3]"),
        (
            {"x": np.zeros((1, 2, 4), np.float32), "ids": np.zeros((1, 3), np.int64)},
            "'ids' has shape [1, 3], but the model takes ids: int64[N, seq] where N=1, seq=2",
        ),
        ({"x": "a text"}, "'x' is <U6"),
    ],
)
def test_what_does_not_fit_is_named(model: ir.Model, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        check_given(model, given)
    assert said in str(caught.value)


def test_made_up_inputs_go_with_the_lengths_of_given_ones(model: ir.Model) -> None:
    given = {"x": np.zeros((2, 37, 4), np.float32)}
    dims = with_lengths_of(model, given, {})
    assert dims == {"N": 2, "seq": 37}
    assert make_inputs(model, 0, dims)["ids"].shape == (2, 37)


def test_lengths_that_contradict_are_refused_and_several_stand(model: ir.Model) -> None:
    given = {"x": np.zeros((2, 37, 4), np.float32)}
    with pytest.raises(InputError, match="'seq' is 37 in the given inputs, and 64 was requested"):
        with_lengths_of(model, given, {"seq": 64})
    assert with_lengths_of(model, given, {"seq": {16: 3, 64: 1}}) == {"N": 2, "seq": {16: 3, 64: 1}}


def test_lists_and_optionals_are_checked_item_by_item() -> None:
    text = """<ir_version: 10, opset_import: ["": 17]>
    g (seq(float[n, 2]) s, optional(float[2]) o) => (float[m, 2] y, bool z) {
        y = ConcatFromSequence <axis = 0> (s)
        z = OptionalHasElement (o)
    }"""
    model = read_model(onnx.parser.parse_model(text))
    items = [np.zeros((1, 2), np.float32), np.zeros((5, 2), np.float32)]
    given = check_given(model, {"s": tuple(items), "o": None})
    assert all(found is item for found, item in zip(given["s"], items, strict=True)) and given["o"] is None
    assert with_lengths_of(model, given, {}) == {}
    for wrong, said in (
        (items[0], "'s' is not a list of tensors, but the model takes s: seq(tensor(float))"),
        ([np.zeros((1, 2))], "'s' is float64"),
        ([np.zeros(2, np.float32)], "'s' has shape [2]"),
        (None, "'s' is not a list of tensors"),
    ):
        with pytest.raises(InputError) as caught:
            check_given(model, {"s": wrong})
        assert said in str(caught.value)
