"""The store of values: inputs that are no tensors come back as they were put, and are no members."""

from __future__ import annotations

from pathlib import Path

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


def test_what_is_read_is_a_copy(tmp_path: Path) -> None:
    store = ValueStore(tmp_path)
    store.put_input("x", [np.float32([1])])
    store.input("x")[0][:] = 5
    assert store.input("x")[0] == 1
