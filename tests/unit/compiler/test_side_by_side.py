"""Plans with branches side by side on random graphs with random times: legal, rightly predicted, and only where they gain."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.compiler import side_by_side as module
from collage.compiler.plans import predicted_s
from collage.compiler.problem import Problem
from collage.compiler.side_by_side import side_by_side
from collage.cost import Cost
from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary
from collage.graph import IndexSet, SubGraph, iterate_bits
from collage.options import CompileOptions
from collage.plan import Plan, PlannedKernel
from collage.search import Transfer, kernel_successors
from collage.status import Status
from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import Registry

FAST, SLOW, PLAIN = (Target.parse(f"llvm -compiler={name}") for name in ("fast", "slow", "plain"))
HAND_OVER_S = 1e-5
LAUNCH_S = 2e-6


class _Threaded(FakeToolchain):
    options: Mapping[str, str] = {"threads": "number"}


def toolchains() -> Registry:
    found = Registry(())
    for toolchain in (_Threaded(name="fast"), _Threaded(name="slow"), FakeToolchain(name="plain")):
        found.add(toolchain)
    return found


TOOLCHAINS = toolchains()


class _Costs:
    """Costs of kernels: the times of their operators, by target."""

    def __init__(self, problem: Problem, seconds: Mapping[Target, Sequence[float]]) -> None:
        self.problem = problem
        self.seconds = dict(seconds)
        self.shown = list(next(iter(self.seconds.values())))
        self.known: dict[Any, float] = {}
        self.measured: list[Any] = []
        self.wrong: set[int] = set()
        self.kernels_left, self.search_s_left = 100, 100.0
        self.is_interrupted = False

    def say(self, _: str) -> None: ...

    def introduce(self, kernels: Iterable[Any]) -> None: ...

    def recall(self, kernels: Iterable[Any]) -> None: ...

    def introduce_variant(self, target: Target, of: Target) -> None:
        # Two threads are faster by a third.
        self.seconds.setdefault(target, [1.5 * s for s in self.seconds[of]])

    def node_seconds(self, kernels: Iterable[Any]) -> list[float]:
        assert sum(len(kernel.sub_graph.inside) for kernel in kernels) == len(self.problem.graph)
        return self.shown

    def launch_penalty_s(self, target: Target) -> float:
        assert target in self.seconds
        return LAUNCH_S

    def measure(self, kernels: Sequence[Any]) -> None:
        for kernel in kernels:
            self.measured.append(kernel)
            bits = kernel.sub_graph.inside.bits
            key = self.problem.key_of(kernel)
            self.known[key] = sum(self.seconds[kernel.target][i] for i in iterate_bits(bits))

    def known_cost(self, kernel: Any) -> Cost | None:
        seconds = self.known.get(self.problem.key_of(kernel))
        if seconds is not None and kernel.sub_graph.inside.bits in self.wrong:
            return Cost.INVALID
        return None if seconds is None else Cost(seconds=seconds)

    def outcome_of(self, kernel: Any) -> Outcome | None:
        cost = self.known_cost(kernel)
        s = None if cost is None or cost.is_invalid else cost.seconds
        return None if s is None else Outcome(Status.OK, time=Summary(s, s, s, 9, 0.0))

    def hand_overs(self, lanes: int) -> list[Transfer]:
        graph = self.problem.graph
        prices = [[0.0 if src == dst else HAND_OVER_S for dst in range(lanes)] for src in range(lanes)]
        return [Transfer(i, dict.fromkeys(graph.consumers(i)), prices) for i in range(len(graph))]


_OPS = ("Relu", "Neg", "Abs", "Exp", "Tanh", "Sigmoid", "Erf", "Floor")


def model_of(producers: Sequence[Sequence[int]], kinds: Sequence[int]) -> ir.Model:
    """A node of one output for each list of the nodes that it reads from, -1 being the input; operators by kind."""
    lines, read = [], {p for ps in producers for p in ps}
    for i, (ps, kind) in enumerate(zip(producers, kinds, strict=True)):
        names = [f"v{p}" if p >= 0 else "x" for p in ps]
        lines.append(f"v{i} = {_OPS[kind] if len(names) == 1 else 'Sum'}({', '.join(names)})")
    outputs = ", ".join(f"float[2] v{i}" for i in range(len(producers)) if i not in read)
    body = "\n".join(lines)
    return ir.from_onnx_text(f'<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => ({outputs}) {{ {body} }}')


def towers(rng: random.Random) -> list[list[int]]:
    """Groups of chains, each group between two nodes, with an edge across now and then."""
    producers: list[list[int]] = [[-1]]
    for _ in range(rng.randint(1, 2)):
        start, ends = len(producers) - 1, []
        for _ in range(rng.randint(1, 3)):
            last = start
            for _ in range(rng.randint(1, 3)):
                producers.append([last])
                last = len(producers) - 1
            ends.append(last)
        producers.append(sorted(set(ends)))
    if rng.random() < 0.2:
        node = rng.randrange(1, len(producers))
        producers[node] = sorted({*producers[node], rng.randrange(node)})
    return producers


def setting(
    producers: Sequence[Sequence[int]], seconds: Mapping[Target, Sequence[float]], **options: Any
) -> tuple[Problem, _Costs]:
    times = list(zip(*seconds.values(), strict=True))
    distinct = list(dict.fromkeys(times))
    model = model_of(producers, [distinct.index(each) for each in times])
    problem = Problem.of(model, list(seconds), TOOLCHAINS, CompileOptions(threads=2, **options))
    # Nodes are numbered by the graph; times are theirs by name.
    order = [int(str(node.outputs[0].name)[1:]) for node in problem.graph.nodes]
    return problem, _Costs(problem, {t: [each[i] for i in order] for t, each in seconds.items()})


def wholes(problem: Problem, costs: _Costs) -> list[Plan]:
    everything = SubGraph(problem.graph, IndexSet((1 << len(problem.graph)) - 1))
    plans = [Plan(str(t), (PlannedKernel(everything, t, "whole"),), t) for t in problem.menu]
    costs.measure([plan.kernels[0] for plan in plans])
    costs.measured.clear()
    return plans


def simulated_s(problem: Problem, costs: _Costs, plan: Plan) -> float:
    """The time of a plan by its definition: in each lane the kernel that was ready first runs next."""
    after = kernel_successors(problem.graph, [place.sub_graph.inside.bits for place in plan.kernels])
    begin, end = {}, {}
    free: dict[int | None, float] = {}
    while len(end) < len(plan.kernels):
        ready = {}
        for i, place in enumerate(plan.kernels):
            before = [j for j, fed in enumerate(after) if i in fed]
            if i not in end and all(j in end for j in before):
                ready[i] = max(
                    (end[j] + (HAND_OVER_S if plan.kernels[j].branch != place.branch else 0.0) for j in before),
                    default=0.0,
                )
        first = min(ready, key=lambda i: (ready[i], i))
        place = plan.kernels[first]
        cost = costs.known_cost(place)
        assert cost is not None
        begin[first] = max(ready[first], free.get(place.branch, 0.0))
        end[first] = free[place.branch] = begin[first] + cost.seconds + LAUNCH_S
    for lane in free:
        spans = sorted((begin[i], end[i]) for i, place in enumerate(plan.kernels) if place.branch == lane)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), "one kernel at a time in each lane"
    return max(end.values())


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**9))
def test_what_is_proposed_is_legal_and_takes_what_is_predicted(seed: int) -> None:
    rng = random.Random(seed)
    producers = towers(rng)
    kinds = [rng.randrange(5) if len(ps) == 1 else 5 + len(ps) % 3 for ps in producers]
    times = [rng.choice([1e-6, 1e-4, 3e-4, 1e-3]) for _ in _OPS]
    by_target = {t: [rng.uniform(0.5, 2.0) * s for s in times] for t in (FAST, SLOW, PLAIN)}
    seconds = {t: [by_kind[kind] for kind in kinds] for t, by_kind in by_target.items()}
    problem, costs = setting(producers, seconds)
    plans = wholes(problem, costs)
    found = side_by_side(problem, costs, plans)  # type: ignore[arg-type]
    best_s = min(predicted_s(problem, costs, plan) or math.inf for plan in plans)  # type: ignore[arg-type]
    assert len(costs.measured) <= 2 * len(problem.graph)
    for plan in found:
        covered = [i for place in plan.kernels for i in place.sub_graph.inside]
        assert sorted(covered) == list(range(len(problem.graph)))
        after = kernel_successors(problem.graph, [place.sub_graph.inside.bits for place in plan.kernels])
        assert all(later > i for i, fed in enumerate(after) for later in fed), "in an order in which they can run"
        assert all(place.sub_graph.why_invalid() is None for place in plan.kernels)
        assert plan.branches == 2 and plan.name == "2 branches side by side" and plan.single is None
        assert all(place.target.option("threads") == "1" for place in plan.kernels if place.branch is not None)
        assert all(place.target in problem.menu for place in plan.kernels if place.branch is None)
        expected_s = predicted_s(problem, costs, plan)  # type: ignore[arg-type]
        assert expected_s == pytest.approx(simulated_s(problem, costs, plan))
        assert expected_s < 0.97 * best_s


TWO = [[-1], [0], [1], [0], [3], [2, 4]]
"""Two chains of two operators over one, and their sum."""
EVEN = {FAST: [1e-5, 1e-3, 1e-3, 1e-3, 1e-3, 1e-5]}

UNEVEN = {FAST: [1e-5, 1e-3, 1e-3, 8e-4, 8e-4, 1e-5]}


def proposed(
    costs_of: Mapping[Target, Sequence[float]] = EVEN, producers: Sequence[Sequence[int]] = TWO, **options: Any
) -> list[Plan]:
    problem, costs = setting(producers, costs_of, **options)
    return side_by_side(problem, costs, wholes(problem, costs))  # type: ignore[arg-type]


def test_each_branch_is_a_kernel_and_takes_the_cheaper_toolchain() -> None:
    (plan,) = proposed({**UNEVEN, SLOW: [1e-5, 2e-3, 2e-3, 7e-4, 7e-4, 1e-5]})
    in_branches = {p.branch: (len(p.sub_graph.inside), str(p.target)) for p in plan.kernels if p.branch}
    assert sorted(in_branches.values()) == [
        (2, "llvm -compiler=fast -threads=1"),
        (2, "llvm -compiler=slow -threads=1"),
    ]


def test_two_measurements_at_most_for_a_kernel_of_a_branch() -> None:
    problem, costs = setting(TWO, {FAST: EVEN[FAST], SLOW: EVEN[FAST], PLAIN: EVEN[FAST]})
    (plan,) = side_by_side(problem, costs, wholes(problem, costs))  # type: ignore[arg-type]
    of_branches = [kernel for kernel in costs.measured if kernel.target.option("threads") == "1"]
    assert 0 < len(of_branches) <= 2 * sum(place.branch is not None for place in plan.kernels)


@pytest.mark.parametrize(
    "more",
    [
        {"producers": [[-1], [0], [1], [2], [3], [4]]},
        {"costs_of": {FAST: [1e-3, 1e-5, 1e-5, 1e-5, 1e-5, 1e-3]}},
        {"costs_of": {PLAIN: EVEN[FAST]}},
        {"costs_of": {FAST.with_options(threads="2"): EVEN[FAST]}},
        {"objective": "throughput"},
        {"objective": "size"},
        {"finals": False},
    ],
    ids=["a chain", "short branches", "no option", "a number by hand", "throughput", "size", "nothing is compared"],
)
def test_nothing_is_proposed_or_measured(more: dict[str, Any]) -> None:
    given = {"costs_of": EVEN, "producers": TWO, **more}
    problem, costs = setting(given.pop("producers"), given.pop("costs_of"), **given)
    assert side_by_side(problem, costs, wholes(problem, costs)) == []  # type: ignore[arg-type]
    assert costs.measured == []


def test_one_core_has_no_branches_side_by_side() -> None:
    problem, costs = setting(TWO, EVEN)
    problem = replace(problem, options=replace(problem.options, threads=1))
    assert side_by_side(problem, costs, wholes(problem, costs)) == []  # type: ignore[arg-type]


def test_cores_are_those_of_the_container_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, costs = setting(TWO, EVEN)
    problem = replace(problem, options=replace(problem.options, threads=0))
    monkeypatch.setattr(module, "this_machine", lambda: SimpleNamespace(physical_cores=8))
    for cores, count in ((1, 0), (2, 1), (0, 1)):
        monkeypatch.setattr(module, "thread_count", lambda cores=cores: cores)
        assert len(side_by_side(problem, costs, wholes(problem, costs))) == count  # type: ignore[arg-type]


def test_a_branch_that_is_wrong_or_too_slow_on_one_thread_is_not_taken() -> None:
    problem, costs = setting(TWO, EVEN)
    plans = wholes(problem, costs)
    (plan,) = side_by_side(problem, costs, plans)  # type: ignore[arg-type]
    costs.wrong.add(next(place for place in plan.kernels if place.branch == 1).sub_graph.inside.bits)
    assert side_by_side(problem, costs, plans) == []  # type: ignore[arg-type]
    problem, costs = setting(TWO, EVEN)
    costs.seconds[FAST.with_options(threads="1")] = [2.1 * s for s in costs.seconds[FAST]]
    assert side_by_side(problem, costs, wholes(problem, costs)) == []  # type: ignore[arg-type]


def test_a_budget_and_a_choice_of_the_user_are_kept() -> None:
    for left in ({"kernels_left": 1}, {"search_s_left": 0.0}):
        problem, costs = setting(TWO, UNEVEN)
        vars(costs).update(left)
        assert side_by_side(problem, costs, wholes(problem, costs)) == []  # type: ignore[arg-type]
        assert costs.measured == []
    problem, costs = setting(TWO, EVEN, forbid=(f"fast:{_OPS[1]}",))
    plans = wholes(problem, costs)
    assert side_by_side(problem, costs, plans) == []  # type: ignore[arg-type]
    problem, costs = setting(TWO, EVEN)
    plans = wholes(problem, costs)
    assert side_by_side(problem, costs, plans, may_share=lambda plan: False) == []  # type: ignore[arg-type]


def test_an_interrupt_goes_on_without_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, costs = setting(TWO, EVEN)
    plans = wholes(problem, costs)

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(costs, "measure", interrupted)
    assert side_by_side(problem, costs, plans) == []  # type: ignore[arg-type]
    assert costs.is_interrupted


def test_a_profile_that_errs_does_not_put_three_of_four_equal_branches_in_one_lane() -> None:
    producers = [[-1], [0], [0], [0], [0], [1, 2, 3, 4]]
    seconds = {FAST: [1e-5, 1e-3, 1e-3, 1e-3, 1e-3, 1e-5]}
    problem, costs = setting(producers, seconds)
    plans = wholes(problem, costs)
    costs.shown = [1e-5, 3e-3, 1e-3, 1e-3, 1e-3, 1e-5]
    (plan,) = side_by_side(problem, costs, plans)  # type: ignore[arg-type]
    assert [len(place.sub_graph.inside) for place in plan.kernels if place.branch] == [2, 2]
