"""Strategies of others that raise, or return what is no plan: the lazy strategy goes on, and says why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from collage.cost.cost import Cost
from collage.search import (
    LazyStrategy,
    SearchProblem,
    SearchResult,
    refine_or_leave,
    result_of_cover,
    run_or_fall_back,
    run_strategy,
)

from .fake_costs import FakeCosts
from .search_oracle import Candidate, Graph, candidate

COSTS = {
    candidate([0]): 1.0,
    candidate([1]): 1.0,
    candidate([2]): 1.0,
    candidate([0, 1]): 1.25,
    candidate([1, 2]): 1.5,
    candidate([2], "b"): math.inf,
    candidate([0, 1, 2]): 2.5,
}
PROBLEM = SearchProblem(3, tuple(COSTS), Graph(3, [(0, 1), (1, 2)]))
BEST = [candidate([0, 1]), candidate([2])]


class Given:
    """A strategy of others that does as it is told, in both phases."""

    name = "given"

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = self.refine = run


def measured_cover(cover: Sequence[Candidate]) -> Callable[..., Any]:
    def run(problem: Any, costs: Any, limits: Any) -> Any:
        costs.measure([c for c in cover if costs.known_cost(c) is None])
        return result_of_cover(cover, problem, costs)

    return run


def unmeasured(problem: Any, costs: Any, limits: Any) -> Any:
    costs.measure([BEST[0]])
    return result_of_cover(BEST, problem, costs)


def lying(problem: Any, costs: Any, limits: Any) -> Any:
    result = measured_cover(BEST)(problem, costs, limits)
    return replace(result, partitioning=replace(result.partitioning, cost=Cost(seconds=0.5), optimal=True))


def raising(error: BaseException) -> Callable[..., Any]:
    def run(*_: Any) -> Any:
        raise error

    return run


FAULTY: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (raising(ValueError("oh no")), "raised ValueError: oh no"),
    "exits": (raising(SystemExit(3)), "raised SystemExit: 3"),
    "recursion": (lambda *a: FAULTY["recursion"][0](*a), "raised RecursionError"),
    "nothing": (lambda *_: None, "returned a NoneType that is not a SearchResult"),
    "overlaps": (measured_cover([candidate([0, 1]), candidate([1, 2])]), "covers nodes twice"),
    "leaves": (measured_cover([candidate([0]), candidate([2])]), "leaves 1 nodes uncovered"),
    "cannot run": (measured_cover([candidate([0, 1]), candidate([2], "b")]), "holds a kernel that cannot run"),
    "unmeasured": (unmeasured, "was not measured"),
    "lies": (lying, "is said to cost"),
    "words": (lambda *_: SearchResult("the best"), "raised AttributeError"),  # type: ignore[arg-type]
    "statistics": (lambda *_: SearchResult(None, statistics=None), "with statistics"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_lazy_strategy_goes_on_after_a_fault(name: str) -> None:
    run, said = FAULTY[name]
    source, plain = FakeCosts(COSTS, batch_size=3), FakeCosts(COSTS, batch_size=3)
    result = run_or_fall_back(Given(run), PROBLEM, source, source)
    expected = run_strategy(LazyStrategy(), PROBLEM, plain, plain)
    assert result.partitioning is not None and result.partitioning == expected.partitioning
    (fault,) = result.faults
    assert result.strategy == "lazy" and fault.startswith("search strategy 'given' ") and said in fault


def test_a_right_strategy_of_others_is_taken_at_its_word() -> None:
    source = FakeCosts(COSTS)
    result = run_or_fall_back(Given(measured_cover(BEST)), PROBLEM, source, source)
    assert result.partitioning is not None and list(result.partitioning.candidates) == BEST
    assert (result.strategy, result.faults) == ("given", ())


def test_a_fault_of_measuring_is_not_the_strategys() -> None:
    class Broken(FakeCosts):
        def measure(self, candidates: Sequence[Any]) -> list[float]:
            raise OSError("the disk is full")

    source = Broken(COSTS)
    with pytest.raises(OSError, match="the disk is full"):
        run_or_fall_back(Given(measured_cover(BEST)), PROBLEM, source, source)


REFINING: dict[str, tuple[Callable[..., Any], str | None]] = {
    "right": (lambda *_: [BEST], None),
    "raises": (raising(ValueError("oh no")), "raised ValueError: oh no"),
    "nothing": (lambda *_: None, "raised TypeError"),
    "overlaps": (lambda *_: [[candidate([0, 1]), candidate([1, 2])]], "proposed a plan that covers nodes twice"),
    "words": (lambda *_: ["abc"], "proposed a plan that holds a kernel that is not a candidate: a"),
}


@pytest.mark.parametrize("name", REFINING)
def test_a_faulty_second_phase_is_left_out(name: str) -> None:
    run, said = REFINING[name]
    covers, fault = refine_or_leave(Given(run), PROBLEM, FakeCosts(COSTS), [BEST], None)  # type: ignore[arg-type]
    assert covers == ([] if said else [tuple(BEST)])
    assert fault is None if said is None else said in str(fault) and str(fault).endswith("which is left out")
