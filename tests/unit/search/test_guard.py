"""Strategies of others that raise, loop, or return what is no plan: the lazy strategy goes on, and says why."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
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

GRAPH = Graph(3, [(0, 1), (1, 2)])
COSTS = {
    candidate([0]): 1.0,
    candidate([1]): 1.0,
    candidate([2]): 1.0,
    candidate([0, 1]): 1.25,
    candidate([1, 2]): 1.5,
    candidate([2], "b"): math.inf,
    candidate([0, 1, 2]): 2.5,
}
PROBLEM = SearchProblem(3, tuple(COSTS), GRAPH)
BEST = [candidate([0, 1]), candidate([2])]
STRANGER = candidate([1], "stranger")


class Given:
    """A strategy of others that does as it is told."""

    name = "given"

    def __init__(self, run: Callable[[Any, Any, Any], Any]) -> None:
        self.run = run


def measured_cover(cover: Sequence[Candidate]) -> Callable[[Any, Any, Any], Any]:
    def run(problem: Any, costs: Any, limits: Any) -> Any:
        costs.measure([c for c in cover if costs.known_cost(c) is None])
        return result_of_cover(cover, problem, costs)

    return run


def forever(*_: Any) -> Any:
    while True:
        pass


def stubborn(*_: Any) -> Any:
    for _attempt in range(3):
        with contextlib.suppress(BaseException):
            forever()
    raise AssertionError


def measuring_again(problem: Any, costs: Any, limits: Any) -> Any:
    while True:
        costs.measure(problem.candidates[:1])


def asking(problem: Any, costs: Any, limits: Any) -> Any:
    while not limits.should_stop():
        costs.expected_s(problem.candidates[0])


def unmeasured(problem: Any, costs: Any, limits: Any) -> Any:
    costs.measure([BEST[0]])
    return result_of_cover(BEST, problem, costs)


def lying(problem: Any, costs: Any, limits: Any) -> Any:
    result = measured_cover(BEST)(problem, costs, limits)
    return replace(result, partitioning=replace(result.partitioning, cost=Cost(seconds=0.5), optimal=True))


def with_partitioning(found: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda *_: SearchResult(found)


def raising(error: BaseException) -> Callable[[Any, Any, Any], Any]:
    def run(*_: Any) -> Any:
        raise error

    return run


FAULTY: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "raises": (raising(ValueError("oh no")), "raised ValueError: oh no"),
    "exits": (raising(SystemExit(3)), "raised SystemExit: 3"),
    "interrupts": (raising(KeyboardInterrupt()), "raised KeyboardInterrupt"),
    "generator exit": (raising(GeneratorExit()), "raised GeneratorExit"),
    "recursion": (lambda *a: FAULTY["recursion"][0](*a), "raised RecursionError"),
    "loops": (forever, "ran for 0.3 s without measuring anything"),
    "loops on": (stubborn, "ran for 0.3 s"),
    "asks on": (asking, "ran for 0.3 s"),
    "measures one again": (measuring_again, "ran for 0.3 s"),
    "sleeps": (lambda *_: time.sleep(2), "ran for 0.3 s"),
    "nothing": (lambda *_: None, "returned a NoneType, not a SearchResult"),
    "a list": (lambda *_: BEST, "returned a list, not a SearchResult"),
    "overlaps": (measured_cover([candidate([0, 1]), candidate([1, 2])]), "covers nodes twice"),
    "leaves": (measured_cover([candidate([0]), candidate([2])]), "leaves 1 nodes uncovered"),
    "cannot run": (measured_cover([candidate([0, 1]), candidate([2], "b")]), "holds a kernel that cannot run"),
    "unmeasured": (unmeasured, "was not measured"),
    "stranger": (measured_cover([STRANGER]), "raised ValueError: a strategy can only measure"),
    "lies": (lying, "is said to cost"),
    "too much": (
        lambda p, c, limits: c.measure(p.candidates),
        "raised ValueError: 7 kernels are more than the limits allow",
    ),
    "words": (with_partitioning("the best"), "returned something that cannot be read: AttributeError"),
    "statistics": (lambda *_: SearchResult(None, statistics=None), "statistics cannot be read"),  # type: ignore[arg-type]
}


def costs_of(**limits: Any) -> FakeCosts:
    return FakeCosts(COSTS, **{"batch_size": 3, **limits})


@pytest.mark.parametrize("name", FAULTY)
def test_the_lazy_strategy_goes_on_after_a_fault(name: str) -> None:
    run, said = FAULTY[name]
    source = costs_of()
    result = run_or_fall_back(Given(run), PROBLEM, source, source, 0.3)  # type: ignore[arg-type]
    plain = costs_of()
    expected = run_strategy(LazyStrategy(), PROBLEM, plain, plain)
    assert result.partitioning is not None and expected.partitioning is not None
    assert result.partitioning.candidates == expected.partitioning.candidates
    assert result.partitioning.cost == expected.partitioning.cost
    assert result.strategy == "lazy"
    (fault,) = result.faults
    assert fault.startswith("search strategy 'given' ") and said in fault
    assert fault.endswith("; the strategy 'lazy' ran instead")


def test_no_thread_is_left_of_a_strategy_that_loops() -> None:
    for name in ("loops", "loops on", "asks on", "measures one again"):
        source = costs_of()
        run_or_fall_back(Given(FAULTY[name][0]), PROBLEM, source, source, 0.1)  # type: ignore[arg-type]
        assert not [thread for thread in threading.enumerate() if thread.name == "strategy"]


def test_a_right_strategy_of_others_is_taken_at_its_word_and_measures_in_the_thread_of_the_caller() -> None:
    threads = []

    class Costs(FakeCosts):
        def measure(self, candidates: Sequence[Any]) -> list[float]:
            threads.append(threading.current_thread())
            return super().measure(candidates)

    source = Costs(COSTS, kernels=6, batch_size=3)
    result = run_or_fall_back(Given(measured_cover(BEST)), PROBLEM, source, source)
    assert result.partitioning is not None and list(result.partitioning.candidates) == BEST
    assert (result.strategy, result.faults) == ("given", ())
    assert threads == [threading.current_thread()]


def test_known_kernels_and_those_of_equal_key_are_not_measured_again() -> None:
    source = FakeCosts(COSTS, key_of=lambda c: c.bits.bit_count(), batch_size=2)
    source.measure([candidate([0, 1])])

    def run(problem: Any, costs: Any, limits: Any) -> Any:
        assert costs.measure([candidate([0]), candidate([1]), candidate([0, 1])]) == [1.0, 1.0, 1.25]
        return SearchResult(None)

    result = run_or_fall_back(Given(run), PROBLEM, source, source)
    assert (result.faults, result.partitioning) == ((), None)
    assert [len(batch) for batch in source.batches] == [1, 1]


def test_errors_of_measuring_reach_the_strategy() -> None:
    class Broken(FakeCosts):
        def measure(self, candidates: Sequence[Any]) -> list[float]:
            raise OSError("the disk is full")

    def run(problem: Any, costs: Any, limits: Any) -> Any:
        with pytest.raises(OSError, match="the disk is full"):
            costs.measure([BEST[0]])
        return SearchResult(None)

    source = Broken(COSTS)
    assert run_or_fall_back(Given(run), PROBLEM, source, source).faults == ()


def test_after_an_interrupt_a_strategy_is_told_to_stop_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    source = costs_of(calls=0)  # The user wants the best so far, at once.
    began = time.monotonic()
    result = run_or_fall_back(Given(forever), PROBLEM, source, source, 60.0)
    assert time.monotonic() - began < 15.0
    assert result.strategy == "lazy" and result.stopped_by == "should_stop"


class Refines(Given):
    """A second phase that does as it is told."""

    def refine(self, *arguments: Any) -> Any:
        return self.run(*arguments[1:])


class Timer:
    seed = 0
    seconds_left = math.inf

    def __init__(self) -> None:
        self.timed: list[tuple[Candidate, ...]] = []

    def should_stop(self) -> bool:
        return False

    def time_of(self, cover: Sequence[Candidate]) -> float:
        assert threading.current_thread() is threading.main_thread()
        self.timed.append(tuple(cover))
        return float(len(cover))


WHOLE = [candidate([0, 1, 2])]


def timing(costs: Any, seeds: Any, timer: Any) -> Any:
    return sorted([BEST, WHOLE], key=timer.time_of)


REFINING_FAULTS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "raises": (raising(ValueError("oh no")), "raised ValueError: oh no"),
    "loops": (forever, "ran for 0.3 s"),
    "nothing": (lambda *_: None, "raised TypeError"),
    "overlaps": (lambda *_: [[candidate([0, 1]), candidate([1, 2])]], "proposed a plan that covers nodes twice"),
    "words": (lambda *_: ["abc"], "proposed a plan that holds a kernel that is not a candidate: a"),
    "times words": (lambda _costs, _seeds, timer: timer.time_of("abc"), "raised ValueError: a cover that holds"),
    "measures": (
        lambda costs, *_: costs.measure(BEST),
        "raised ValueError: kernels cannot be measured alone in the second phase",
    ),
}


def test_a_second_phase_of_others_times_covers_in_the_thread_of_the_caller() -> None:
    timer: Any = Timer()
    found, fault = refine_or_leave(Refines(timing), PROBLEM, costs_of(), [BEST], timer)  # type: ignore[arg-type]
    assert (found, fault) == ([tuple(WHOLE), tuple(BEST)], None)
    assert timer.timed == [tuple(BEST), tuple(WHOLE)]


@pytest.mark.parametrize("name", REFINING_FAULTS)
def test_a_faulty_second_phase_is_left_out(name: str) -> None:
    run, said = REFINING_FAULTS[name]
    timer: Any = Timer()
    found, fault = refine_or_leave(Refines(run), PROBLEM, costs_of(), [BEST], timer, 0.3)  # type: ignore[arg-type]
    assert found == [] and fault is not None
    assert fault.startswith("search strategy 'given' ") and said in fault
    assert fault.endswith(" in its second phase, which is left out")


def test_no_exception_hook_is_called_for_a_strategy_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    hooked: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", hooked.append)
    monkeypatch.setattr(sys, "unraisablehook", hooked.append)
    for _ in range(5):
        source = costs_of()
        run_or_fall_back(Given(forever), PROBLEM, source, source, 0.05)  # type: ignore[arg-type]
    assert hooked == []
