"""Compilations on machines whose clock is made up: noisy, slow for a while, wrong in places."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import collage
from collage.compiler.final_comparison import finalist_of
from collage.compiler.problem import Problem
from collage.cost.outcome import Outcome
from collage.cost.statistics import Interval, Summary
from collage.database.database import Database
from collage.measure.bench_findings import keep_faster
from collage.measure.finalist import Finalist, FinalistResult
from collage.measure.jobs import Job
from collage.measure.race import Comparison
from collage.measure.session import MeasureSession
from collage.plan import Plan
from collage.runtime import Recipe
from collage.status import Status
from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import Registry
from collage.workers.worker import Worker
from tests.e2e.conftest import model_of

OPERATORS = ["Relu"] * 4 + ["Neg"] * 4
SECONDS = {"left": {"Relu": 0.300, "Neg": 0.1}, "right": {"Relu": 0.285, "Neg": 0.9}}
"""The right mix is Relu on the right, 5 % faster there, and Neg on the left. Nothing takes that long: see ``Clock``."""


WORKERS: dict[str, Worker] = {}
SAID: list[str] = []
"""What compilations told since this was cleared."""


class Clock:
    """Measures exactly, but for what it is told of the first look at a kernel.

    Attributes:
        looks: How often each kernel was measured, by its toolchain and operators.
        first: By toolchain and the operators of a kernel, the factor that its first look is off by.
    """

    def __init__(self) -> None:
        self.looks: Counter[tuple[str, str]] = Counter()
        self.first: dict[tuple[str, str], float] = {}

    def measure(self, measure_session: MeasureSession, job: Job, compiled: dict[str, Any], known: Outcome) -> Outcome:
        operators = [node.op_type for node in job.kernel.graph]
        name = job.target.toolchain, " ".join(sorted(set(operators)))
        seconds = 1e-4 + sum(SECONDS.get(name[0], {}).get(operator, 0.0) for operator in operators)
        if not self.looks[name]:
            seconds *= self.first.get(name, 1.0)
        self.looks[name] += 1
        return Outcome(Status.OK, None, Summary(seconds, seconds, seconds, 9, 0.0), 0.0, known.build_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(MeasureSession, "_measure", lambda *args: clock.measure(*args))
    return clock


def compiled(
    folder: Path, operators: Sequence[str] = OPERATORS, finals: bool = False, **options: Any
) -> collage.Executable:
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, op in enumerate(operators)]
    ports = {"v0": (TensorProto.FLOAT, [1, 8])}, {f"v{len(operators)}": (TensorProto.FLOAT, [1, 8])}
    onnx.save(model_of(nodes, *ports, {}), folder / "m.onnx")
    toolchains = Registry()
    for name in SECONDS:
        toolchains.add(FakeToolchain(name=name))
    given = collage.CompileOptions(finals=finals, db=str(folder / "db.sqlite"), baseline="none", **options)
    return collage.compile(
        folder / "m.onnx",
        list(SECONDS),
        toolchains=toolchains,
        options=given,
        workers=WORKERS,
        progress=lambda event: SAID.append(event.text),
    )


def plan(executable: collage.Executable) -> list[tuple[str, int]]:
    return [(kernel["target"].split("=")[-1], len(kernel["nodes"])) for kernel in executable.report["kernels"]]


@pytest.fixture(scope="module", autouse=True)
def _end_workers() -> Iterator[None]:
    yield
    for worker in WORKERS.values():
        worker.kill()


BEST = [("right", 4), ("left", 4)]


def test_a_machine_that_was_slow_for_a_while_is_forgiven(clock: Clock, tmp_path: Path) -> None:
    clock.first["left", "Neg Relu"] = clock.first["right", "Neg Relu"] = 1.7
    executable = compiled(tmp_path)
    singles = [answer.whole_us for answer in executable.explain().targets]
    assert singles == pytest.approx([1_600_100, 4_740_100]), (
        "whole models are measured twice, and the faster run counts"
    )
    assert plan(executable) == BEST


def test_what_the_database_knows_is_not_looked_at_again(clock: Clock, tmp_path: Path) -> None:
    first = plan(compiled(tmp_path))
    clock.looks.clear()
    assert plan(compiled(tmp_path)) == first
    assert not clock.looks
    with Database(str(tmp_path / "db.sqlite")) as database:
        assert database.complaints() is None


KINDS = ["Relu", "Neg", "Abs", "Exp", "Tanh"]


class NoisyMachine:
    """A chain of operators and what they cost on each target; every look at a kernel is off by some noise.

    Attributes:
        looks: How often each kernel was measured.
        races: How many races were held. A plan's time is what its kernels cost, and a tax for each that follows another.

    Args:
        seed: Of everything.
        noise: Standard deviation of the logarithm of what is measured.
        slow: How many times as long parts of the model take while they are measured.
        tax: Seconds by which a kernel takes longer that follows another one.
    """

    def __init__(self, seed: int, noise: float = 0.15, slow: float = 1.0, tax: float = 0.5) -> None:
        self.noise, self.slow, self.tax = noise, slow, tax
        self.seed = seed
        self.rng = random.Random(seed)
        self.operators = [self.rng.choice(KINDS) for _ in range(self.rng.randint(6, 14))]
        self.costs = {target: {kind: self.rng.uniform(0.5, 2.0) for kind in KINDS} for target in SECONDS}
        self.looks: Counter[tuple[str, str]] = Counter()
        self.races = 0
        self.plans: dict[str, Plan] = {}

    def take_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Everything is measured and raced on this machine."""
        monkeypatch.setattr(MeasureSession, "_measure", lambda *args: self.measure(*args))
        monkeypatch.setattr(MeasureSession, "check", lambda *args: self.check(*args))
        monkeypatch.setattr("collage.compiler.final_comparison.finalist_of", self.finalist)
        monkeypatch.setattr("collage.compiler.final_comparison.race", self.race)
        monkeypatch.setattr("collage.compiler.final_comparison.why_wrong", lambda *_: None)

    def seconds(self, target: Target, nodes: Iterable[ir.Node]) -> float:
        return 0.2 + sum(self.costs.get(target.toolchain, {}).get(node.op_type, 0.0) for node in nodes)

    def measure(self, measure_session: MeasureSession, job: Job, compiled: dict[str, Any], known: Outcome) -> Outcome:
        which = job.target.toolchain, job.structure
        self.looks[which] += 1
        noise = random.Random(f"{self.seed} {which} {self.looks[which]}").lognormvariate(0.0, self.noise)
        seconds = noise * self.seconds(job.target, job.kernel.graph)
        seconds *= self.slow if len(job.kernel.graph) < len(self.operators) else 1.0
        return Outcome(Status.OK, None, Summary(seconds, seconds, seconds, 9, 0.0), 0.0, known.build_s)

    def check(self, measure_session: MeasureSession, job: Job) -> str | None:
        """One part of a model in seven is wrong where it is, if another of equal key was right."""
        nodes = [node.name for node in job.kernel.graph]
        is_wrong = random.Random(f"{self.seed} {job.target} {nodes}").random() < 1 / 7
        return "wrong here" if is_wrong and len(nodes) < len(self.operators) else None

    def finalist(self, problem: Problem, session: MeasureSession, plan: Plan, recipe: Recipe | None) -> Finalist:
        self.plans[plan.name] = plan
        return finalist_of(problem, session, plan, recipe)

    def race(self, finalists: Sequence[Finalist], *_: object, **__: object) -> Comparison:
        self.races += 1
        standings = []
        for finalist in finalists:
            seconds = self.plan_s(self.plans[finalist.name]) * self.rng.lognormvariate(0.0, 0.05)
            time = Summary(seconds, seconds, seconds, 9, 0.0)
            standings.append(FinalistResult(finalist, Status.OK, time, None, 0.0, 0.0))
        winner = min(standings, key=lambda s: s.time.median_s if s.time else 0.0)
        assert winner.time is not None
        for i, standing in enumerate(standings):
            assert standing.time is not None
            ratio = standing.time.median_s / winner.time.median_s
            standings[i] = replace(standing, ratio=(ratio, Interval(ratio, ratio)))
        winner = next(s for s in standings if s.finalist.name == winner.finalist.name)
        return Comparison(winner, None, None, standings)

    def plan_s(self, plan: Plan) -> float:
        seconds = sum(self.seconds(kernel.target, kernel.sub_graph.nodes) for kernel in plan.kernels)
        return seconds + self.tax * (len(plan.kernels) - 1)


def assert_a_second_compile_does_nothing_else(machine: NoisyMachine, folder: Path, first: collage.Executable) -> None:
    done = machine.looks.total(), machine.races
    second = compiled(folder, machine.operators, finals=True)
    assert (machine.looks.total(), machine.races) == done
    assert not any(second.report["search"][what] for what in ("measured", "raced"))
    assert [(k["target"], k["nodes"]) for k in second.report["kernels"]] == [
        (k["target"], k["nodes"]) for k in first.report["kernels"]
    ]


@pytest.mark.parametrize("seed", [7, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (16, 26, 50))])
def test_a_second_compile_measures_and_races_nothing_and_chooses_the_same_however_noisy_the_first_was(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = NoisyMachine(seed)
    machine.take_over(monkeypatch)
    first = compiled(tmp_path, machine.operators, finals=True)
    assert_a_second_compile_does_nothing_else(machine, tmp_path, first)


def test_what_bench_found_to_be_faster_is_raced_again_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = NoisyMachine(7)
    machine.take_over(monkeypatch)
    first = compiled(tmp_path, machine.operators, finals=True)
    races = machine.races
    (faster, *_) = (row.target for row in first.report.rows if row.kind == "single" and row.verdict != "returned")
    with Database(str(tmp_path / "db.sqlite")) as database:
        keep_faster(database, str(first.recipe.model["sha256"]), [str(faster)])
    for _ in range(2):
        compiled(tmp_path, machine.operators, finals=True)
        assert machine.races == races + 1


def cheapest_s(machine: NoisyMachine) -> float:
    """Seconds of the best partitioning of a chain whose kernels are what they are."""
    best = [0.0]
    for end in range(1, len(machine.operators) + 1):
        kernels = ((start, target) for start in range(end) for target in SECONDS)
        best.append(
            min(
                best[start] + 0.2 + sum(machine.costs[t][op] for op in machine.operators[start:end])
                for start, t in kernels
            )
        )
    return best[-1]


def above_the_best(machine: NoisyMachine, executable: collage.Executable) -> float:
    """Share by which what was chosen takes longer than the best partitioning."""
    chosen_s = sum(
        0.2 + sum(machine.costs[k["target"].split("=")[-1]][machine.operators[int(n[1:])]] for n in k["nodes"])
        for k in executable.report["kernels"]
    )
    return chosen_s / cheapest_s(machine) - 1.0


def compiled_while_slow(
    seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[NoisyMachine, collage.Executable]:
    machine = NoisyMachine(seed, noise=0.03, slow=1.35, tax=0.0)
    machine.take_over(monkeypatch)
    monkeypatch.setattr(MeasureSession, "check", lambda *_: None)
    return machine, compiled(folder, machine.operators, finals=True)


@pytest.mark.slow
def test_of_many_such_machines_little_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 3.0 % in the mean; 5.6 % without the second search.
    above = []
    for seed in range(200, 236):
        (folder := tmp_path / str(seed)).mkdir()
        above.append(above_the_best(*compiled_while_slow(seed, folder, monkeypatch)))
    assert statistics.mean(above) <= 0.04
