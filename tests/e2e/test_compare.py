"""Two artefacts of one model against each other, in turns."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from collage._errors import UsageError
from collage.artefact_comparison import compare_artefacts
from collage.cli import main
from collage.cost.statistics import Interval, Summary
from collage.measure.finalist import Finalist, FinalistResult
from collage.measure.race import Comparison
from collage.status import Status
from collage.testing import executable_of
from tests.e2e.declared_chain import chain


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("compare")
    onnx.save(chain(), folder / "m.onnx")
    one = executable_of(folder / "m.onnx", "onnxruntime").save(folder / "one.collage")
    parts = [(range(4), "onnxruntime"), (range(4, 8), "openvino")]
    two = executable_of(folder / "m.onnx", parts).save(folder / "two.collage.zip")
    return folder / "m.onnx", one, two


def test_both_are_timed_and_what_changed_is_told(
    artefacts: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, one, two = artefacts
    with pytest.raises(SystemExit) as stop:
        main(["compare", str(one), str(two), "--rounds", "6", "--fail-below", "1e-9", "--json"])
    assert stop.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["rows"]] == ["a", "b"]
    for row in found["rows"]:
        assert row["status"] == "ok" and row["max_rel_error"] == 0.0
        assert row["p10_us"] <= row["median_us"] <= row["p90_us"] <= row["p95_us"] <= row["p99_us"]
    low, high = found["speedup_interval"]
    assert low <= found["speedup"] <= high
    assert found["plan"]["kernels"] == [1, 2]
    assert [each["toolchain"] for each in found["versions"]] == ["openvino"]
    assert found["duration_s"] > 0 and found["environment"]["machine"]["cpu"] and not found["regression"]


def test_artefacts_of_different_models_are_not_compared(artefacts: tuple[Path, Path, Path], tmp_path: Path) -> None:
    onnx.save(chain(["Relu"]), tmp_path / "other.onnx")
    other = executable_of(tmp_path / "other.onnx", "onnxruntime").save(tmp_path / "other.collage")
    with pytest.raises(UsageError, match="not of one model"):
        compare_artefacts(artefacts[1], other)


@pytest.mark.parametrize(("highs", "races", "high"), [([1.5], 1, 1.5), ([0.9, 1.1], 2, 1.1), ([0.9, 0.8], 2, 0.9)])
def test_a_regression_is_raced_once_more(
    highs: list[float], races: int, high: float, artefacts: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[float] = []

    def race(finalists: list[Finalist], *_: object, **__: object) -> Comparison:
        held.append(highs[len(held)])
        time = Summary(1.0, 1.0, 1.0, 9, 0.0)
        standings = [FinalistResult(each, Status.OK, time, None, 0.0, 0.0) for each in finalists]
        return Comparison(standings[1], standings[0], (held[-1], Interval(0.5, held[-1])), standings)

    monkeypatch.setattr("collage.measure.artefact_race.race", race)
    found = compare_artefacts(artefacts[1], artefacts[2], rounds=6, doubt_below=0.98)
    assert len(held) == races and found["speedup_interval"] == [0.5, high]


def test_too_few_rounds_are_refused(artefacts: tuple[Path, Path, Path]) -> None:
    with pytest.raises(UsageError, match="fewer than 6"):
        compare_artefacts(artefacts[1], artefacts[2], rounds=5)
