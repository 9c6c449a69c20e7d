"""The view that strategies have of costs and limits: what they may measure, and what an interrupt does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from collage.compiler.partition_search import search_partition
from collage.cost.cost import Cost
from collage.fusion import CandidateKernel, CandidateKernelIndex
from collage.graph import IndexSet, SubGraph

from .test_partition_search import COUNT, TARGET, chain

Span = tuple[int, int]


class FakeSession:
    """A chain of operators as a problem, with the costs of its kernels; the user interrupts after some kernels."""

    def __init__(self, costs: dict[Span, float], patience: int = 99, kernels: int = 99, **options: Any) -> None:
        self.graph, self.is_placed_by_search, self.batch_size = chain(), False, 2
        defaults = {"search": "fast", "strategy": "lazy", "proves": False, "min_gain": 0.0}
        self.options = SimpleNamespace(**{**defaults, **options})
        self.proves, self.min_gain, self.searching = self.options.proves, self.options.min_gain, nullcontext
        self.search_s_left = 60.0
        self.strategy_faults: tuple[str, ...] = ()
        self.is_interrupted = False
        self.measured: dict[Span, Cost] = {}
        self.said: list[str] = []
        self.interrupts = 0
        self.say = self.said.append
        self._costs, self._patience, self._kernels = costs, patience, kernels

    def index(self) -> CandidateKernelIndex:
        spec: Any = None
        inside = [SubGraph(self.graph, IndexSet.range(*span)) for span in self._costs]
        return CandidateKernelIndex([CandidateKernel(sub_graph, TARGET, spec, ("given",)) for sub_graph in inside])

    @property
    def kernels_left(self) -> int:
        return self._kernels - len(self.measured)

    def known_cost(self, candidate: Any) -> Cost | None:
        return self.measured.get(span_of(candidate))

    def measured_cost(self, candidate: Any) -> Cost:
        return self.known_cost(candidate) or Cost.INVALID

    def measure(self, candidates: Sequence[Any]) -> list[Cost]:
        for candidate in candidates:
            if len(self.measured) == self._patience:
                self.interrupts += 1
                raise KeyboardInterrupt
            self.measured[span_of(candidate)] = Cost(seconds=self._costs[span_of(candidate)])
        return [self.measured_cost(candidate) for candidate in candidates]

    def expected_s(self, candidate: Any) -> float:
        return 0.5 * self._costs[span_of(candidate)]

    least_s = expected_s

    def launch_penalty_s(self, target: Any) -> float:
        return 0.25

    def priority(self, target: Any) -> int:
        return 0

    def key_of(self, kernel: Any) -> Span:
        return span_of(kernel)


def span_of(candidate: Any) -> Span:
    return min(candidate.sub_graph.inside), max(candidate.sub_graph.inside) + 1


ALL = {(start, stop): 1.0 + 0.5 * (stop - start) for start in range(COUNT) for stop in range(start + 1, COUNT + 1)}


def run(session: FakeSession) -> Any:
    view: Any = session
    return search_partition(view, view, session.index())


@pytest.mark.parametrize("strategy", ["lazy", "exhaustive", "wide"])
def test_the_strategy_of_the_options_runs_on_the_costs_of_the_session(strategy: str) -> None:
    session = FakeSession(ALL, strategy=strategy, proves=True)
    result = run(session)
    assert result.strategy == strategy
    assert [span_of(c) for c in result.partitioning.candidates] == [(0, COUNT)]
    assert result.partitioning.cost.seconds == ALL[0, COUNT] + 0.25
    assert (len(session.measured) == len(ALL)) == (strategy == "exhaustive")


def test_the_exhaustive_mode_measures_everything_before_any_strategy() -> None:
    session = FakeSession(ALL, search="exhaustive", proves=True)
    result = run(session)
    assert len(session.measured) == len(ALL)
    assert (result.strategy, result.statistics.measured, result.partitioning.optimal) == ("lazy", 0, True)
    assert session.said[0] == f"measuring everything: {len(ALL)} kernels to go"


@pytest.mark.parametrize("pairs", [[(0, 2), (2, 4), (3, 5)], [(0, 2)]])
@pytest.mark.parametrize("search", ["fast", "exhaustive"])
@pytest.mark.parametrize("strategy", ["lazy", "exhaustive", "wide"])
def test_an_interrupt_ends_the_search_with_the_best_so_far(search: str, strategy: str, pairs: list[Span]) -> None:
    """Operators alone are known. Pairs of them are hoped to be better, and the user has no patience to measure these."""
    alone = {(i, i + 1): 1.0 for i in range(COUNT)}
    session = FakeSession(alone | dict.fromkeys(pairs, 1.5), patience=COUNT, search=search, strategy=strategy)
    for candidate in session.index():
        if span_of(candidate) in alone:
            session.measure([candidate])
    result = run(session)
    assert [span_of(c) for c in result.partitioning.candidates] == sorted(alone)
    assert session.said[-1] == "interrupted: continuing with the best plan so far"
    assert session.interrupts == 1
    assert result.stopped_by == "should_stop"
    again = run(session)  # One interrupt ends all searches of a compilation.
    assert [span_of(c) for c in again.partitioning.candidates] == sorted(alone)
    assert (session.interrupts, again.stopped_by) == (1, "should_stop")


def test_limits_are_those_of_the_session() -> None:
    session = FakeSession(ALL, kernels=4, strategy="exhaustive")
    run(session)
    assert len(session.measured) == 4
    session = FakeSession(ALL)
    session.search_s_left = 0.0
    assert run(session).stopped_by == "deadline"
    assert not session.measured
