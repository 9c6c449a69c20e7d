"""Dimensions as expressions of others, against Python's own arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from collage._expressions import evaluate, length_of_symbol, polynomial, substituted, symbols_of
from collage.frontend import bind_dims, fix_lengths, with_lengths_of


def model(**inputs: list[int | str | None]) -> ir.Model:
    values = [ir.val(name, ir.DataType.FLOAT, shape) for name, shape in inputs.items()]
    return ir.Model(ir.Graph(values, [], nodes=[], opset_imports={"": 18}), ir_version=10)


@pytest.mark.parametrize(
    "name", ["batch-size", "batch size", "dim-1", "N/A", "f(x)", "x-", "-", "+", "", "?", "a b + 1", "(s", "s)", "s**9"]
)
def test_other_texts_are_names(name: str) -> None:
    assert symbols_of(name) == (name,)
    assert evaluate(name, {name: 7}.__getitem__) == 7
    assert bind_dims(model(x=[name]), {name: 3}) == {"x": (3,)}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("s0 - 1", 6),
        ("2*s0 - 1", 13),
        ("-1 + s0", 6),
        ("10 - s0", 3),
        ("floor(s0/2) + 1", 4),
        ("ceiling(s0/2)", 4),
        ("(s0 + 2)//2", 4),
        ("Max(1, s0 - 9)", 1),
        ("Min(3, s0)", 3),
        ("s0**2", 49),
        ("s0/2", None),
        ("s0 - 8", None),
        ("s0/0", None),
        ("((((s0**8)**8)**8)**8)**8", None),
    ],
)
def test_what_exporters_write_is_computed(text: str, wanted: int | None) -> None:
    assert symbols_of(text) == ("s0",)
    assert evaluate(text, {"s0": 7}.__getitem__) == wanted


Computed = tuple[str, Callable[[dict[str, int]], int]]
_OPERATORS = {" + ": operator.add, " - ": operator.sub, "*": operator.mul}


def _symbol(name: str) -> Computed:
    return name, lambda lengths: lengths[name]


def _number(number: int) -> Computed:
    return str(number), lambda _: number


def _joined(left: Computed, sign: str, right: Computed) -> Computed:
    return f"({left[0]}{sign}{right[0]})", lambda lengths: _OPERATORS[sign](left[1](lengths), right[1](lengths))


def _third(inner: Computed) -> Computed:
    return f"floor({inner[0]}/3)", lambda lengths: inner[1](lengths) // 3


_LEAVES = st.one_of(st.sampled_from(["a", "b.c", "d-e"]).map(_symbol), st.integers(0, 20).map(_number))
_EXPRESSIONS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(sorted(_OPERATORS)), inner).map(lambda parts: _joined(*parts)),
        inner.map(_third),
    ),
    max_leaves=12,
)


@given(_EXPRESSIONS, st.fixed_dictionaries(dict.fromkeys(("a", "b.c", "d-e"), st.integers(0, 20))))
def test_expressions_mean_what_they_were_made_of(made: Computed, lengths: dict[str, int]) -> None:
    text, compute = made
    wanted = compute(lengths) if compute(lengths) >= 0 else None
    assert evaluate(text, lengths.__getitem__) == wanted
    left = substituted(text, {"a": lengths["a"]})
    assert left == text or (left if isinstance(left, int) else evaluate(left, lengths.__getitem__)) == wanted


def test_hostile_texts_are_names() -> None:
    for text in ("(" * 400 + "s" + ")" * 400, "s + " * 5000 + "s", "9" * 5000, "floor(" * 100):
        assert symbols_of(text) == (text,)


@given(st.integers(1, 9), st.integers(0, 20), st.integers(0, 50))
def test_the_symbol_of_a_linear_expression_follows_from_its_length(factor: int, offset: int, length: int) -> None:
    text = f"{factor}*s0 - {offset}"
    found = factor * length - offset
    if found >= 0:
        assert length_of_symbol(text, found) == ("s0", length)
    assert length_of_symbol("floor(s0/2)", 3) is None


def test_made_up_lengths_fit_each_other() -> None:
    shapes = bind_dims(model(a=["s0", 4], b=["s0 - 3", 4], c=["2*s0 - 1"]))
    assert shapes["b"][0] == shapes["a"][0] - 3 >= 1
    assert shapes["c"][0] == 2 * shapes["a"][0] - 1
    assert bind_dims(model(a=["seq/3"])) == {"a": (43,)}
    assert bind_dims(model(a=["past", 4], b=["past*2"])) == {"a": (128, 4), "b": (256,)}


def test_one_given_length_is_enough() -> None:
    asked = model(a=["s0", 4], b=["s0 - 1", 4], c=[3, "2*s0 - 1"])
    wanted = {"a": (5, 4), "b": (4, 4), "c": (3, 9)}
    assert bind_dims(asked, {"s0": 5}) == wanted
    assert bind_dims(asked, {"2*s0 - 1": 9}) == wanted
    assert with_lengths_of(asked, {"c": np.zeros((3, 9))}, {}) == {"s0": 5}
    assert bind_dims(fix_lengths(asked, {"s0": 5})) == wanted
    assert [list(value.shape or ()) for value in asked.graph.inputs] == [[5, 4], [4, 4], [3, 9]]


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        ("a", "a"),
        ("a + b", "a + b"),
        ("2*a - (b - 1)/2", "2*a - b/2 + 1/2"),
        ("(a + b)*a", "a**2 + a*b"),
        ("a**2", None),
        ("floor(a/2)", None),
        ("max(a, b)", None),
        ("c + 1", None),
        ("batch-size", None),
    ],
)
def test_polynomials(dim: str, expected: str | None) -> None:
    symbols = {name: sympy.Symbol(name, integer=True, nonnegative=True) for name in "ab"}
    found = polynomial(dim, symbols)
    assert (None if found is None else str(sympy.expand(found))) == expected
