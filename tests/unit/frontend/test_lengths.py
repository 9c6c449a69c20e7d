"""Other lengths than those at hand, consistently over all inputs; and inputs cut to them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage._errors import UsageError
from collage.frontend import bind_dims, cut, describe_inputs, fix_lengths, other_lengths, single_lengths


def model(**shapes: list[int | str | None]) -> ir.Model:
    inputs = [ir.val(name, ir.DataType.INT64, shape) for name, shape in shapes.items()]
    return ir.Model(ir.Graph(inputs, inputs[:1], nodes=[], opset_imports={"": 20}), ir_version=10)


def test_lengths_that_are_fixed_are_no_symbols_any_more() -> None:
    fixed = fix_lengths(model(x=["batch", "seq", 8], mask=["batch", "past + seq"]), {"batch": 2, "seq": 1})
    assert [spec.shape for spec in describe_inputs(fixed)] == [(2, 1, 8), (2, "past + 1")]
    assert bind_dims(fixed, {"past": 5})["mask"] == (2, 6)
    assert [spec.shape for spec in describe_inputs(fix_lengths(fixed, {"past": 4}))] == [(2, 1, 8), (2, 5)]


def test_products_and_dimensions_without_names_are_fixed_too() -> None:
    fixed = fix_lengths(model(x=[None, "2*n + m*n", None]), {"n": 3, "m": 4, "x[2]": 7})
    assert [spec.shape for spec in describe_inputs(fixed)] == [(None, 18, 7)]


def test_what_is_not_named_stays_open() -> None:
    asked = model(x=["n", "seq_len", None], y=["length"])
    assert [spec.shape for spec in describe_inputs(fix_lengths(asked, {}))] == [("n", "seq_len", None), ("length",)]
    assert [spec.shape for spec in describe_inputs(fix_lengths(asked, {"n": 1}))] == [(1, "seq_len", None), ("length",)]


@pytest.mark.parametrize("lengths", [{"sequence": 3}, {"n": -1}, {"x[9]": 3}])
def test_lengths_that_the_model_does_not_have_are_refused(lengths: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        fix_lengths(model(x=["n", "seq"]), lengths)


def test_inner_values_lose_what_depends_on_a_length_that_is_fixed() -> None:
    asked = model(x=["n", "m"])
    x = asked.graph.inputs[0]
    y = ir.val("y", ir.DataType.INT64, ["n", "n*m", "floor(m/2)", "m"])
    asked.graph.append(ir.Node("", "Anything", [x], outputs=[y]))
    fix_lengths(asked, {"n": 2})
    assert [dim if isinstance(dim, int) else dim.value for dim in y.shape or ()] == [2, None, "floor(m/2)", "m"]
    fix_lengths(asked, {"m": 3})
    assert [dim if isinstance(dim, int) else dim.value for dim in y.shape or ()] == [2, None, 1, 3]


def shapes_of(
    asked: ir.Model, inputs: Mapping[str, np.ndarray], longer: bool = True
) -> list[dict[str, tuple[int, ...]]]:
    return [bind_dims(asked, lengths) for lengths in other_lengths(asked, inputs, longer=longer)]


def test_fixed_shapes_have_no_other_lengths() -> None:
    assert shapes_of(model(x=[2, 8]), {"x": np.zeros((2, 8))}) == []


def test_first_all_lengths_change_then_some() -> None:
    x = np.zeros((1, 128))
    assert [lengths["x"] for lengths in shapes_of(model(x=["batch", "seq"]), {"x": x})] == [
        *((2, 96), (2, 64), (1, 64), (2, 128), (2, 160))
    ]
    assert [lengths["x"] for lengths in shapes_of(model(x=["batch", "seq"]), {"x": x}, longer=False)] == [
        *((1, 96), (1, 64))
    ]


def test_all_dimensions_of_one_element_are_a_case_of_their_own() -> None:
    asked, x = model(x=["batch", "seq", 8]), np.zeros((3, 2, 8))
    assert single_lengths(asked, {"x": x}) == {"batch": 1, "seq": 1}
    assert (1, 1, 8) not in [lengths["x"] for lengths in shapes_of(asked, {"x": x})]
    assert single_lengths(asked, {"x": np.zeros((1, 0, 8))}) is None
    assert single_lengths(model(x=[2, 8]), {"x": np.zeros((2, 8))}) is None


def test_a_length_that_is_the_sum_of_two_stays_their_sum() -> None:
    asked = model(ids=["batch", "new"], past=["batch", "old", 4], mask=["batch", "all"])
    inputs = {"ids": np.zeros((1, 1)), "past": np.zeros((1, 128, 4)), "mask": np.ones((1, 129))}
    tried = shapes_of(asked, inputs)
    assert tried[0] == {"ids": (2, 2), "past": (2, 96, 4), "mask": (2, 98)}
    assert {"ids": (2, 2), "past": (2, 96, 4), "mask": (2, 97)} in tried
    assert single_lengths(asked, inputs) == {"batch": 1, "new": 1, "old": 1, "all": 2}


def test_one_symbol_has_one_length_and_sums_follow() -> None:
    asked = model(ids=["batch", "seq"], past=["batch", "past", 4], mask=["batch", "past + seq"])
    inputs = {"ids": np.zeros((1, 8)), "past": np.zeros((1, 0, 4)), "mask": np.ones((1, 8))}
    assert shapes_of(asked, inputs)[0] == {"ids": (2, 6), "past": (2, 3, 4), "mask": (2, 9)}


def test_dimensions_without_a_name_change_too() -> None:
    assert shapes_of(model(x=[None, 3, "w"]), {"x": np.zeros((4, 3, 8))})[0] == {"x": (3, 3, 6)}


def test_unknown_ranks_are_left_alone() -> None:
    unknown = ir.Value(name="x", type=ir.TensorType(ir.DataType.INT64))
    asked = ir.Model(ir.Graph([unknown], [unknown], nodes=[], opset_imports={"": 20}), ir_version=10)
    assert shapes_of(asked, {"x": np.zeros((2, 3))}) == []


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=3), longer=st.booleans())
def test_no_two_are_alike_and_none_is_the_first(lengths: list[int], longer: bool) -> None:
    asked = model(x=[f"n{i}" for i in range(len(lengths))])
    found = [shapes["x"] for shapes in shapes_of(asked, {"x": np.zeros(lengths)}, longer)]
    assert len({tuple(lengths), *found}) == 1 + len(found)
    if longer:
        assert found
    else:
        assert all(new <= old for shape in found for new, old in zip(shape, lengths, strict=True))


def test_values_are_cut_short_or_begin_again() -> None:
    assert cut(np.arange(8), (6,)).tolist() == [0, 1, 2, 3, 4, 5]
    assert cut(np.array(["red", "blue"], dtype=object), (3,)).tolist() == ["red", "blue", "red"]
    assert cut(np.array([[1, 2]]), (2, 1)).tolist() == [[1], [1]]
    assert cut(np.zeros((0, 2), np.float32), (3, 2)).tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(2, 0), (2, 3)])
def test_types_stay(dtype: type, shape: tuple[int, ...]) -> None:
    assert cut(np.zeros(shape, dtype), (1, 4)).dtype == dtype
