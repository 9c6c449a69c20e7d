"""Evidence on some inputs is used again, for every toolchain that is judged there, and changes no judgement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from collage.measure import _evidence_worker
from collage.measure._evidence_worker import EvidenceService
from collage.measure.checking import Findings, Rule
from collage.numerics.value_store import ValueStore
from collage.toolchains import StepwiseModel

TEXT = (
    '<ir_version: 10, opset_import: ["": 17]> {} '
    "(float[4096] x) => (float[4096] y) <float[1] c = {{300}}> {{m = Add (x, c) y = Sub (m, c)}}"
)
"""Cancels five digits of float32."""
X = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
RIGHT = (X + np.float32(300)) - np.float32(300)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """True for each run of the model that was perturbed, in order."""
    seen: list[bool] = []
    plain = StepwiseModel.run

    def run(self: StepwiseModel, feeds: Any, names: Any, perturbation: Any = None, *more: Any, **rest: Any) -> Any:
        seen.append(perturbation is not None)
        return plain(self, feeds, names, perturbation, *more, **rest)

    monkeypatch.setattr(StepwiseModel, "run", run)
    return seen


def file_of(folder: Path, name: str) -> str:
    onnx.save(parser.parse_model(TEXT.format(name)), folder / f"{name}.onnx")
    return str(folder / f"{name}.onnx")


def doubt(folder: Path, error: float) -> dict[str, Any]:
    store = ValueStore(folder)
    if "x" not in store:
        store.put("x", X)
        store.put("y", RIGHT)
        store.flush()
    findings = Findings(Rule(1e-6), store)
    findings.look({"y": RIGHT + np.float32(error)}, store, is_original=False)
    (found,) = findings.doubts
    return found


def test_two_kernels_of_the_same_operators_share_their_evidence(tmp_path: Path, runs: list[bool]) -> None:
    service = EvidenceService()
    first = service.settle(file_of(tmp_path, "for_one"), doubt(tmp_path / "values", 2e-5))
    assert first["wrong"] is None and runs[0] is False and len(runs) > 1
    made = len(runs)
    second = service.settle(file_of(tmp_path, "for_another"), doubt(tmp_path / "values", 2e-5))
    assert second == first and len(runs) == made
    fresh = EvidenceService().settle(file_of(tmp_path, "for_one"), doubt(tmp_path / "values", 2e-5))
    assert fresh == first and len(runs) == 2 * made


def test_what_is_known_changes_no_judgement(tmp_path: Path, runs: list[bool]) -> None:
    service, model, values = EvidenceService(), file_of(tmp_path, "kernel"), tmp_path / "values"
    alone = {error: EvidenceService().settle(model, doubt(values, error)) for error in (1e-5, 2e-5, 3e-4, 1e-2)}
    assert alone[1e-2]["wrong"] and alone[1e-5]["wrong"] is None
    for error in (1e-2, 2e-5, 1e-5, 3e-4, 2e-5):
        assert service.settle(model, doubt(values, error)) == alone[error]


def test_a_value_that_follows_from_a_decision_stays_one(tmp_path: Path, runs: list[bool]) -> None:
    text = TEXT.replace("(float[4096] y)", "(int64[1] y)").replace("y = Sub (m, c)", "y = ArgMax <axis = 0> (m)")
    values, x = ValueStore(tmp_path / "values"), np.zeros(4096, np.float32)
    x[[7, 9]] = 1.0, np.nextafter(np.float32(1.0), np.float32(0.0))
    for name, value in (("x", x), ("y", np.int64([7]))):
        values.put(name, value)
    values.flush()
    findings, service, told = Findings(Rule(0.0), values), EvidenceService(), []
    findings.look({"y": np.int64([9])}, values, is_original=False)
    for name in ("for_one", "for_another"):
        onnx.save(parser.parse_model(text.format(name)), tmp_path / f"{name}.onnx")
        told.append(service.settle(str(tmp_path / f"{name}.onnx"), findings.doubts[0]))
    assert told[0] == told[1] and told[0]["wrong"] is None
    assert runs.count(False) == 1


def test_other_inputs_have_evidence_of_their_own(tmp_path: Path, runs: list[bool]) -> None:
    service, model = EvidenceService(), file_of(tmp_path, "kernel")
    service.settle(model, doubt(tmp_path / "values", 2e-5))
    made = len(runs)
    service.settle(model, doubt(tmp_path / "other", 2e-5))
    assert len(runs) == 2 * made


def test_the_memory_is_bounded(tmp_path: Path, runs: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_evidence_worker, "_MOST_BYTES", X.nbytes)
    service, model = EvidenceService(), file_of(tmp_path, "kernel")
    for name in ("values", "other", "values"):
        service.settle(model, doubt(tmp_path / name, 2e-5))
    assert [is_perturbed for is_perturbed in runs].count(False) == 3


def test_updates_that_threads_lose_excuse_nothing(tmp_path: Path) -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 20]> sums (float[40,64] x, int64[9000,1] i, float[9000,64] u) => (float[40,64] y) '
        '{y = ScatterND <reduction = "add"> (x, i, u)}'
    )
    rng = np.random.default_rng(0)
    x, u = rng.standard_normal((40, 64)).astype("f"), rng.standard_normal((9000, 64)).astype("f")
    i, right = rng.integers(0, 40, (9000, 1)), x.copy()
    np.add.at(right, i[:, 0], u)
    values = ValueStore(tmp_path / "values")
    for name, value in (("x", x), ("i", i), ("u", u), ("y", right)):
        values.put(name, value)
    values.flush()
    onnx.save(parser.parse_model(text), tmp_path / "sums.onnx")
    for _ in range(5):
        assert EvidenceService().noise(str(tmp_path / "sums.onnx"), str(values.folder), 30.0)["y"] < 1e-5
