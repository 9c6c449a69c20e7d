"""What much depends on is measured twice: what was lucky is not believed, and what met a slow machine is forgiven."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.cost.calm import PATIENCE_VARIABLE
from collage.cost.database import Database
from collage.cost.jobs import Job
from collage.cost.outcome import Outcome, Status
from collage.cost.statistics import Summary
from collage.cost.worker import Worker
from collage.cost.workshop import Workshop
from collage.testing import FakeToolchain
from collage.toolchains import Registry
from tests.e2e.conftest import model_of

OPERATORS = ["Relu"] * 4 + ["Neg"] * 4
SECONDS = {"left": {"Relu": 0.300, "Neg": 0.1}, "right": {"Relu": 0.285, "Neg": 0.9}}
"""The right mix is Relu on the right, 5 % faster there, and Neg on the left. Nothing takes that long: see ``Clock``."""


WORKERS: dict[str, Worker] = {}


class Clock:
    """Measures exactly, but for what it is told of the first look at a kernel.

    Attributes:
        looks: How often each kernel was measured, by its toolchain and operators.
        first: By toolchain and the operators of a kernel, the factor that its first look is off by.
    """

    def __init__(self) -> None:
        self.looks: Counter[tuple[str, str]] = Counter()
        self.first: dict[tuple[str, str], float] = {}

    def measure(self, workshop: Workshop, job: Job, compiled: dict[str, Any], build_s: float) -> Outcome:
        operators = [node.op_type for node in job.kernel.graph]
        name = job.target.toolchain, " ".join(sorted(set(operators)))
        seconds = 1e-4 + sum(SECONDS.get(name[0], {}).get(operator, 0.0) for operator in operators)
        if not self.looks[name]:
            seconds *= self.first.get(name, 1.0)
        self.looks[name] += 1
        return Outcome(Status.OK, None, Summary(seconds, seconds, seconds, 9, 0.0), 0.0, build_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(Workshop, "_measure", lambda *args: clock.measure(*args))
    monkeypatch.setenv(PATIENCE_VARIABLE, "0")
    return clock


def compiled(folder: Path, operators: Sequence[str] = OPERATORS) -> collage.Executable:
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, op in enumerate(operators)]
    ports = {"v0": (TensorProto.FLOAT, [1, 8])}, {f"v{len(operators)}": (TensorProto.FLOAT, [1, 8])}
    onnx.save(model_of(nodes, *ports, {}), folder / "m.onnx")
    toolchains = Registry()
    for name in SECONDS:
        toolchains.add(FakeToolchain(name=name))
    options = collage.CompileOptions(finals=False, db=str(folder / "db.sqlite"))
    return collage.compile(folder / "m.onnx", list(SECONDS), toolchains=toolchains, options=options, workers=WORKERS)


def plan(executable: collage.Executable) -> list[tuple[str, int]]:
    return [(kernel["target"].split("=")[-1], len(kernel["nodes"])) for kernel in executable.report["kernels"]]


@pytest.fixture(scope="module", autouse=True)
def _end_workers() -> Iterator[None]:
    yield
    for worker in WORKERS.values():
        worker.kill()


BEST = [("right", 4), ("left", 4)]


def test_what_was_chosen_for_being_lucky_is_not_believed(clock: Clock, tmp_path: Path) -> None:
    clock.first["left", "Neg Relu"] = 0.88
    assert plan(compiled(tmp_path)) == BEST
    assert clock.looks["left", "Neg Relu"] >= 2


def test_a_machine_that_was_slow_for_a_while_is_forgiven(clock: Clock, tmp_path: Path) -> None:
    clock.first["left", "Neg Relu"] = clock.first["right", "Neg Relu"] = 1.7
    executable = compiled(tmp_path)
    singles = [row["measured_us"]["median"] for row in executable.report["singles"]]
    assert singles == pytest.approx([1_600_100, 4_740_100])
    assert plan(executable) == BEST


def test_what_the_database_knows_is_not_looked_at_again(clock: Clock, tmp_path: Path) -> None:
    first = plan(compiled(tmp_path))
    clock.looks.clear()
    assert plan(compiled(tmp_path)) == first
    assert not clock.looks
    with Database(str(tmp_path / "db.sqlite")) as database:
        assert database.complaints() is None


@pytest.mark.parametrize("seed", [7, 16, 26, 50])
def test_a_second_compile_measures_nothing_and_chooses_the_same_however_noisy_the_first_was(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, kinds = random.Random(seed), ["Relu", "Neg", "Abs", "Exp", "Tanh"]
    operators = [rng.choice(kinds) for _ in range(rng.randint(6, 14))]
    costs = {target: {kind: rng.uniform(0.5, 2.0) for kind in kinds} for target in SECONDS}
    looks: Counter[tuple[str, str]] = Counter()

    def measure(workshop: Workshop, job: Job, compiled: dict[str, Any], build_s: float) -> Outcome:
        which = job.target.toolchain, job.structure
        looks[which] += 1
        noise = random.Random(f"{seed} {which} {looks[which]}").lognormvariate(0.0, 0.15)
        found = [node.op_type for node in job.kernel.graph]
        seconds = noise * (0.2 + sum(costs.get(which[0], {}).get(operator, 0.0) for operator in found))
        return Outcome(Status.OK, None, Summary(seconds, seconds, seconds, 9, 0.0), 0.0, build_s)

    monkeypatch.setattr(Workshop, "_measure", measure)
    monkeypatch.setenv(PATIENCE_VARIABLE, "0")
    first = compiled(tmp_path, operators)
    looks.clear()
    second = compiled(tmp_path, operators)
    assert not looks
    assert second.report["search"]["measured"] == 0
    assert [(k["target"], k["nodes"]) for k in second.report["kernels"]] == [
        (k["target"], k["nodes"]) for k in first.report["kernels"]
    ]
