"""A plan in coarser floats is looked for before 8 bits are looked into."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import onnx_ir as ir
import pytest

from collage.compiler import precision_cuts
from collage.compiler.precision_cuts import secure_floats
from collage.compiler.precision_session import Precision
from collage.compiler.survey import Survey
from collage.compiler.variants import finer_floats
from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary
from collage.graph import DataflowGraph
from collage.measure.baselines import TargetBaseline
from collage.options import CompileOptions
from collage.plan import Plan
from collage.status import Status
from collage.target import Target
from collage.toolchains import Availability, Support, registry

COUNT = 40
BUDGET = 1e-2
EXACT, ROUGH, BYTES = (
    Target.parse(f"llvm -compiler=openvino{option}") for option in ("", " -precision=bf16", " -precision=int8")
)
BODY = "".join(f"v{i + 1} = Neg (v{i})\n" for i in range(COUNT))
MODEL = f'<ir_version: 10, opset_import: ["" : 20]> g (float[2] v0) => (float[2] v{COUNT}) {{ {BODY} }}'


def surveyed(told: Mapping[Target, tuple[float, float]], left_s: float = math.inf) -> Survey:
    """Return a survey of targets with their seconds and errors."""
    graph = DataflowGraph(ir.from_onnx_text(MODEL))

    def baseline(target: Target) -> TargetBaseline:
        seconds, error = told[target]
        outcome = Outcome(Status.OK, time=Summary(seconds, seconds, seconds, 9, 0.0), error=error)
        support = {i: Support(True) for i in range(COUNT)}
        profile = dict.fromkeys(range(COUNT), seconds / COUNT)
        return TargetBaseline(target, Availability(True), support, ((1 << COUNT) - 1,), (outcome,), profile)

    problem: Any = SimpleNamespace(
        graph=graph,
        tolerance=BUDGET,
        placement=None,
        options=CompileOptions(accuracy_budget=BUDGET, time_budget_s=None if math.isinf(left_s) else 100.0),
        comparison_plan=SimpleNamespace(left_s=left_s),
        choices=SimpleNamespace(allows=lambda *_: True),
        is_bound=lambda _: False,
        toolchains=registry(),
        menu=tuple(told),
    )
    nothing: Any = None
    precision = Precision(nothing, nothing, nothing, (), True)
    return Survey(problem, nothing, {target: baseline(target) for target in told}, precision)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Plans that were run: those keep the budget of which at most half is coarse."""
    found: list[Plan] = []

    def keeps(problem: Any, session: Any, precision: Any, plan: Plan) -> bool:
        found.append(plan)
        return sum(len(kernel.sub_graph.inside) for kernel in plan.kernels if kernel.target.is_reduced) <= COUNT / 2

    monkeypatch.setattr(precision_cuts, "keeps_limits", keeps)
    return found


def secured(survey: Survey) -> dict[Any, list[Plan]]:
    specs: Any = [SimpleNamespace(targets=tuple(survey.baselines))]
    session: Any = SimpleNamespace(say=lambda _: None)
    secure_floats(survey, session, specs)
    assert survey.precision is not None
    return survey.precision.borders


def test_borders_are_found_where_the_whole_is_not_far_off(tried: list[Plan]) -> None:
    survey = surveyed({EXACT: (3.0, 0.0), ROUGH: (1.0, 1.4 * BUDGET), BYTES: (0.5, 20 * BUDGET)})
    (plans,) = secured(survey).values()
    assert plans
    assert all(kernel.target in (EXACT, ROUGH) for plan in tried for kernel in plan.kernels)
    widest = max(len(k.sub_graph.inside) for plan in plans for k in plan.kernels if k.target == ROUGH)
    assert 0.3 * COUNT < widest <= COUNT / 2
    assert len(tried) <= 2 * 3


def test_what_was_found_is_not_looked_for_again(tried: list[Plan]) -> None:
    survey = surveyed({EXACT: (3.0, 0.0), ROUGH: (1.0, 1.4 * BUDGET)})
    first = secured(survey)
    count = len(tried)
    assert secured(survey) == first
    assert len(tried) == count


@pytest.mark.parametrize(
    ("told", "most"),
    [
        ({EXACT: (3.0, 0.0), ROUGH: (1.0, 2.5 * BUDGET)}, 0),
        ({EXACT: (3.0, 0.0), ROUGH: (2.99, 1.4 * BUDGET)}, 0),
        ({EXACT: (3.0, 0.0), BYTES: (1.0, 1.4 * BUDGET)}, 0),
    ],
    ids=["far off", "no faster", "bytes alone"],
)
def test_nothing_is_tried_that_cannot_gain(
    told: dict[Target, tuple[float, float]], most: int, tried: list[Plan]
) -> None:
    secured(surveyed(told))
    assert len(tried) <= most


def test_a_whole_model_that_keeps_the_budget_needs_no_border(
    tried: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision_cuts, "keeps_limits", lambda *args: tried.append(args[-1]) or True)
    assert secured(surveyed({EXACT: (3.0, 0.0), ROUGH: (1.0, 0.8 * BUDGET)})) == {}
    assert [len(plan.kernels) for plan in tried] == [1]


def test_borders_are_also_looked_for_where_the_whole_is_just_within_the_budget(
    tried: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision_cuts, "keeps_limits", lambda *args: tried.append(args[-1]) or True)
    (plans,) = secured(surveyed({EXACT: (3.0, 0.0), ROUGH: (1.0, 0.95 * BUDGET)})).values()
    assert plans
    assert all(len(plan.kernels) == 2 for plan in tried)


def test_each_whole_model_in_floats_is_tried_before_any_border(tried: list[Plan]) -> None:
    half = Target.parse("llvm -compiler=openvino -precision=f16")
    secured(surveyed({EXACT: (3.0, 0.0), half: (2.0, 0.7 * BUDGET), ROUGH: (1.0, 0.75 * BUDGET)}))
    assert [plan.kernels[0].target for plan in tried if len(plan.kernels) == 1] == [ROUGH, half]
    assert [len(plan.kernels) for plan in tried[2:]] == [2] * (len(tried) - 2)
    assert len(tried) > 2


class _Clock:
    """A time budget of which each question takes a second."""

    def __init__(self, left_s: float) -> None:
        self._left_s = left_s

    @property
    def left_s(self) -> float:
        self._left_s -= 1.0
        return self._left_s


def test_borders_that_were_found_before_the_time_was_over_are_kept(
    monkeypatch: pytest.MonkeyPatch, tried: list[Plan]
) -> None:
    monkeypatch.setattr(precision_cuts, "keeps_limits", lambda *args: tried.append(args[-1]) or True)
    survey = surveyed({EXACT: (3.0, 0.0), ROUGH: (1.0, 1.4 * BUDGET)}, left_s=100.0)
    survey.problem.comparison_plan = _Clock(5.0)  # type: ignore[misc]
    (plans,) = secured(survey).values()
    assert plans
    assert survey.is_cut_short
    count = len(tried)
    assert list(secured(survey).values()) == [plans]
    assert len([plan for plan in tried[count:] if len(plan.kernels) > 1]) == 0


def test_without_time_no_border_is_tried_and_the_survey_says_so(tried: list[Plan]) -> None:
    survey = surveyed({EXACT: (3.0, 0.0), ROUGH: (1.0, 1.4 * BUDGET)}, left_s=0.0)
    assert secured(survey) == {}
    assert not tried
    assert survey.is_cut_short


FINER = ROUGH.with_options(floats="f32")


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({EXACT: (3.0, 0.0), ROUGH: (1.0, 1.2 * BUDGET)}, [FINER]),
        ({EXACT: (3.0, 0.0), ROUGH: (1.0, 0.7 * BUDGET)}, [FINER]),
        ({EXACT: (3.0, 0.0), ROUGH: (1.0, 0.2 * BUDGET)}, []),
        ({EXACT: (3.0, 0.0), ROUGH: (1.0, 5.0 * BUDGET)}, []),
        ({EXACT: (3.0, 0.0), ROUGH: (3.0, 1.2 * BUDGET)}, []),
        ({EXACT: (3.0, 0.0), ROUGH: (1.0, 1.2 * BUDGET), FINER: (1.1, 0.8 * BUDGET)}, []),
        ({EXACT: (3.0, 0.0), Target.parse("llvm -compiler=onnxruntime -precision=bf16"): (1.0, 1.2 * BUDGET)}, []),
    ],
    ids=["over", "near", "well below", "far off", "no faster", "there already", "no such option"],
)
def test_finer_floats_are_offered_where_they_may_help(
    told: dict[Target, tuple[float, float]], found: list[Target]
) -> None:
    pytest.importorskip("openvino")
    assert finer_floats(surveyed(told)) == found
