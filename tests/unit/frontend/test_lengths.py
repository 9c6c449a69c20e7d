"""Inputs of other lengths are made of those at hand, consistently over all inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.frontend import at_other_lengths


def model(**shapes: list[int | str | None]) -> ir.Model:
    inputs = [ir.val(name, ir.DataType.INT64, shape) for name, shape in shapes.items()]
    return ir.Model(ir.Graph(inputs, inputs[:1], nodes=[], opset_imports={"": 20}), ir_version=10)


def shapes_of(
    asked: ir.Model, inputs: Mapping[str, np.ndarray], dims: Mapping[str, int] | None = None, longer: bool = True
) -> list[dict[str, tuple[int, ...]]]:
    found = at_other_lengths(asked, inputs, dims or {}, longer=longer)
    return [{name: value.shape for name, value in changed.items()} for changed in found]


def test_fixed_shapes_have_no_other_lengths() -> None:
    assert shapes_of(model(x=[2, 8]), {"x": np.zeros((2, 8))}) == []


def test_first_all_lengths_change_then_some() -> None:
    x = np.zeros((1, 128))
    assert shapes_of(model(x=["batch", "seq"]), {"x": x}) == [
        {"x": (2, 96)},
        {"x": (2, 64)},
        {"x": (1, 64)},
        {"x": (2, 128)},
    ]
    assert shapes_of(model(x=["batch", "seq"]), {"x": x}, longer=False) == [{"x": (1, 96)}, {"x": (1, 64)}]


def test_one_symbol_has_one_length_and_sums_follow() -> None:
    asked = model(ids=["batch", "seq"], past=["batch", "past", 4], mask=["batch", "past + seq"])
    inputs = {"ids": np.zeros((1, 8)), "past": np.zeros((1, 0, 4)), "mask": np.ones((1, 8))}
    first = shapes_of(asked, inputs)[0]
    assert first == {"ids": (2, 6), "past": (2, 3, 4), "mask": (2, 9)}


def test_a_part_that_stands_nowhere_alone_keeps_what_the_user_says() -> None:
    asked = model(ids=["seq"], mask=["past + seq"])
    inputs = {"ids": np.zeros(8), "mask": np.ones(13)}
    assert shapes_of(asked, inputs, {"past": 5})[0] == {"ids": (6,), "mask": (11,)}


def test_dimensions_without_a_name_change_too() -> None:
    assert shapes_of(model(x=[None, 3, "w"]), {"x": np.zeros((4, 3, 8))})[0] == {"x": (3, 3, 6)}


def test_values_are_cut_short_or_begin_again() -> None:
    asked = model(x=["n"], y=["m"])
    inputs = {"x": np.arange(8), "y": np.array(["red"], dtype=object)}
    first = next(iter(at_other_lengths(asked, inputs, {})))
    assert first["x"].tolist() == [0, 1, 2, 3, 4, 5]
    assert first["y"].tolist() == ["red", "red"]


def test_unknown_ranks_are_left_alone() -> None:
    unknown = ir.Value(name="x", type=ir.TensorType(ir.DataType.INT64))
    asked = ir.Model(ir.Graph([unknown], [unknown], nodes=[], opset_imports={"": 20}), ir_version=10)
    assert shapes_of(asked, {"x": np.zeros((2, 3))}) == []


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=3), longer=st.booleans())
def test_no_two_are_alike_and_none_is_the_first(lengths: list[int], longer: bool) -> None:
    asked = model(x=[f"n{i}" for i in range(len(lengths))])
    found = shapes_of(asked, {"x": np.zeros(lengths)}, longer=longer)
    shapes = [tuple(lengths), *(changed["x"] for changed in found)]
    assert len(set(shapes)) == len(shapes)
    if longer:
        assert found
    else:
        assert all(new <= old for shape in shapes for new, old in zip(shape, lengths, strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_types_stay(dtype: type) -> None:
    for changed in at_other_lengths(model(x=["n", "past"]), {"x": np.zeros((2, 0), dtype)}, {}):
        assert changed["x"].dtype == dtype
