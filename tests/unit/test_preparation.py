"""The passes that are left out of a preparation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from collage.compiler.preparation import Verdict, find_guilty
from collage.measure.original_model import Mismatch
from collage.transform import simplifying_passes

NAMES = simplifying_passes()


@pytest.mark.parametrize("bad", [set(pair) for pair in itertools.combinations_with_replacement(NAMES, 2)])
def test_what_is_left_out_is_enough_and_the_rest_stays(bad: set[str]) -> None:
    tried: list[tuple[str, ...]] = []

    def agrees(left_out: Sequence[str]) -> bool:
        tried.append(tuple(left_out))
        return bad <= set(left_out)

    found = find_guilty(agrees, (), NAMES)
    assert found is not None and bad <= set(found)
    if len(bad) == 1:
        assert set(found) == bad
    else:
        assert found == NAMES[: len(found)] and found[-1] in bad
    assert len(tried) <= 2 * len(NAMES)


def test_nothing_is_found_where_the_model_differs_before_any_pass() -> None:
    assert find_guilty(lambda left_out: False, (), NAMES) is None


def test_passes_that_are_left_out_already_stay_left_out() -> None:
    found = find_guilty(lambda left_out: {NAMES[0], NAMES[2]} <= set(left_out), NAMES[:1], NAMES)
    assert found == (NAMES[2],)


def test_the_passes_of_any_pipeline_can_be_left_out_but_those_that_others_rely_on() -> None:
    assert {"FoldConstant", "SimplifyExpr"} <= set(NAMES) and not {"InferType", "TopologicalSort"} & set(NAMES)
    assert simplifying_passes("prepare, AlterOpLayout, PrintIR{only=Conv}") == (*NAMES, "AlterOpLayout", "PrintIR")
    assert simplifying_passes("InferType, AlterOpLayout") == ("AlterOpLayout",)


def test_a_verdict_names_what_each_pass_changed() -> None:
    verdict = Verdict().without(["A", "B"], Mismatch("y", "differs", "zeros"))
    assert verdict.left_out == ("A", "B")
    assert verdict.reasons == ("'y' differs, on zeros",) * 2
