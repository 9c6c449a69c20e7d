"""One thread is tried for small models only, on every target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import onnx_ir as ir
import pytest

from collage.compiler import variants
from collage.compiler.survey import Survey
from collage.compiler.variants import with_one_thread
from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary
from collage.graph import DataflowGraph
from collage.measure.baselines import TargetBaseline
from collage.options import CompileOptions
from collage.status import Status
from collage.target import Target
from collage.toolchains import Availability

MODEL = '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
FAST, SLOW, FAR = (Target.parse(f"llvm -compiler={name}") for name in ("fast", "slow", "far"))
PLAIN = Target.parse("llvm -compiler=plain")


TOOLCHAINS = SimpleNamespace(
    for_target=lambda target: SimpleNamespace(options={} if target == PLAIN else {"threads": "number"})
)


@dataclass(frozen=True)
class _Problem:
    """What is read of a problem."""

    menu: tuple[Target, ...]
    options: Any = field(default_factory=CompileOptions)
    placement: Any = None
    tolerance: float = 1e-4
    graph: Any = field(default_factory=lambda: DataflowGraph(ir.from_onnx_text(MODEL)))
    choices: Any = field(default_factory=lambda: SimpleNamespace(allows=lambda *_: True))
    is_bound: Any = field(default_factory=lambda: lambda _: False)
    toolchains: Any = field(default_factory=lambda: TOOLCHAINS)
    kernels: Any = field(
        default_factory=lambda: SimpleNamespace(in_float=lambda _: (), keep_in_float=lambda target, _: None)
    )


def baseline(target: Target, seconds: float, error: float = 0.0) -> TargetBaseline:
    time = Summary(seconds, seconds, seconds, 9, 0.0)
    outcome = Outcome(Status.OK, time=time, error=error)
    return TargetBaseline(target, Availability(True), ranges=(1,), outcomes=(outcome,))


def surveyed(seconds: Mapping[Target, float], **problem: Any) -> Survey:
    told: Any = _Problem(tuple(seconds), **problem)
    reference: Any = None
    return Survey(told, reference, {target: baseline(target, s) for target, s in seconds.items()})


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> dict[Target, float]:
    """Seconds of each target on one thread, to be filled."""
    found: dict[Target, float] = {}

    def measured(_: Any, targets: Sequence[Target], __: Any) -> dict[Target, TargetBaseline]:
        return {one: baseline(one, found[target]) for one in targets for target in found if one == on_one(target)}

    monkeypatch.setattr(variants, "baselines_of", measured)
    monkeypatch.setattr(variants, "thread_count", lambda: 4)
    return found


def on_one(target: Target) -> Target:
    return target.with_options(threads="1")


def result(survey: Survey) -> Survey:
    session: Any = SimpleNamespace(say=lambda _: None)
    return with_one_thread(survey, session)


def test_every_target_is_tried_however_slow_its_times_alone_are(one_thread: dict[Target, float]) -> None:
    one_thread |= {FAST: 0.0019, SLOW: 0.0007, FAR: 0.02}
    got = result(surveyed({SLOW: 0.002, FAST: 0.001, FAR: 0.009, PLAIN: 0.001}))
    assert got.problem.menu == (SLOW, FAST, FAR, PLAIN, *map(on_one, (SLOW, FAST, FAR)))
    assert set(got.baselines) == set(got.problem.menu)
    assert got.best_single_s == 0.0007


def test_a_reduced_target_that_is_far_behind_is_not_tried(one_thread: dict[Target, float]) -> None:
    near, far = (target.with_options(precision="int8") for target in (SLOW, FAR))
    one_thread |= {FAST: 0.0019, near: 0.0007}
    got = result(surveyed({FAST: 0.001, near: 0.0019, far: 0.0026}))
    assert got.problem.menu == (FAST, near, far, on_one(FAST), on_one(near))


def test_a_variant_that_is_on_the_menu_is_not_tried_again(one_thread: dict[Target, float]) -> None:
    survey = surveyed({FAST: 0.001, FAST.with_options(threads="1"): 0.001})
    assert result(survey) is survey


@pytest.mark.parametrize(
    ("seconds", "problem"),
    [
        ({FAST: 0.004}, {}),
        ({}, {}),
        ({PLAIN: 0.001}, {}),
        ({FAST.with_options(threads="2"): 0.001}, {}),
        ({FAST: 0.001}, {"options": CompileOptions(threads=2)}),
        ({FAST: 0.001}, {"options": CompileOptions(objective="throughput")}),
        ({FAST: 0.001}, {"placement": SimpleNamespace()}),
    ],
    ids=["large", "no target", "no option", "a number by hand", "a number for all", "throughput", "devices"],
)
def test_nothing_is_tried(
    seconds: dict[Target, float], problem: dict[str, Any], one_thread: dict[Target, float]
) -> None:
    survey = surveyed(seconds, **problem)
    assert result(survey) is survey


def test_a_machine_of_one_core_has_nothing_to_choose(
    one_thread: dict[Target, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "thread_count", lambda: 1)
    survey = surveyed({FAST: 0.001})
    assert result(survey) is survey
