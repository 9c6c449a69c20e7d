"""``CompileOptions.search``: what is measured in each mode, and that proofs hold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage._errors import UsageError
from collage.cost.outcome import Outcome, Status
from collage.cost.statistics import Summary
from collage.measure.jobs import Job
from collage.measure.noise_monitor import PATIENCE_VARIABLE
from collage.measure.session import MeasureSession
from collage.testing import FakeToolchain
from collage.toolchains import Registry
from collage.workers.worker import Worker
from tests.e2e.conftest import model_of

OPERATORS = ["Relu", "Neg", "Abs", "Exp", "Tanh", "Sigmoid"]
NAMES = ["left", "right"]
RANGES = len(OPERATORS) * (len(OPERATORS) + 1) // 2
PENALTIES = dict.fromkeys(NAMES, 1e-3)
"""Bounds of kernels so small are next to nothing; it is these that rule out covers of many kernels."""
WORKERS: dict[str, Worker] = {}


@pytest.fixture(scope="module", autouse=True)
def _end_workers() -> Iterator[None]:
    yield
    for worker in WORKERS.values():
        worker.kill()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Kernels cost what their operators and a seed say, whatever is expected of them."""
    seed = {"seed": 0}

    def measure(measure_session: MeasureSession, job: Job, compiled: dict[str, Any], build_s: float) -> Outcome:
        operators = [node.op_type for node in job.kernel.graph]
        draw = random.Random(f"{seed['seed']} {job.target.toolchain} {operators}")
        seconds = 1e-3 * len(operators) * draw.uniform(0.5, 1.5)
        return Outcome(Status.OK, None, Summary(seconds, seconds, seconds, 9, 0.0), 0.0, build_s)

    monkeypatch.setattr(MeasureSession, "_measure", measure)
    monkeypatch.setenv(PATIENCE_VARIABLE, "0")
    return seed


def report_of(folder: Path, db: str, **options: Any) -> dict[str, Any]:
    """The report of a compilation without finals, on a database of this name."""
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, op in enumerate(OPERATORS)]
    ports = {"v0": (TensorProto.FLOAT, [1, 8])}, {f"v{len(OPERATORS)}": (TensorProto.FLOAT, [1, 8])}
    onnx.save(model_of(nodes, *ports, {}), folder / "m.onnx")
    toolchains = Registry()
    for name in NAMES:
        toolchains.add(FakeToolchain(name=name))
    given = collage.CompileOptions(
        finals=False, db=str(folder / f"{db}.sqlite"), launch_penalties_s=PENALTIES, **options
    )
    found = collage.compile(folder / "m.onnx", NAMES, toolchains=toolchains, options=given, workers=WORKERS)
    return dict(found.report)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_proofs_end_with_what_measuring_everything_ends_with(clock: dict[str, int], seed: int, tmp_path: Path) -> None:
    clock["seed"] = seed
    everything, proof, fast = (report_of(tmp_path, mode, search=mode) for mode in ("exhaustive", "proof", "fast"))
    assert everything["search"]["keys"] == len(NAMES) * RANGES
    assert everything["search"]["measured"] == everything["search"]["keys"] > proof["search"]["measured"]
    assert proof["estimate_us"] == pytest.approx(everything["estimate_us"], rel=1e-9)
    assert [kernel["nodes"] for kernel in proof["kernels"]] == [kernel["nodes"] for kernel in everything["kernels"]]
    assert fast["estimate_us"] >= proof["estimate_us"] * (1 - 1e-9)
    for report in (everything, proof):
        assert report["search"]["optimal"]
        assert report["search"]["gap"] == pytest.approx(0.0, abs=1e-9)
    assert not fast["search"]["optimal"]
    assert [r["search"]["mode"] for r in (everything, proof, fast)] == ["exhaustive", "proof", "fast"]


def test_a_fast_search_goes_on_from_what_another_measured(clock: dict[str, int], tmp_path: Path) -> None:
    clock["seed"] = 1
    everything = report_of(tmp_path, "one", search="exhaustive")
    again = report_of(tmp_path, "one")
    assert again["search"]["measured"] == 0
    assert again["estimate_us"] == everything["estimate_us"]


@pytest.mark.parametrize("search", ["proof", pytest.param("exhaustive", marks=pytest.mark.slow)])
def test_budgets_hold_in_every_mode_and_the_next_search_goes_on(
    clock: dict[str, int], search: str, tmp_path: Path
) -> None:
    short = report_of(tmp_path, "one", search=search, measure_budget=5)
    assert short["search"]["measured"] <= 5 + len(NAMES)
    assert not short["search"]["optimal"]
    whole = report_of(tmp_path, "one", search=search)
    assert whole["search"]["optimal"]
    assert whole["estimate_us"] == report_of(tmp_path, "other", search=search)["estimate_us"]


def test_no_time_is_no_proof(clock: dict[str, int], tmp_path: Path) -> None:
    report = report_of(tmp_path, "one", search="exhaustive", time_budget_s=0.001)
    assert report["search"]["measured"] < report["search"]["keys"]
    assert not report["search"]["optimal"]


def test_a_mode_that_does_not_exist_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="fast, proof, exhaustive"):
        collage.CompileOptions(search="greedy")
