"""A chain of operators on two or three fake toolchains whose kernels take what is declared: nothing of it is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary
from collage.measure.jobs import Job
from collage.measure.session import MeasureSession
from collage.status import Status
from collage.testing import FakeToolchain
from collage.toolchains import Registry
from collage.workers.worker import Worker
from tests.e2e.conftest import model_of

OPERATORS = ["Relu"] * 4 + ["Neg"] * 4
SECONDS: Mapping[str, Mapping[str, float]] = {
    "left": {"Relu": 0.300, "Neg": 0.1},
    "right": {"Relu": 0.285, "Neg": 0.9},
}
"""The best plan is Relu on the right and Neg on the left."""

WRONG = "wrong"
"""A toolchain of this name computes Neg wrongly and refuses nothing; it would be fast."""


def declare(monkeypatch: pytest.MonkeyPatch, seconds: Mapping[str, Mapping[str, float]] = SECONDS) -> list[str]:
    """Make kernels take what is declared; returns the list to which the names of measured kernels are added."""
    measured: list[str] = []

    def measure(session: MeasureSession, job: Job, compiled: dict[str, Any], known: Outcome) -> Outcome:
        operators = [node.op_type for node in job.kernel.graph]
        measured.append(f"{job.target.toolchain}: {' '.join(operators)}")
        if job.target.toolchain == WRONG and "Neg" in operators:
            return Outcome(Status.WRONG, "differs by 4.5e-01", None, 0.45, known.build_s)
        took = 1e-4 + sum(seconds.get(job.target.toolchain, {}).get(operator, 0.0) for operator in operators)
        return Outcome(Status.OK, None, Summary(took, took, took, 9, 0.01), 0.0, known.build_s)

    monkeypatch.setattr(MeasureSession, "_measure", lambda *args: measure(*args))
    return measured


def chain(operators: Sequence[str] = OPERATORS) -> onnx.ModelProto:
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, op in enumerate(operators)]
    ports = {"v0": (TensorProto.FLOAT, [1, 8])}, {f"v{len(operators)}": (TensorProto.FLOAT, [1, 8])}
    return model_of(nodes, *ports, {})


def fakes(*names: str) -> Registry:
    toolchains = Registry()
    for name in names or tuple(SECONDS):
        toolchains.add(FakeToolchain(name=name))
    return toolchains


def compiled(
    folder: Path, workers: dict[str, Worker], names: Sequence[str] = tuple(SECONDS), **options: Any
) -> collage.Executable:
    onnx.save(chain(), folder / "m.onnx")
    given = collage.CompileOptions(**{"finals": False, "db": str(folder / "db.sqlite"), **options})
    return collage.compile(folder / "m.onnx", list(names), toolchains=fakes(*names), options=given, workers=workers)


def plan_of(executable: collage.Executable) -> list[tuple[str, int]]:
    """Return toolchain and number of operators of each kernel."""
    kernels = executable.explain().kernels
    return [(each.chosen.kernel.target.split("=")[-1], len(each.chosen.kernel.nodes)) for each in kernels]
