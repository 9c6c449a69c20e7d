"""Shapes that cannot fit, found without running anything."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.frontend import read_model, shape_misfit

HEADER = '<ir_version: 10, opset_import: ["": 20, "com.acme": 1]> '


def misfit(text: str, **shapes: list[int]) -> str | None:
    return shape_misfit(read_model(onnx.parser.parse_model(HEADER + text)), shapes)


def test_the_sentence_names_the_node_and_both_shapes() -> None:
    said = misfit("g (float[2,9] a, float[8,4] b) => (float[2,4] y) { [mm] y = MatMul(a, b) }")
    assert said is not None
    assert "node 'mm' (MatMul)" in said and "a [2, 9] and b [8, 4]" in said
    assert "\n" not in said


def test_symbols_are_told_by_name() -> None:
    said = misfit("g (float[N,9] a, float[8,4] b) => (float[N,4] y) { [mm] y = MatMul(a, b) }")
    assert said is not None and "a [N, 9]" in said


def test_symbols_may_fit_and_given_lengths_may_not() -> None:
    text = "g (float[N,K] a, float[M,L] b) => (float[N,L] y) { [mm] y = MatMul(a, b) }"
    assert misfit(text) is None
    assert misfit(text, a=[2, 8], b=[8, 4]) is None
    said = misfit(text, a=[2, 9], b=[8, 4])
    assert said is not None and "a [2, 9] and b [8, 4]" in said


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,9] a) => (float[3,3] y) { [r] y = Relu(a) }",  # A claim about an output that is not kept.
        "g (float[2,9] a) => (float[2,9] y) { [f] y = com.acme.Foo(a) }",  # An operator that nobody knows.
        "g (float[2,9] a, float[1,9] b) => (float[2,9] y) { [s] y = Add(a, b) }",
        "g (float[2,9] a) => (float[N] y) { [f] y = Flatten <axis = 0> (a) }",
    ],
)
def test_nothing_is_said_of_what_may_run(text: str) -> None:
    assert misfit(text) is None


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_products_are_refused_just_where_the_inner_lengths_differ(lengths: list[int]) -> None:
    n, k, m, l = lengths  # noqa: E741
    text = f"g (float[{n},{k}] a, float[{m},{l}] b) => (float[{n},{l}] y) {{ [mm] y = MatMul(a, b) }}"
    assert (misfit(text) is None) == (k == m)
