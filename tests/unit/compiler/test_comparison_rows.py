"""The rows of a report: a word for every plan and every target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collage.compiler.comparison_rows import comparison_rows, named_but_failed
from collage.compiler.final_comparison import BASELINE, FinalComparison
from collage.compiler.result_store import CompileResult
from collage.cost.outcome import Outcome
from collage.cost.statistics import Interval, Summary
from collage.measure.baselines import TargetBaseline
from collage.measure.finalist import NO_TIME, Finalist, FinalistResult
from collage.plan import Plan
from collage.report import Report, Row, SearchFacts, verdict_of
from collage.status import Status
from collage.target import Target
from collage.toolchains import Availability, Support

HERE = Availability(True, "1", "1")
RACED = Summary(0.01, 0.009, 0.012, 40, 0.01)
LEFT, REDUCED = Target.parse("llvm -compiler=left"), Target.parse("llvm -compiler=left -precision=bf16")


def baseline(target: Target, outcome: Outcome, **more: Any) -> TargetBaseline:
    return TargetBaseline(target, HERE, {0: Support(True)}, (1,), (outcome,), **more)


def rows_of(plans: dict[str, FinalistResult | None], *found: TargetBaseline) -> tuple[Row, ...]:
    """The rows of a comparison that the first plan won, on a menu of what was found of targets."""
    made = [Plan(name, (), Target.parse(name) if "-" in name else None) for name in plans]
    standings = {name: standing for name, standing in plans.items() if standing is not None}
    finals = FinalComparison(None, made[0], [p for p in made if p.name != BASELINE], standings, RACED, None)
    result = CompileResult(finals, SearchFacts(), {}, dict.fromkeys(plans))
    survey: Any = SimpleNamespace(
        problem=SimpleNamespace(menu=[each.target for each in found], tolerance=1e-3, is_bound=lambda _: False),
        precision=None,
        baselines={each.target: each for each in found},
        is_right=lambda outcome: outcome.error is None or outcome.error <= 1e-3,
    )
    return comparison_rows(survey, result)


def standing(name: str, ratio: tuple[float, float, float] | None, **more: Any) -> FinalistResult:
    told = None if ratio is None else (ratio[0], Interval(*ratio[1:]))
    status = more.pop("status", Status.OK)
    return FinalistResult(Finalist(name, "", {}, **more.pop("finalist", {})), status, RACED, ratio=told, **more)


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (standing("mix 2", (1.1, 1.05, 1.2)), "slower"),
        (standing("mix 2", (1.0, 0.95, 1.1)), "tie"),
        (standing("mix 2", (0.9, 0.85, 0.95)), "undecided"),
        (standing("mix 2", None, lost=True), "slower"),
        (standing("mix 2", None, slower=(2.0, 3.1)), "too slow"),
        (standing("mix 2", None, slower=(2.0, 3.1), reason="and over a limit"), "too slow"),
        (standing("mix 2", None, reason="p99 9.000 ms, and not p99<=2ms"), "over limit"),
        (standing("mix 2", None, reason=NO_TIME), "not raced"),
        (standing("mix 2", None, status=Status.WRONG, reason="differs"), "wrong"),
        (standing("mix 2", None, status=Status.CRASHED, reason="SIGSEGV"), "crashed"),
        (standing("mix 2", None, status=Status.TIMEOUT), "time-out"),
        (standing("mix 2", None, status=Status.OUT_OF_MEMORY), "out of memory"),
        (standing("mix 2", None, status=Status.REFUSED), "refused"),
        (standing("mix 2", None, status=Status.FAILED), "failed"),
        (None, "not raced"),
    ],
)
def test_every_plan_has_a_verdict(other: FinalistResult | None, verdict: str) -> None:
    rows = rows_of({"mix 1": standing("mix 1", (1.0, 1.0, 1.0)), "mix 2": other})
    assert {row.name: row.verdict for row in rows} == {"mix 1": "returned", "mix 2": verdict}
    report = Report(winner="mix 1", rows=rows)
    assert all(verdict_of(report, row) for row in rows)


@pytest.mark.parametrize(
    ("found", "verdict", "said"),
    [
        (baseline(LEFT, Outcome(Status.OK, time=RACED, error=0.1)), "wrong", "differs by 1.0e-01"),
        (baseline(REDUCED, Outcome(Status.OK, time=RACED, error=0.1)), "over budget", "larger accuracy budget"),
        (baseline(LEFT, Outcome(Status.CRASHED, "SIGSEGV")), "crashed", "SIGSEGV"),
        (TargetBaseline(LEFT, Availability(False, reason="not installed")), "unavailable", "not installed"),
        (baseline(LEFT, Outcome(Status.OK, time=RACED), refusal="does not compute Relu"), "refused", "Relu"),
        # A part that computes wrongly says more than that the toolchain does not take the rest.
        (baseline(LEFT, Outcome(Status.WRONG, "y differs"), refusal="does not compute Relu"), "wrong", "y differs"),
    ],
)
def test_every_target_of_the_menu_has_a_row(found: TargetBaseline, verdict: str, said: str) -> None:
    rows = rows_of({"mix 1": standing("mix 1", (1.0, 1.0, 1.0))}, found)
    row = next(row for row in rows if row.target == str(found.target))
    assert row.verdict == verdict and said in (row.reason or "")
    told = named_but_failed(rows, ["llvm"])
    assert bool(told) == (verdict in ("wrong", "crashed", "unavailable", "refused"))
    assert all("--target" in warning and said in warning for warning in told)


def test_a_target_without_a_race_has_no_time_and_is_not_said_to_be_slow() -> None:
    rows = rows_of({"mix 1": standing("mix 1", (1.0, 1.0, 1.0))}, baseline(REDUCED, Outcome(Status.OK, time=RACED)))
    row = next(row for row in rows if row.target == str(REDUCED))
    assert (row.verdict, row.time_us, row.measured_us) == ("not raced", None, None)
    told = verdict_of(Report(winner="mix 1", rows=rows), row)
    assert "not judged" in told and "slow" not in told


def test_a_plan_that_is_left_out_is_shown_with_both_samples() -> None:
    rows = rows_of({"mix 1": standing("mix 1", (1.0, 1.0, 1.0)), "mix 2": standing("mix 2", None, slower=(2.04, 3.1))})
    assert "2.0 and 3.1 times as slow as the best in two samples" in verdict_of(
        Report(winner="mix 1", rows=rows), rows[1]
    )


def test_a_refusal_of_a_target_that_is_used_is_not_a_warning() -> None:
    found = baseline(LEFT, Outcome(Status.OK, time=RACED), refusal="does not compute Relu")
    rows = rows_of({"mix 1": standing("mix 1", (1.0, 1.0, 1.0))}, found)
    assert not named_but_failed(rows, [str(LEFT)])


def test_the_baseline_is_a_row_in_the_order_of_ratios() -> None:
    other = standing(BASELINE, (2.0, 1.9, 2.1), finalist={"is_candidate": False})
    rows = rows_of({"mix 1": standing("mix 1", (1.0, 1.0, 1.0)), BASELINE: other, "mix 2": standing("mix 2", None)})
    assert [(row.name, row.kind) for row in rows] == [("mix 1", "mix"), (BASELINE, "baseline"), ("mix 2", "mix")]
