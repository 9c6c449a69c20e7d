"""Kernels are tuned while the time lasts, those first that gain most per second; what was tuned is known from then on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.compiler.cost_table import CostTable
from collage.measure.session import MeasureSession
from collage.toolchains import Registry
from tests.e2e.conftest import LENT, model_of
from tests.e2e.fake_interfering_toolchains import TaxedToolchain
from tests.e2e.fake_tunable_toolchain import TunableToolchain
from tests.figures import figures


def chain(path: Path, *operators: str) -> Path:
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, op in enumerate(operators)]
    ports = {"v0": (TensorProto.FLOAT, [1, 8])}, {f"v{len(operators)}": (TensorProto.FLOAT, [1, 8])}
    onnx.save(model_of(nodes, *ports, {}), path)
    return path


def menu(log: Path, tedious: Sequence[str] = ()) -> Registry:
    toolchains = Registry()
    slow = {"Relu": 20.0, "Tanh": 30.0, "Exp": 1.0, "Abs": 20.0}
    toolchains.add(TunableToolchain("tunable", slow, {"Relu": 4.0, "Tanh": 28.0, "Abs": 10.0}, str(log), tedious))
    toolchains.add(TaxedToolchain("steady", {"Relu": 24.0, "Tanh": 5.0, "Exp": 40.0, "Abs": 24.0}))
    return toolchains


def compiled(model: Path, log: Path, *, tedious: Sequence[str] = (), **options: Any) -> collage.Executable:
    settings = collage.CompileOptions(db=str(log.with_suffix(".sqlite")), **{"finals": False, **options})
    return collage.compile(model, ["tunable", "steady"], toolchains=menu(log, tedious), options=settings, workers=LENT)


@pytest.fixture(autouse=True)
def _end_worker() -> Iterator[None]:
    """The one that is told where to log serves the compilations of one test."""
    yield
    if worker := LENT.pop("tunable", None):
        worker.kill()


def choice(executable: collage.Executable) -> list[tuple[str, list[str]]]:
    return [(kernel["target"], kernel["nodes"]) for kernel in executable.report["kernels"]]


def tuned_in(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


def test_tuned_kernels_are_targets_of_their_own_and_win_where_they_are_faster(tmp_path: Path) -> None:
    model, log = chain(tmp_path / "m.onnx", "Relu", "Tanh", "Relu"), tmp_path / "log"
    untuned = compiled(model, log)
    assert tuned_in(log) == []
    assert all("trials" not in kernel["target"] for kernel in untuned.report["kernels"])

    tuned = compiled(model, log, tune_s=60.0)
    assert tuned_in(log)[0] == "Relu"
    targets = [kernel["target"] for kernel in tuned.report["kernels"] if "trials" in kernel["target"]]
    assert targets and all("-seed=1 -trials=16" in target for target in targets)
    assert tuned.report["estimate_us"] < 0.8 * untuned.report["estimate_us"]
    assert untuned.report.search.tuning == ""
    assert tuned.report.search.tuning.startswith(f"kernels tuned: {len(set(tuned_in(log)))} of ")
    x = np.linspace(-1, 1, 8, dtype=np.float32)[None]
    np.testing.assert_allclose(tuned.run({"v0": x})["v3"], np.maximum(np.tanh(np.maximum(x, 0)), 0), rtol=1e-5)

    # Later compilations find it, and tune nothing; unless they are not to.
    before = tuned_in(log)
    assert choice(compiled(model, log)) == choice(tuned)
    assert choice(compiled(model, log, use_tuned=False)) == choice(untuned)
    assert tuned_in(log) == before

    # Built anew elsewhere, it is built from the same records.
    tuned.save(tmp_path / "m.collage", recipe_only=True)
    again = collage.load(tmp_path / "m.collage", toolchains=menu(log), rebuild=True)
    np.testing.assert_allclose(again.run({"v0": x})["v3"], tuned.run({"v0": x})["v3"])


def test_a_target_that_is_alone_is_tuned_as_well(tmp_path: Path) -> None:
    model, log = chain(tmp_path / "m.onnx", "Relu", "Relu"), tmp_path / "log"
    options = collage.CompileOptions(db=str(tmp_path / "t.sqlite"), finals=False, tune_s=60.0)
    kernels = collage.compile(model, ["tunable"], toolchains=menu(log), options=options, workers=LENT).report["kernels"]
    assert tuned_in(log)
    assert any("trials" in kernel["target"] for kernel in kernels)


@pytest.mark.slow
def test_what_was_tuned_is_known_in_other_models_and_without_budget_nothing_is_tuned(tmp_path: Path) -> None:
    log = tmp_path / "log"
    compiled(chain(tmp_path / "m.onnx", "Relu", "Tanh", "Relu"), log, tune_s=60.0)
    before = tuned_in(log)
    other = compiled(chain(tmp_path / "other.onnx", "Relu", "Relu", "Tanh"), log, tune_s=60.0)
    assert tuned_in(log) == before
    assert any("trials" in kernel["target"] for kernel in other.report["kernels"])
    third = compiled(chain(tmp_path / "third.onnx", "Relu", "Tanh", "Exp", "Relu"), log)
    assert tuned_in(log) == before
    assert any("trials" in kernel["target"] for kernel in third.report["kernels"])


@pytest.mark.slow
def test_the_finals_have_the_last_word(tmp_path: Path) -> None:
    model, log = chain(tmp_path / "m.onnx", "Relu", "Tanh", "Relu"), tmp_path / "log"
    report = compiled(model, log, tune_s=60.0, finals=True).report
    assert any("trials" in kernel["target"] for kernel in report["kernels"])
    assert figures(report)["speedup_vs_best_single"] > 1.5


def test_where_no_gain_is_in_sight_nothing_is_tuned(tmp_path: Path) -> None:
    log = tmp_path / "log"
    executable = compiled(chain(tmp_path / "m.onnx", "Tanh", "Tanh"), log, tune_s=60.0)
    assert tuned_in(log) == []
    assert executable.report.search.tuning == "kernels tuned: none, since no plan is expected to be 2% faster by it"
    assert {kernel["target"] for kernel in executable.report["kernels"]} == {"llvm -compiler=steady"}


def test_an_interrupt_keeps_what_was_tuned_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, log = chain(tmp_path / "m.onnx", "Relu", "Tanh", "Relu", "Tanh"), tmp_path / "log"
    measure = CostTable.measure

    def interrupted(self: CostTable, candidates: Any) -> Any:
        found = measure(self, candidates)
        monkeypatch.setattr("collage.compiler.autotune._most_promising", _interrupt)
        return found

    def only_tuned(self: CostTable, candidates: Any) -> Any:
        is_tuned = any(candidate.target.option("trials") for candidate in candidates)
        return interrupted(self, candidates) if is_tuned else measure(self, candidates)

    monkeypatch.setattr(CostTable, "measure", only_tuned)
    executable = compiled(model, log, tune_s=60.0)
    assert len(tuned_in(log)) == 1
    assert any("trials" in kernel["target"] for kernel in executable.report["kernels"])


def test_what_gains_most_per_second_of_tuning_is_tuned_first(tmp_path: Path) -> None:
    """Abs can be expected to gain as much as Relu, and twice as often: but its trials take seconds."""
    model, log = chain(tmp_path / "m.onnx", "Abs", "Tanh", "Relu", "Tanh", "Abs"), tmp_path / "log"
    compiled(model, log, tedious=["Abs"], tune_s=60.0)
    assert tuned_in(log)[:2] == ["Relu", "Abs"]


def test_records_are_kept_as_they_are_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, log = chain(tmp_path / "m.onnx", "Relu", "Abs"), tmp_path / "log"
    tune, calls = MeasureSession.tune, []

    def interrupted(self: MeasureSession, *arguments: Any) -> Any:
        calls.append(arguments)
        return tune(self, *arguments) if len(calls) == 1 else _interrupt()

    with monkeypatch.context() as patched:
        patched.setattr(MeasureSession, "tune", interrupted)
        compiled(model, log, tune_s=60.0)
    assert len(calls) == 2
    first = tuned_in(log)
    assert len(first) == 1
    compiled(model, log, tune_s=60.0)
    assert sorted(tuned_in(log)) == ["Abs", "Relu"]


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
