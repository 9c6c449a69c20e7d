"""The order in which targets are measured on the whole model, and which of them are left out if time is short."""

from __future__ import annotations

from typing import Any

import pytest

from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary
from collage.measure import baselines
from collage.measure.baselines import TargetBaseline, measure_baselines
from collage.status import Status
from collage.target import Target
from collage.toolchains import Availability, Support

NAMES = ("onnxruntime", "onnxruntime -precision=int8-dynamic", "onnxruntime -precision=int8", "openvino")
NAMES += ("openvino -precision=bf16", "openvino -precision=w4")
NATIVE = Target.parse("llvm")
MENU = [NATIVE, *(Target.parse(f"llvm -compiler={name}") for name in NAMES)]


class _Toolchains:
    def for_target(self, target: Target) -> Any:
        class Toolchain:
            optimises_whole_graphs = target != NATIVE

        return Toolchain


class _Session:
    def availability(self, target: Target) -> Availability:
        return Availability(True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Targets that were measured, in order."""
    found: list[str] = []

    class Measurer:
        def __init__(self, _: Any, target: Target, *more: Any) -> None:
            self.target = target

        def baselines(self, availability: Availability, abandon_above_s: float) -> TargetBaseline:
            found.append(self.target.short)
            outcome = Outcome(Status.OK, time=Summary(1.0, 1.0, 1.0, 9, 0.0))
            return TargetBaseline(self.target, availability, {}, (1,), (outcome,))

    monkeypatch.setattr(baselines, "_BaselineMeasurer", Measurer)
    monkeypatch.setattr(baselines, "_remeasure", lambda found, *_: found)
    return found


def measured(menu: list[Target], **more: Any) -> Any:
    nothing: Any = None
    toolchains: Any = _Toolchains()
    session: Any = _Session()
    return measure_baselines(nothing, menu, toolchains, nothing, nothing, session, nothing, **more)


def test_own_precision_comes_first_then_floats_then_bytes(asked: list[str]) -> None:
    found = measured(MENU)
    assert list(found) == MENU
    assert asked == [
        "onnxruntime",
        "openvino",
        "openvino -precision=bf16",
        "onnxruntime -precision=int8",
        "onnxruntime -precision=int8-dynamic",
        "openvino -precision=w4",
        "llvm",
    ]


def test_what_is_left_out_says_why(asked: list[str]) -> None:
    found = measured(MENU, why_not=lambda target: "no time" if target.is_reduced else None)
    assert asked == ["onnxruntime", "openvino", "llvm"]
    assert all((found[target].refusal == "no time") == target.is_reduced for target in MENU)
    assert not any(found[target].ranges for target in MENU if target.is_reduced)


def test_something_is_measured_however_late_it_is(asked: list[str]) -> None:
    measured([MENU[3], MENU[5]], why_not=lambda _: "no time")
    assert asked == ["openvino -precision=bf16"]


@pytest.mark.parametrize("fails_to_build", [False, True], ids=["imports tell", "one imports and does not build"])
def test_operators_are_built_only_if_imports_do_not_tell(fails_to_build: bool) -> None:
    tried: list[tuple[str, int]] = []
    bad = 1

    class Measurer(baselines._BaselineMeasurer):
        def _probe(self, *, by_import: bool) -> dict[int, Support]:
            tried.append(("import" if by_import else "build", len(self.graph)))
            return {i: Support(i != bad or (by_import and fails_to_build)) for i in range(len(self.graph))}

        def _measure(self, ranges: Any, abandon_above_s: float) -> list[Outcome]:
            fits = [not bits >> bad & 1 for bits in ranges]
            return [Outcome(Status.OK if each else Status.FAILED, time=Summary(1, 1, 1, 9, 0)) for each in fits]

        def _profile(self, ranges: Any, outcomes: Any) -> dict[int, float]:
            return {}

    class Graph:
        kernel_call_bits = 0

        def __len__(self) -> int:
            return 4

    nothing: Any = None
    graph: Any = Graph()
    found = Measurer(graph, NATIVE, nothing, nothing, nothing, nothing, True).baselines(Availability(True), 9.0)
    assert [how for how, _ in tried] == (["import", "build"] if fails_to_build else ["import"])
    assert found.ranges == (0b1100, 0b0001) and all(outcome.status is Status.OK for outcome in found.outcomes)
