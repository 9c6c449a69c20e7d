"""The same command again gives the same plan and measures nothing; what differs from it in anything that matters is searched."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import collage
from collage.cost.statistics import Interval
from collage.database import FactKind
from collage.database.database import Database
from collage.fusion import FusionOptions, FusionStyle
from collage.measure.finalist import Finalist
from collage.measure.operator_work import WORK
from collage.measure.race import Comparison
from collage.prediction import COMPILATION
from tests.e2e.test_remeasure import SECONDS, NoisyMachine, compiled
from tests.figures import figures

SEED = 7
NOTHING_FUSED = FusionOptions(styles=dict.fromkeys(SECONDS, FusionStyle.NONE))


class Exact(random.Random):
    """Draws no noise."""

    def lognormvariate(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        return 1.0


class Machine(NoisyMachine):
    """Measures exactly, and may find that plans cannot be told apart.

    Attributes:
        fields: How many plans took part in each comparison.
        is_noisy: Runs take very different times.
        is_busy: Other programs run when a model is compiled again.
        is_tied: Every plan may be as fast as the winner.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(SEED, noise=0.0, tax=0.0)
        self.rng = Exact()
        self.fields: list[int] = []
        self.is_noisy = self.is_busy = self.is_tied = False
        self.take_over(monkeypatch)
        monkeypatch.setattr("collage.compiler.remembered.is_busy", lambda: self.is_busy)

    def race(self, finalists: Sequence[Finalist], *_: object, **__: object) -> Comparison:
        found = super().race(finalists)
        self.fields.append(len(finalists))
        assert found.winner is not None
        assert found.winner.time is not None
        if self.is_noisy:
            time = replace(found.winner.time, p90_s=2 * found.winner.time.p10_s)
            found = replace(found, winner=replace(found.winner, time=time))
        assert found.winner is not None
        others = [each.name for each in finalists if each.name != found.winner.finalist.name]
        rivals = {name: Interval(0.9, 1.1) for name in others[:1]} if self.is_tied else {}
        return Comparison(found.winner, None, None, found.standings, rivals)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def kernels(executable: collage.Executable) -> list[tuple[str, Sequence[str]]]:
    return [(kernel["target"], kernel["nodes"]) for kernel in executable.report["kernels"]]


def without_search(report: dict[str, Any]) -> dict[str, Any]:
    """Everything else, but for the numbers that names of kernels may end with."""
    kernels = [{name: part for name, part in kernel.items() if name != "name"} for kernel in report["kernels"]]
    return {name: part for name, part in report.items() if name != "search"} | {"kernels": kernels}


def test_the_same_command_says_the_same_and_measures_nothing(machine: Machine, tmp_path: Path) -> None:
    first = compiled(tmp_path, machine.operators, finals=True).report
    done = machine.looks.total(), machine.races
    second = compiled(tmp_path, machine.operators, finals=True).report
    assert (machine.looks.total(), machine.races) == done
    assert without_search(dict(second)) == without_search(dict(first))
    counted = {"built", "measured", "cache_hits", "raced", "wall_s"}
    assert {k: v for k, v in second["search"].items() if k not in counted} == {
        k: v for k, v in first["search"].items() if k not in counted
    }
    assert not second["search"]["raced"]
    assert_kept_for_predictions(first, tmp_path)


def assert_kept_for_predictions(report: Any, folder: Path) -> None:
    with Database(str(folder / "db.sqlite")) as database:
        ((name, found),) = database.facts(COMPILATION)
        works = [work for _, work in database.facts(WORK)]
    gain = report.gain("best_single")
    assert gain is not None
    assert found.gain == (gain.ratio.value, gain.ratio.low, gain.ratio.high)
    assert name["model"] == report.model.sha256
    assert not found.is_cut_short
    assert (found.measured, found.recorded) == (report.search.measured, report.search.cache_hits)
    assert sum(each.count for each in found.work.operators.values()) == report.model.nodes
    # The work of each kernel that was timed is known, the whole model's among them.
    assert replace(found.work, model=name["model"]) in works
    assert {work.model for work in works} == {name["model"]}


def test_what_was_compiled_under_other_options_changes_nothing(machine: Machine, tmp_path: Path) -> None:
    for folder in ("cold", "warm"):
        (tmp_path / folder).mkdir()
    cold = compiled(tmp_path / "cold", machine.operators, fusion=NOTHING_FUSED)
    free = compiled(tmp_path / "warm", machine.operators)
    warm = compiled(tmp_path / "warm", machine.operators, fusion=NOTHING_FUSED)
    assert free.report["search"]["candidates"] != cold.report["search"]["candidates"]
    assert kernels(warm) == kernels(cold)
    assert [kernel["rule"] for kernel in warm.report["kernels"]] == [k["rule"] for k in cold.report["kernels"]]
    assert warm.report["search"]["candidates"] == cold.report["search"]["candidates"]


# All fields of the options but those that are named belong to the key: one number and one table stand for them.
OTHERS: Sequence[dict[str, Any]] = ({"finalists": 1}, {"launch_penalties_s": {"left": 1.0}})
MORE: Sequence[dict[str, Any]] = ({"min_gain": 0.5}, {"search": "exhaustive"})


@pytest.mark.parametrize("others", [OTHERS, pytest.param(MORE, marks=pytest.mark.slow)])
def test_other_options_are_another_command_and_remeasure_asks_for_everything_again(
    machine: Machine, tmp_path: Path, others: Sequence[dict[str, Any]]
) -> None:
    compiled(tmp_path, machine.operators, finals=True)
    for options in others:
        assert compiled(tmp_path, machine.operators, finals=True, **options).report["search"]["raced"]
    assert not compiled(tmp_path, machine.operators, finals=True).report["search"]["raced"]
    looks, races = machine.looks.total(), machine.races
    assert compiled(tmp_path, machine.operators, finals=True, remeasure=True).report["search"]["raced"]
    assert machine.looks.total() > looks
    assert machine.races > races


def test_a_choice_within_noise_on_a_disturbed_machine_is_compared_again_once_it_is_calm(
    machine: Machine, tmp_path: Path
) -> None:
    machine.is_noisy = machine.is_busy = machine.is_tied = True
    first = compiled(tmp_path, machine.operators, finals=True)
    races, looks = machine.races, machine.looks.total()
    assert len(figures(first.report)["finalists"]) > 3
    assert kernels(compiled(tmp_path, machine.operators, finals=True)) == kernels(first)
    assert machine.races == races, "the machine is still disturbed"

    machine.is_noisy = machine.is_busy = False
    second = compiled(tmp_path, machine.operators, finals=True).report
    assert second["search"]["raced"]
    assert (machine.races, machine.looks.total()) == (races + 1, looks)
    assert machine.fields[-1] <= 3, "the winner, what it could not be told from, and the best single"
    assert len(figures(second)["finalists"]) == len(figures(first.report)["finalists"])

    third = compiled(tmp_path, machine.operators, finals=True).report
    assert machine.races == races + 1, "a calm machine said so"
    assert [kernel["nodes"] for kernel in third["kernels"]] == [kernel["nodes"] for kernel in second["kernels"]]


@pytest.mark.parametrize(("is_noisy", "is_tied"), [(True, False), (False, True)])
def test_what_was_beyond_doubt_or_chosen_on_a_calm_machine_stands(
    machine: Machine, tmp_path: Path, is_noisy: bool, is_tied: bool
) -> None:
    machine.is_noisy, machine.is_tied = is_noisy, is_tied
    compiled(tmp_path, machine.operators, finals=True)
    machine.is_noisy = False
    assert not compiled(tmp_path, machine.operators, finals=True).report["search"]["raced"]


def test_what_is_wrong_now_is_searched_anew(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled(tmp_path, machine.operators, finals=True)
    monkeypatch.setattr("collage.compiler.final_comparison.why_wrong", lambda *_: "differs")
    second = compiled(tmp_path, machine.operators, finals=True)
    assert second.report["search"]["raced"]
    # Kernels whose times are known count against no limit. So the second search may go further.
    assert second.report["search"]["measured"] < first.report["search"]["measured"]
    assert kernels(second) == kernels(first)


STORED: FactKind[dict[str, Any]] = FactKind("result", dict[str, Any])


def _drop_a_kernel(plan: dict[str, Any]) -> None:
    plan["file"]["kernels"] = plan["file"]["kernels"][1:]


def _overlap(plan: dict[str, Any]) -> None:
    plan["file"]["kernels"] = [*plan["file"]["kernels"], plan["file"]["kernels"][0]]


def _another_graph(plan: dict[str, Any]) -> None:
    plan["file"]["kernels"][0]["nodes"] = ["nowhere"]


def _another_target(plan: dict[str, Any]) -> None:
    plan["file"]["kernels"][0]["target"] = "llvm -compiler=elsewhere"


def _no_target(plan: dict[str, Any]) -> None:
    plan["file"]["kernels"][0]["target"] = "; nothing"


def _parts_outside(plan: dict[str, Any]) -> None:
    kernel = plan["file"]["kernels"][0]
    inner = {"nodes": ["nowhere"], "label": "inner"}
    kernel["parts"] = [{"nodes": kernel["nodes"][:1], "label": "outer", "parts": [inner]}]


def _another_device(plan: dict[str, Any]) -> None:
    plan["single"] = "cuda"


DAMAGES = (_drop_a_kernel, _another_target)
"""Plans that do not cover the graph, or name a target that is not on the menu."""
MORE_DAMAGES = (_overlap, _another_graph, _no_target, _parts_outside, _another_device)


@pytest.mark.parametrize("damages", [DAMAGES, pytest.param(MORE_DAMAGES, marks=pytest.mark.slow)])
def test_a_damaged_result_is_as_good_as_none(
    machine: Machine, tmp_path: Path, damages: Sequence[Callable[[dict[str, Any]], None]]
) -> None:
    first = compiled(tmp_path, machine.operators, finals=True)
    for damage in damages:
        with Database(str(tmp_path / "db.sqlite")) as database:
            ((name, value),) = database.facts(STORED)
            damaged = copy.deepcopy(value)
            damage(next(iter(damaged["plans"].values())))
            database.keep_fact(STORED, damaged, **name)
        second = compiled(tmp_path, machine.operators, finals=True)
        assert second.report["search"]["raced"]
        # Kernels whose times are known count against no limit. So the second search may go further.
        assert second.report["search"]["measured"] < first.report["search"]["measured"]
        assert kernels(second) == kernels(first)
    assert not compiled(tmp_path, machine.operators, finals=True).report["search"]["raced"]
