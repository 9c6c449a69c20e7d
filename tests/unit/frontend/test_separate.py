"""One symbol for two lengths: dimensions that turn out to differ are told apart."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from collage._errors import UsageError
from collage.frontend import check_given, describe_inputs, fix_lengths, separate_lengths, with_lengths_of

CARELESS = """
<ir_version: 10, opset_import: ["" : 20]>
careless (float[N, 2] a, float[N, 2] b, float[M] c) => (float[N, 2] y, float[M] z)
<float[N, 2] r, float[N] unused> {
    r = Relu (b)
    y = Concat <axis = 0> (a, r)
    z = Relu (c)
}"""


def shapes(model: ir.Model) -> dict[str, tuple[int | str | None, ...] | None]:
    return {spec.name: spec.shape for spec in describe_inputs(model)}


def given(a: int, b: int) -> dict[str, np.ndarray]:
    return {"a": np.zeros((a, 2), np.float32), "b": np.zeros((b, 2), np.float32)}


def claims(model: ir.Model) -> dict[str, tuple[int | str | None, ...]]:
    values = (value for node in model.graph for value in node.outputs)
    return {str(v.name): tuple(d if isinstance(d, int) else d.value for d in v.shape) for v in values}


def test_given_inputs_that_agree_change_nothing() -> None:
    model = ir.from_onnx_text(CARELESS)
    separate_lengths(model, given(3, 3))
    assert shapes(model) == {"a": ("N", 2), "b": ("N", 2), "c": ("M",)}
    assert claims(model)["r"] == ("N", 2)


def test_the_first_given_input_keeps_the_symbol_and_no_result_claims_it() -> None:
    model = ir.from_onnx_text(CARELESS)
    separate_lengths(model, given(3, 5))
    assert shapes(model) == {"a": ("N", 2), "b": (None, 2), "c": ("M",)}
    assert claims(model) == {"r": (None, 2), "y": (None, 2), "z": ("M",)}
    assert with_lengths_of(model, check_given(model, given(3, 5)), {}) == {"N": 3, "b[0]": 5}


def test_one_dimension_is_named_by_its_place() -> None:
    model = separate_lengths(ir.from_onnx_text(CARELESS), dims={"N": 3, "a[0]": 4})
    assert shapes(model) == {"a": (None, 2), "b": ("N", 2), "c": ("M",)}


def test_a_place_is_fixed_without_its_symbol() -> None:
    model = fix_lengths(ir.from_onnx_text(CARELESS), {"b[0]": 5, "N": 3})
    assert shapes(model) == {"a": (3, 2), "b": (5, 2), "c": ("M",)}
    assert claims(model)["y"] == (None, 2)


def test_expressions_of_a_separated_symbol_are_claimed_no_longer() -> None:
    model = ir.from_onnx_text(CARELESS)
    model.graph.outputs[0].shape = ir.Shape(["2*N", 2])
    separate_lengths(model, given(3, 5))
    assert claims(model)["y"] == (None, 2)


@pytest.mark.parametrize("first", ["c", "a"])
def test_an_expression_that_does_not_hold_is_told_apart(first: str) -> None:
    """Whatever the order of inputs is: decoders take a mask, whose length is a sum, before what is summed."""
    model = ir.from_onnx_text(CARELESS)
    for value in (model.graph.inputs[2], model.graph.outputs[1]):
        value.shape = ir.Shape(["N + 1"])
    if first == "c":
        model.graph.inputs.insert(0, model.graph.inputs.pop())
    fitting = {**given(3, 3), "c": np.zeros(4, np.float32)}
    assert shapes(separate_lengths(model, fitting))["c"] == ("N + 1",)
    separate_lengths(model, {**fitting, "c": np.zeros(6, np.float32)})
    assert shapes(model) == {"a": ("N", 2), "b": ("N", 2), "c": (None,)}
    assert claims(model)["z"] == (None,)


def test_a_place_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no dimension 'b\[7\]'"):
        fix_lengths(ir.from_onnx_text(CARELESS), {"b[7]": 5})


def test_inputs_of_another_rank_separate_nothing() -> None:
    model = separate_lengths(ir.from_onnx_text(CARELESS), {"a": np.zeros((3, 2)), "b": np.zeros(5)})
    assert shapes(model)["b"] == ("N", 2)
