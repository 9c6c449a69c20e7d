"""The choice by an objective and limits, against brute force; nothing is built or run."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from collage._errors import LimitNotMet, WorkerCrash
from collage.compiler import objective as module
from collage.compiler.final_comparison import FinalComparison
from collage.compiler.objective import choose_finals, stream_counts
from collage.cost.objective import QUANTITIES, Figures, Limit
from collage.measure.finalist import Finalist, FinalistResult
from collage.measure.track import ComparisonPlan
from collage.options import CompileOptions
from collage.plan import Plan
from collage.runtime import Recipe
from collage.status import Status
from collage.target import Target

OWN = {"memory": "rss", "size": "size"}


@given(st.integers(1, 64), st.integers(0, 80))
def test_streams_use_all_cores_and_no_more(cores: int, threads: int) -> None:
    counts = stream_counts(cores, threads)
    assert counts and all(streams >= 1 and each >= 1 for streams, each in counts)
    if threads:
        assert counts == [(max(1, cores // threads), threads)]
    else:
        assert all(streams * each == cores for streams, each in counts)
        assert {(1, cores), (cores, 1)} <= set(counts)


class Stage:
    """Plans whose figures are made up, and a final comparison that the fastest of those that take part wins."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, figures: dict[str, Figures | Exception], options: CompileOptions
    ) -> None:
        self.figures, self.options, self.raced = figures, options, list[list[str]]()
        self.plans = [Plan(name, (), Target.parse("llvm -compiler=left")) for name in figures]
        recipes = {name: Recipe((), (), (), 0, "m.onnx", {}, {}) for name in figures}
        patch = monkeypatch.setattr
        patch(module, "baseline_of", lambda *_: None)
        patch(module, "built_plans", lambda *_: (recipes, {}))
        patch(module, "finalist_of", lambda _, __, plan, ___: Finalist(plan.name, "", {}))
        patch(module, "executable_arguments", lambda *_: {})
        patch(module, "why_wrong", lambda finalist, _: "differs" if finalist.name.startswith("wrong") else None)
        patch(module, "compared", self.compared)
        patch(module, "_measured", self.measured)

    def measured(self, _: Any, __: Any, variant: Any, quantities: Any) -> Any:
        found = self.figures[variant.name.partition(",")[0]]
        if isinstance(found, Exception):
            return FinalistResult(Finalist(variant.name, "", {}), Status.CRASHED, reason=str(found))
        known = {QUANTITIES[quantity]: found.of(quantity) for quantity in quantities}
        return module.replace(variant, figures=Figures(**known))

    def compared(self, _: Any, __: Any, plans: Any, recipes: Any, entries: Any, *rest: Any, **more: Any) -> Any:
        names = [entry.name for entry in entries]
        self.raced.append(names)
        name = more.get("winner") or min(names)
        plan = next(plan for plan in plans if plan.name == name)
        standings = {each: FinalistResult(Finalist(each, "", {}), Status.OK) for each in names}
        return FinalComparison(recipes[name], plan, plans, standings, None, None)

    def choose(self) -> FinalComparison:
        problem: Any = SimpleNamespace(
            options=self.options, tolerance=1e-4, comparison_plan=ComparisonPlan(), placement=None, toolchains=None
        )
        survey: Any = SimpleNamespace(problem=problem, reference=SimpleNamespace(original=None))
        session: Any = SimpleNamespace(say=lambda _: None)
        lab: Any = SimpleNamespace(survey=survey, session=session, costs=SimpleNamespace(why_wrong=None))
        return choose_finals(lab, self.plans)


def figures_of(draw: Any) -> Figures:
    known = {name: draw(st.floats(1.0, 100.0)) for name in QUANTITIES.values()}
    return Figures(**known)


@st.composite
def cases(draw: Any) -> tuple[dict[str, Figures], CompileOptions]:
    figures = {f"plan {i}": figures_of(draw) for i in range(draw(st.integers(1, 5)))}
    quantities = draw(st.lists(st.sampled_from(sorted(QUANTITIES)), max_size=3))
    limits = tuple(Limit(quantity, draw(st.floats(1.0, 100.0)), quantity) for quantity in quantities)
    return figures, CompileOptions(objective=draw(st.sampled_from(["latency", "memory", "size"])), limits=limits)


@given(cases())
def test_the_least_figure_within_the_limits_is_chosen(case: tuple[dict[str, Figures], CompileOptions]) -> None:
    figures, options = case
    assume(not options.is_plain)
    kept = [name for name, each in figures.items() if all(limit.is_kept(each) for limit in options.bounds)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        stage = Stage(monkeypatch, dict(figures), options)
        if not kept:
            with pytest.raises(LimitNotMet) as refusal:
                stage.choose()
            worst = {n: max(limit.excess(each) or math.inf for limit in options.bounds) for n, each in figures.items()}
            assert refusal.value.exit_code == 3 and "\n" not in str(refusal.value)
            assert min(worst.values()) > 1.0
            return
        monkeypatch.setattr(module, "_fastest", lambda _, __, alike: alike[0])
        finals = stage.choose()
    assert finals.plan is not None and finals.plan.name in kept
    if options.objective in OWN:
        least = min(figures[name].of(OWN[options.objective]) or 0.0 for name in kept)
        chosen = figures[finals.plan.name].of(OWN[options.objective]) or math.inf
        assert chosen <= (1.02 if options.objective == "memory" else 1.0) * least
    else:
        assert finals.plan.name == min(kept) and stage.raced == [kept]
    for name in set(figures) - set(kept):
        assert finals.standings[name].reason
    assert finals.objective["limits"] == [limit.text for limit in options.bounds]


def test_the_nearest_plan_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"far": Figures(p99_s=0.4, rss_bytes=1e6), "near": Figures(p99_s=0.03, rss_bytes=2e6)}
    options = CompileOptions(limits=("p99<=20ms", "rss<=3MB"))
    with pytest.raises(
        LimitNotMet, match=r"no plan keeps p99<=20ms and rss<=3MB; the nearest is .* with p99 30.000 ms"
    ):
        Stage(monkeypatch, dict(figures), options).choose()


def test_figures_that_are_not_confirmed_rule_a_plan_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(
        monkeypatch, {"a": Figures(p99_s=0.01), "b": Figures(p99_s=0.015)}, CompileOptions(limits=("p99<=20ms",))
    )
    first, seen = stage.measured, set[str]()

    def measured(problem: Any, session: Any, variant: Any, quantities: Any) -> Any:
        found = first(problem, session, variant, quantities)
        is_again, _ = variant.name in seen, seen.add(variant.name)
        return module.replace(found, figures=Figures(p99_s=0.03)) if is_again and variant.name == "a" else found

    monkeypatch.setattr(module, "_measured", measured)
    finals = stage.choose()
    assert finals.plan is not None and finals.plan.name == "b"
    assert stage.raced == [["a", "b"], ["b"]]
    assert "p99 30.000 ms" in str(finals.standings["a"].reason)


@pytest.mark.parametrize("objective", ["memory", "size", "throughput"])
def test_an_interrupt_returns_a_single_target_unless_there_are_limits(
    objective: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    stage = Stage(monkeypatch, {"a": Figures()}, CompileOptions(objective=objective))
    monkeypatch.setattr(module, "_measured", interrupt)
    monkeypatch.setattr(module, "interrupted", lambda _, plans: ("interrupted", plans))
    assert stage.choose() == ("interrupted", stage.plans)
    stage.options = CompileOptions(objective=objective, limits=(Limit("p99", 1.0, "p99<=1s"),))
    with pytest.raises(KeyboardInterrupt):
        stage.choose()


def test_wrong_plans_and_those_that_crash_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: dict[str, Any] = {
        "wrong": Figures(rss_bytes=1.0),
        "crash": WorkerCrash("killed"),
        "right": Figures(rss_bytes=9.0),
    }
    finals = Stage(monkeypatch, figures, CompileOptions(objective="memory")).choose()
    assert finals.plan is not None and finals.plan.name == "right"
    assert {name: each.status for name, each in finals.standings.items()} == {
        "wrong": Status.WRONG,
        "crash": Status.CRASHED,
        "right": Status.OK,
    }
    assert {plan.name for plan in finals.plans} == set(figures)
    del figures["right"]
    finals = Stage(monkeypatch, figures, CompileOptions(objective="memory")).choose()
    assert finals.plan is None and set(finals.standings) == set(figures)


def test_a_throughput_is_compared_with_several_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cores", lambda: 2)
    figures: dict[str, Any] = {"a": Figures(*[1.0] * 7)}
    stage = Stage(monkeypatch, figures, CompileOptions(objective="throughput"))
    finals = stage.choose()
    assert stage.raced == [["a, 1 x 2", "a, 2 x 1"]]
    assert finals.plan is not None and finals.recipe is not None
    assert finals.objective["streams"] == 1 and finals.objective["threads"] == 2
    assert (finals.recipe.streams, finals.recipe.threads) == (1, 0)
    assert [(row["streams"], row["threads"]) for row in finals.objective["rows"]] == [(1, 2), (2, 1)]
