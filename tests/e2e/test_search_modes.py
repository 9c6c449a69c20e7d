"""``CompileOptions.search`` and ``strategy``: what is measured, that proofs hold, and which algorithm ran."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage._errors import UsageError
from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary
from collage.measure.jobs import Job
from collage.measure.session import MeasureSession
from collage.search import SearchResult, measure_all, result_of_cover, strategies
from collage.status import Status
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

    def measure(measure_session: MeasureSession, job: Job, compiled: dict[str, Any], known: Outcome) -> Outcome:
        operators = [node.op_type for node in job.kernel.graph]
        draw = random.Random(f"{seed['seed']} {job.target.toolchain} {operators}")
        seconds = 1e-3 * len(operators) * draw.uniform(0.5, 1.5)
        return Outcome(Status.OK, None, Summary(seconds, seconds, seconds, 9, 0.0), 0.0, known.build_s)

    monkeypatch.setattr(MeasureSession, "_measure", measure)
    return seed


def report_of(folder: Path, db: str, menu: Sequence[str] = NAMES, **options: Any) -> dict[str, Any]:
    """The report of a compilation without finals, on a database of this name."""
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, op in enumerate(OPERATORS)]
    ports = {"v0": (TensorProto.FLOAT, [1, 8])}, {f"v{len(OPERATORS)}": (TensorProto.FLOAT, [1, 8])}
    onnx.save(model_of(nodes, *ports, {}), folder / "m.onnx")
    toolchains = Registry()
    for name in NAMES:
        toolchains.add(FakeToolchain(name=name))
    options = {"finals": False, **options}
    given = collage.CompileOptions(db=str(folder / f"{db}.sqlite"), launch_penalties_s=PENALTIES, **options)
    found = collage.compile(folder / "m.onnx", menu, toolchains=toolchains, options=given, workers=WORKERS)
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


@pytest.mark.slow
@pytest.mark.parametrize("search", ["proof", "exhaustive"])
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


@pytest.mark.slow  # The lazy one is held against everything above, and all of them in tests/unit/search, on costs that are given.
@pytest.mark.parametrize("strategy", ["lazy", "exhaustive", "wide", "evolutionary"])
def test_every_strategy_proves_the_same_plan_and_is_named_in_the_report(
    clock: dict[str, int], strategy: str, tmp_path: Path
) -> None:
    clock["seed"] = 2
    everything = report_of(tmp_path, "everything", search="exhaustive")
    report = report_of(tmp_path, strategy, search="proof", strategy=strategy)
    assert (everything["search"]["algorithm"], report["search"]["algorithm"]) == ("lazy", strategy)
    assert (everything["search"]["mode"], report["search"]["mode"]) == ("exhaustive", "proof")
    assert report["search"]["optimal"]
    assert report["estimate_us"] == pytest.approx(everything["estimate_us"], rel=1e-9)
    is_all = report["search"]["measured"] == everything["search"]["measured"]
    assert is_all == (strategy == "exhaustive")


# The limits are those of one class, which every strategy is given.
@pytest.mark.parametrize("strategy", ["exhaustive", pytest.param("wide", marks=pytest.mark.slow)])
def test_a_strategy_keeps_to_the_budget_of_a_fast_search(clock: dict[str, int], strategy: str, tmp_path: Path) -> None:
    report = report_of(tmp_path, "one", strategy=strategy, measure_budget=9)
    assert 0 < report["search"]["measured"] <= 9 + len(NAMES)
    assert report["search"]["mode"] == "fast"


class PairByPair:
    """Take the first candidate for each two operators in a row, and measure nothing else."""

    name = "pairs"

    def run(self, problem: Any, costs: Any, limits: Any) -> SearchResult[Any]:
        pairs = {c.bits: c for c in reversed(problem.candidates)}
        cover = [pairs[0b11 << node] for node in range(0, problem.n, 2)]
        measure_all(replace(problem, candidates=tuple(cover)), costs, limits)
        return result_of_cover(cover, problem, costs, stopped_by="tired")


@pytest.fixture
def pair_by_pair() -> Iterator[str]:
    strategies().add(PairByPair())
    yield PairByPair.name
    strategies.cache_clear()


def test_a_strategy_of_others_decides_what_is_measured(
    clock: dict[str, int], pair_by_pair: str, tmp_path: Path
) -> None:
    pairs = len(OPERATORS) // 2  # Half of it is too little for profiles by segments.
    report = report_of(tmp_path, "one", strategy=pair_by_pair, measure_budget=pairs)
    assert (report["search"]["algorithm"], report["search"]["stopped_by"]) == (pair_by_pair, "tired")
    assert not report["search"]["optimal"]
    assert report["search"]["measured"] == len(NAMES) + pairs  # The whole model on each, and the pairs.
    assert sorted(node for kernel in report["kernels"] for node in kernel["nodes"]) == [f"n{i}" for i in range(6)]


def test_the_exhaustive_strategy_measures_every_candidate_unless_it_has_a_budget(
    clock: dict[str, int], tmp_path: Path
) -> None:
    search = report_of(tmp_path, "one", strategy="exhaustive")["search"]
    assert search["measured"] == search["keys"]
    assert (search["mode"], search["algorithm"]) == ("fast", "exhaustive")


class Faulty(PairByPair):
    """Return the same pair twice; it is asked once."""

    name = "faulty"
    asked = 0

    def run(self, problem: Any, costs: Any, limits: Any) -> SearchResult[Any]:
        Faulty.asked += 1
        result = super().run(problem, costs, limits)
        assert result.partitioning is not None
        cover = result.partitioning.candidates
        return replace(result, partitioning=replace(result.partitioning, candidates=(cover[0], *cover)))


def test_a_faulty_strategy_of_others_is_told_of_and_breaks_nothing(clock: dict[str, int], tmp_path: Path) -> None:
    lazy = report_of(tmp_path, "lazy", measure_budget=60)
    strategies().add(Faulty())
    try:
        report = report_of(tmp_path, "one", strategy=Faulty.name, measure_budget=60)
        again = report_of(tmp_path, "one", strategy=Faulty.name, measure_budget=60)
    finally:
        strategies.cache_clear()
    said = "search strategy 'faulty' returned a partitioning that covers nodes twice"
    for found in (report, again):
        assert found["warnings"][0].startswith(said)
        assert found["search"]["algorithm"] == "lazy"
    assert Faulty.asked == 2
    assert report["estimate_us"] <= lazy["estimate_us"] * 1.2


class Refining(PairByPair):
    """Take pairs, and then propose single operators, of which it has one plan timed."""

    name = "refining"

    def __init__(self) -> None:
        self.times: list[float] = []

    def refine(self, problem: Any, costs: Any, seeds: Any, timer: Any) -> list[list[Any]]:
        ones = {c.bits: c for c in reversed(problem.candidates)}
        cover = [ones[1 << node] for node in range(problem.n)]
        self.times = [timer.time_of(seeds[0]), timer.time_of(cover)]
        return [cover]


@pytest.mark.slow
def test_what_a_second_phase_proposes_is_in_the_final_comparison(clock: dict[str, int], tmp_path: Path) -> None:
    strategy = Refining()
    strategies().add(strategy)
    try:
        report = report_of(tmp_path, "one", strategy=strategy.name, finals=True, measure_budget=60, baseline="none")
    finally:
        strategies.cache_clear()
    assert report["search"]["algorithm"] == "refining"
    assert not any("search strategy" in warning for warning in report["warnings"])
    (row,) = [row for row in report["rows"] if row["name"].startswith("refined")]
    assert (row["name"], row["kernels"]) == ("refined 1", len(OPERATORS))
    assert len(strategy.times) == 2 and all(0 < each < 100 for each in strategy.times)


def test_where_there_is_nothing_to_choose_no_algorithm_ran(clock: dict[str, int], tmp_path: Path) -> None:
    search = report_of(tmp_path, "one", NAMES[:1])["search"]
    assert (search["algorithm"], search["stopped_by"]) == ("none", "not started")
