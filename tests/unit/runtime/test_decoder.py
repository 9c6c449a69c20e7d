"""Decoders: which models are some, and what they are fed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from collage.runtime import Port
from collage.runtime._decoder import decoder_of, token_symbol, with_empty_past, with_length_0


def port(name: str, dtype: str, *shape: Any) -> Port:
    return Port(name, dtype, shape)


def test_a_decoder_is_fed_its_own_caches() -> None:
    inputs = [
        port("input_ids", "int64", "batch", "seq"),
        port("attention_mask", "int64", "batch", "past + seq"),
        port("position_ids", "int32", "batch", "seq"),
        port("past_key_values.0.key", "float32", "batch", 2, "past", 4),
    ]
    decoder = decoder_of(
        inputs, [port("logits", "float32", 1, "seq", 9), port("present.0.key", "float32", 1, 2, "t", 4)]
    )
    assert decoder is not None
    first = decoder.feeds(3, 0)
    assert {name: x.shape for name, x in first.items()} == {
        "input_ids": (1, 3),
        "attention_mask": (1, 3),
        "position_ids": (1, 3),
        "past_key_values.0.key": (1, 2, 0, 4),
    }
    cache = np.ones((1, 2, 3, 4), np.float32)
    step = decoder.feeds(1, 3, {"present.0.key": cache})
    assert step["attention_mask"].tolist() == [[1, 1, 1, 1]] and step["position_ids"].tolist() == [[3]]
    assert step["position_ids"].dtype == np.int32 and step["past_key_values.0.key"] is cache


@pytest.mark.parametrize(
    "inputs",
    [
        [port("tokens", "int64", 1, 8)],
        [port("past_key_values.0.key", "float32", 1, "past", 4)],
        [port("x", "float32", 1, "seq"), port("past.0.key", "float32", 1, "past", 4)],
        [port("a_ids", "int64", 1, "s"), port("b_ids", "int64", 1, "s"), port("past.0.key", "float32", 1, "past", 4)],
        [
            port("ids", "int64", 1, "s"),
            port("mask", "float32", 1, 1, "s", "t"),
            port("past.0.key", "float32", 1, "p", 4),
        ],
    ],
)
def test_other_models_are_none(inputs: list[Port]) -> None:
    assert decoder_of(inputs, [port("present.0.key", "float32", 1, "t", 4)]) is None


def test_tokens_alone_begin_a_text() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (int64[batch, seq] input_ids, int64[batch, seq] position_ids, int64[batch, total] attention_mask,
       float[batch, 2, past, 4] past_key_values_0) => (float[batch, 2, past, 4] present_0)
    { present_0 = Identity (past_key_values_0) }"""
    model, tokens = ir.from_onnx_text(text), np.array([[5, 6, 7]])
    found = with_empty_past(model, {"input_ids": tokens})
    assert found is not None and found["input_ids"] is tokens
    assert found["position_ids"].tolist() == [[0, 1, 2]] and found["attention_mask"].tolist() == [[1, 1, 1]]
    assert found["past_key_values_0"].shape == (1, 2, 0, 4)
    assert with_empty_past(model, {"input_ids": np.zeros((2, 3), int)}) is None
    assert with_empty_past(model, found) is None
    assert token_symbol(model) == "seq"


def test_texts_begin_with_an_empty_past() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (int64[1, seq] input_ids, float[1, 2, past, 4] past_key_values_0) => (float[1, 2, past, 4] present_0)
    { present_0 = Identity (past_key_values_0) }"""
    model = ir.from_onnx_text(text)
    assert with_length_0(model, {}) == {"past": {128: 128.0, 0: 1.0}}
    assert with_length_0(model, {"past": 9, "seq": 2}) == {"past": {9: 9.0, 0: 1.0}, "seq": 2}
    assert with_length_0(model, {"past": {8: 6.0, 0: 3.0}}) == {"past": {8: 6.0, 0: 3.0}}
    other = ir.from_onnx_text(text.replace("past_key_values_0", "x"))
    assert with_length_0(other, {"past": 9}) == {"past": 9}
