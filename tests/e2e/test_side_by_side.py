"""Two towers that threads make no faster: they run side by side, and the plan survives whatever a plan goes through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage._errors import UsageError
from collage.compiler import copy_costs, problem
from collage.compiler.copy_costs import CopyCost
from collage.measure.track import ComparisonPlan
from collage.page import as_html, read_contents
from collage.plan_file import PlanFile, PlanFileKernel, read_plan
from collage.system.machine import usable_cores
from collage.toolchains import Registry
from collage.workers.worker import Worker
from tests.e2e.conftest import model_of
from tests.e2e.fake_threaded_toolchain import ThreadedToolchain

pytestmark = pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")

SECONDS = {"Relu": 10e-3, "Exp": 10e-3, "Add": 1e-3}
TARGET = "llvm -compiler=threaded"
ALONE = f"{TARGET} -threads=1"
NAME = "2 branches side by side"
X = {"x": np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)}
WORKERS: dict[str, Worker] = {}


@pytest.fixture(scope="module", autouse=True)
def _end_workers() -> Iterator[None]:
    yield
    for worker in WORKERS.values():
        worker.kill()


@dataclass(frozen=True, slots=True)
class _ShorterRaces(ComparisonPlan):
    """Two towers at once take half the time of one after the other, which shows soon."""

    block_s: float = 0.01
    most_rounds: int = 7
    reporting_rounds: int = 7


@pytest.fixture(scope="module", autouse=True)
def _settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_costs, "measure_copy_cost", lambda *_: CopyCost(15e-6, 1e-11))
        patch.setattr(problem, "ComparisonPlan", _ShorterRaces)
        yield


def towers() -> onnx.ModelProto:
    """Two chains of two operators over one input, and their sum."""
    nodes = []
    for side, ops in (("left", ("Relu", "Exp")), ("right", ("Exp", "Relu"))):
        nodes.append(helper.make_node(ops[0], ["x"], [f"{side}0"], name=f"{side}/0"))
        nodes.append(helper.make_node(ops[1], [f"{side}0"], [f"{side}1"], name=f"{side}/1"))
    nodes.append(helper.make_node("Add", ["left1", "right1"], ["y"], name="sum"))
    tensor = (TensorProto.FLOAT, [4, 4])
    return model_of(nodes, {"x": tensor}, {"y": tensor}, {})


def compiled(folder: Path, **options: Any) -> collage.Executable:
    toolchains = Registry()
    toolchains.add(ThreadedToolchain(SECONDS))
    told = {"db": str(folder / "db.sqlite"), "baseline": "none", "threads": 2, **options}
    targets, wanted = None if "plan" in told else [TARGET], collage.CompileOptions(**told)
    return collage.compile(towers(), targets, options=wanted, toolchains=toolchains, workers=WORKERS)


def assert_right(executable: collage.Executable) -> None:
    np.testing.assert_allclose(executable.run(X)["y"], np.exp(np.maximum(X["x"], 0)) + np.exp(X["x"]), rtol=1e-5)


def places(executable: collage.Executable) -> list[tuple[str, int | None, tuple[str, ...]]]:
    return [(row.target, row.branch, row.nodes) for row in executable.report.kernels]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("branches")


@pytest.fixture(scope="module")
def first(folder: Path) -> collage.Executable:
    return compiled(folder, plan_out=folder / "plan.json")


def test_it_is_returned_as_the_fastest_plan(first: collage.Executable) -> None:
    assert first.report.winner == NAME
    assert places(first) == [
        (ALONE, 1, ("left/0", "left/1")),
        (ALONE, 2, ("right/0", "right/1")),
        (TARGET, None, ("sum",)),
    ]
    single = first.report.row(TARGET)
    assert single is not None and single.ratio is not None and single.ratio.low > 1
    assert first.report.estimate_us is not None and first.report.estimate_us < 30e3, "of 41 ms of work"
    assert_right(first)


def test_the_same_command_again_remembers_it(first: collage.Executable, folder: Path) -> None:
    again = compiled(folder)
    assert not again.report.search.raced and again.report.search.measured == 0
    assert places(again) == places(first)
    assert again.recipe.branches == 2
    assert_right(again)


def test_it_is_explained_and_shown_as_such(first: collage.Executable, folder: Path) -> None:
    explained = first.explain()
    assert [kernel.chosen.branch for kernel in explained.kernels] == [1, 2, None]
    assert NAME in str(explained) and "(branch 1)" in str(explained)
    path = first.save(folder / "shown.collage")
    page = as_html(read_contents(path, "shown"))
    assert NAME in page and "branch 2" in page
    assert NAME in repr(first)


def test_a_plan_file_keeps_the_branches(first: collage.Executable, folder: Path) -> None:
    plan = read_plan(folder / "plan.json")
    assert [(kernel.target, kernel.branch) for kernel in plan.kernels] == [(ALONE, 1), (ALONE, 2), (TARGET, None)]
    assert PlanFile.from_json(plan.to_json()) == plan
    given = compiled(folder, plan=plan, finals=False)
    assert places(given) == places(first) and given.recipe.branches == 2
    assert given.report.estimate_us is not None and given.report.estimate_us < 30e3
    assert_right(given)


@pytest.mark.parametrize("branch", [0, 65, -1, "1", True, 1.5])
def test_a_plan_file_with_a_strange_branch_is_refused(branch: object) -> None:
    data = PlanFile((PlanFileKernel(TARGET, ("sum",)),)).to_json()
    data["kernels"][0]["branch"] = branch
    with pytest.raises(UsageError, match=r"the plan.kernels\[0\].branch is"):
        PlanFile.from_json(data)


def test_a_plan_of_devices_has_no_branches_beside_it(folder: Path) -> None:
    devices = folder / "devices.toml"
    devices.write_text('[devices.a]\ndevice = "cpu:0"\n[nodes]\n"*" = "a"\n')
    plan = PlanFile((PlanFileKernel(TARGET, ("left/0", "left/1", "right/0", "right/1", "sum"), branch=1),))
    with pytest.raises(UsageError, match="is in branch 1, and devices are planned"):
        compiled(folder, plan=plan, devices=devices, finals=False)
    assert compiled(folder, devices=devices, finals=False).recipe.branches == 0
