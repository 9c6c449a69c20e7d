"""The order in which targets are measured on the whole model, and which of them are left out if time is short."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from collage._errors import (
    CompileError,
    ToolchainError,
    WorkerCrash,
    WorkerLost,
    WorkerOutOfMemory,
    WorkerTimeout,
)
from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary
from collage.database.database import Database
from collage.measure import baselines
from collage.measure.baselines import Step, TargetBaseline, attributed, measure_baselines
from collage.measure.quarantine import Quarantined
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
    found = measured(MENU, why_not=lambda target, _: "no time" if target.is_reduced else None)
    assert asked == ["onnxruntime", "openvino", "llvm"]
    assert all((found[target].refusal == "no time") == target.is_reduced for target in MENU)
    assert not any(found[target].ranges for target in MENU if target.is_reduced)


def test_a_step_is_known_by_its_first_node_and_unnamed_nodes_by_what_they_read() -> None:
    steps = [Step((2, 0, 1), 3.0), Step((4,), 1.0)]
    seconds, known_by = attributed(steps, [10, 11, 12, 13, 14, 15], lambda i: [i - 1] if i > 10 else [], 8.0)
    assert seconds == {10: 0.0, 11: 0.0, 12: 6.0, 13: 0.0, 14: 2.0, 15: 0.0}
    assert known_by == {10: 12, 11: 12, 12: 12, 13: 12, 14: 14, 15: 14}


@pytest.mark.parametrize("steps", [[], [Step((), 1.0)], [Step((0,), 1.0), Step((2,), 1.0)], [Step((0, 1), 0.0)]])
def test_a_profile_of_other_nodes_or_of_no_time_is_none(steps: list[Step]) -> None:
    assert attributed(steps, [0, 1], lambda _: [], 8.0) == ({}, {})


def test_something_is_measured_however_late_it_is(asked: list[str]) -> None:
    measured([MENU[3], MENU[5]], why_not=lambda *_: "no time")
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

        def _profile(self, ranges: Any, outcomes: Any) -> tuple[dict[int, float], dict[int, int]]:
            return {}, {}

    class Graph:
        kernel_call_bits = 0

        def __len__(self) -> int:
            return 4

    nothing: Any = None
    graph: Any = Graph()
    found = Measurer(graph, NATIVE, nothing, nothing, nothing, nothing, True).baselines(Availability(True), 9.0)
    assert [how for how, _ in tried] == (["import", "build"] if fails_to_build else ["import"])
    assert found.ranges == (0b1100, 0b0001) and all(outcome.status is Status.OK for outcome in found.outcomes)


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (CompileError("no"), True),
        (WorkerCrash("SIGSEGV"), True),
        (WorkerLost("SIGKILL"), False),
        (WorkerTimeout("late"), False),
        (WorkerOutOfMemory("full"), False),
        (Quarantined("not tried"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_operator_that_failed_by_accident_is_tried_again(error: ToolchainError, is_kept: bool) -> None:
    tried: list[Target] = []
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 17}, name="kernel"), ir_version=10)

    class Graph:
        def __len__(self) -> int:
            return 1

        def is_kernel_call(self, _: int) -> bool:
            return False

    class Kernels:
        def model(self, *_: Any) -> ir.Model:
            return model

    class Session(_Session):
        def build_of(self, _: Target) -> str:
            return "1"

        def recall_fact(self, kind: Any, **name: Any) -> Any:
            return database.fact(kind, **name)

        def try_build(self, _: ir.Model, target: Target) -> ToolchainError:
            tried.append(target)
            return error

    graph: Any = Graph()
    kernels: Any = Kernels()
    session: Any = Session()
    nothing: Any = None
    with Database("sqlite:///:memory:") as database:
        measurer = baselines._BaselineMeasurer(graph, NATIVE, kernels, nothing, session, database, can_import=False)
        assert not any(measurer._probe(by_import=False)[0].ok for _ in range(2))
    assert len(tried) == (1 if is_kept else 2)
