"""The store of values: inputs that are no tensors come back as they were put, and are no members."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from collage.numerics.value_store import ValueStore


def test_lists_and_absent_optionals_come_back_in_another_process(tmp_path: Path) -> None:
    store = ValueStore(tmp_path)
    items = [np.float32([[1, 2]]), np.zeros((0, 3), np.int64), np.array(["a", "é"], object)]
    for name, value in {"list": items, "none": None, "empty": [], "x": np.float32([1])}.items():
        store.put_input(name, value)
    store.flush()
    found = ValueStore(tmp_path)
    assert list(found) == ["x"]
    assert all(map(found.holds_input, ("list", "none", "empty", "x"))) and not found.holds_input("y")
    assert (found.input("none"), found.input("empty")) == (None, [])
    for got, wanted in zip(found.input("list"), items, strict=True):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(got, wanted)
    with pytest.raises(KeyError):
        found.input("y")


def test_bytes_are_texts_and_orders_of_bytes_do_not_change_numbers(tmp_path: Path) -> None:
    store = ValueStore(tmp_path)
    for texts in (np.array([b"a", "é".encode()]), np.array([b"a", "é"], object)):
        store.put("texts", texts)
        assert store.get("texts").tolist() == ["a", "é"]
    for dtype in (">f4", "<f4", ">i8", ">c8", ml_dtypes.bfloat16, ml_dtypes.int4):
        store.put("x", np.array([[1, 2]], dtype))
        assert store.get("x").tolist() == [[1, 2]]
    store.put("x", np.dtype(">i8").type(3))
    assert store.get("x") == 3


def test_what_is_read_is_a_copy(tmp_path: Path) -> None:
    store = ValueStore(tmp_path)
    store.put_input("x", [np.float32([1])])
    store.input("x")[0][:] = 5
    assert store.input("x")[0] == 1
