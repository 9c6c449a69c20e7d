"""Variations of given inputs: of the same shapes and types, near what was given, and valid."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from collage.frontend import read_model, similar_inputs
from collage.transform import prepare


def model_of(text: str) -> ir.Model:
    return prepare(read_model(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')))


IMAGE = model_of("g (float[1, 3, 4, 5] x) => (float[1, 3, 4, 5] y) { y = Relu (x) }")
PICTURE = model_of("g (uint8[N, 4, 5] x) => (float[N, 4, 5] y) { y = Cast <to=1> (x) }")
TOKENS = model_of(
    """g (int64[1, T] ids, int64[1, T] attention_mask) => (float[1, T, 2] y) <float[9, 2] table = {
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}> {
      rows = Gather (table, ids)
      axes = Constant <value_ints=[2]> ()
      mask = Cast <to=1> (attention_mask)
      wide = Unsqueeze (mask, axes)
      y = Mul (rows, wide)
    }"""
)


def test_floats_stay_near_what_was_given_and_inside_its_range() -> None:
    given = {"x": np.random.default_rng(0).uniform(-1, 1, (1, 3, 4, 5)).astype(np.float32)}
    first, second = (similar_inputs(IMAGE, given, seed)["x"] for seed in (1, 2))
    assert first.dtype == np.float32 and not np.array_equal(first, given["x"]) and not np.array_equal(first, second)
    assert np.array_equal(first, similar_inputs(IMAGE, given, 1)["x"])
    np.testing.assert_allclose(first, given["x"], rtol=0.11)
    assert given["x"].min() <= first.min() and first.max() <= given["x"].max()


@pytest.mark.parametrize("value", [0.0, -np.inf, np.nan, float(np.finfo(np.float32).max)])
def test_zeros_and_numbers_that_are_not_finite_stay(value: float) -> None:
    given = {"x": np.full((1, 3, 4, 5), value, np.float32)}
    np.testing.assert_array_equal(similar_inputs(IMAGE, given, 1)["x"], given["x"])


def test_bytes_stay_bytes() -> None:
    given = {"x": np.arange(40, dtype=np.uint8).reshape(2, 4, 5) * 6}
    found = similar_inputs(PICTURE, given, 1)["x"]
    assert found.dtype == np.uint8 and not np.array_equal(found, given["x"])
    assert np.abs(found.astype(int) - given["x"]).max() <= 25


def test_tokens_move_and_masks_stay() -> None:
    given: dict[str, Any] = {"ids": np.arange(8)[None], "attention_mask": np.array([[1, 1, 1, 1, 1, 1, 0, 0]])}
    found = [similar_inputs(TOKENS, given, seed) for seed in range(20)]
    assert all(sorted(each["ids"][0]) == [*range(8)] for each in found)
    assert len({tuple(each["ids"][0]) for each in found}) > 4
    assert all(np.array_equal(each["attention_mask"], given["attention_mask"]) for each in found)


def test_a_list_of_tensors_stays_a_list() -> None:
    model = model_of("g (seq(float[N]) s) => (float[M] y) { y = ConcatFromSequence <axis=0> (s) }")
    given = {"s": [np.ones(3, np.float32), np.array([1, 2], np.float32)]}
    found = similar_inputs(model, given, 1)["s"]
    assert [each.shape for each in found] == [(3,), (2,)]
