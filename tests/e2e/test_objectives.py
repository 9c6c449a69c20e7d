"""Objectives other than the latency, and limits, on a small model: chosen, reported, kept, and refused where none can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import collage
from collage._errors import UsageError
from collage.cli import main
from collage.options import CompileOptions
from collage.serving_benchmark import bench_serving
from collage.testing import executable_of
from tests.e2e.declared_chain import chain


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("objectives") / "m.onnx"
    onnx.save(chain(["Relu", "Sigmoid"]), path)
    return path


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)


def test_limits_that_none_can_keep_end_with_3_and_the_nearest(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.collage"
    code = command("compile", str(model), "-o", str(out), "-q", "-t", "onnxruntime", "--limit", "size<=1B")
    told = capsys.readouterr().err
    assert code == 3 and not out.exists()
    assert told.startswith("collage: no plan keeps size<=1B; the nearest is onnxruntime with size 0.0")
    assert told.count("\n") == 1


@pytest.mark.parametrize("limit", ["p99<=20", "speed<=2ms", "p99<=1ms\nrss<=1MB", "throughput<=3/s", "p99<=-1ms"])
def test_a_malformed_limit_ends_with_2(
    limit: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("compile", str(model), "-o", str(tmp_path / "m.collage"), "--limit", limit) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_the_bytes_that_a_report_tells_are_those_on_disk(model: Path, tmp_path: Path) -> None:
    options = CompileOptions(objective="size", limits=("size<=10MB", "rss<=4GB"), baseline="none")
    exe = collage.compile(model, ["onnxruntime"], options=options)
    path = exe.save(tmp_path / "m.collage")
    section = exe.report.objective
    assert section["returned"]["size_bytes"] == sum(file.stat().st_size for file in path.iterdir())
    assert 20e6 < section["returned"]["rss_bytes"] < 4e9
    loaded = collage.load(path, trusted=True)
    assert loaded.report.objective == section and section["limits"] == ["size<=10MB", "rss<=4GB"]


@pytest.mark.slow
def test_a_throughput_chooses_streams_which_the_artefact_remembers(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.collage"
    menu = ["-t", "onnxruntime", "-t", "openvino"]
    code = command("compile", str(model), "-o", str(out), *menu, "--objective", "throughput", "-q", "--json")
    report = json.loads(capsys.readouterr().out)
    assert code == 0
    section = report["objective"]
    assert section["name"] == "throughput" and section["returned"]["runs_per_s"] > 0
    returned = next(row for row in report["rows"] if row["verdict"] == "returned")
    assert (returned["streams"], returned["threads"]) == (section["streams"], section["threads"])
    assert {row["name"] for row in section["rows"]} <= {row["name"] for row in report["rows"]}
    exe = collage.load(out, trusted=True)
    assert exe.recipe.streams == section["streams"] == exe._limit
    assert exe.report.objective == section
    # The usual rules hold: no row is faster than the returned one beyond doubt.
    assert all(row["ratio"]["high"] >= 1.0 for row in report["rows"] if row["ratio"] and row["kind"] != "baseline")


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["memory", "size", "latency"])
def test_each_objective_has_a_verdict(
    objective: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.collage"
    menu = ["-t", "onnxruntime", "-t", "openvino"]
    limits = ["--limit", "rss<=4GB", "--limit", "p99<=9s", "--limit", "throughput>=0.01/s"]
    assert command("compile", str(model), "-o", str(out), *menu, "--objective", objective, *limits, "-q") == 0
    told = capsys.readouterr().out
    assert "limits kept: rss<=4GB, p99<=9s, throughput>=0.01/s" in told
    assert objective == "latency" or told.startswith({"memory": "largest resident set", "size": "artefact"}[objective])
    rows = collage.load(out, trusted=True).report.objective["rows"]
    key = {"memory": "rss_bytes", "size": "size_bytes", "latency": "p99_s"}[objective]
    assert len(rows) >= 2 and all(row[key] > 0 for row in rows)


def test_bench_under_load_tells_throughput_and_percentiles(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = executable_of(model, "onnxruntime", threads=1).save(tmp_path / "m.collage")
    more = ["--against", "onnxruntime", "--duration", "0.6s", "--rounds", "3"]
    assert command("bench", str(path), "--concurrency", "2", *more, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["rows"]] == ["collage", "onnxruntime"]
    for row in found["rows"]:
        assert row["status"] == "ok" and row["runs_per_s"] > 0 and row["runs"] > 0
        assert row["p10_us"] <= row["p50_us"] <= row["p90_us"] <= row["p95_us"] <= row["p99_us"]
        assert row["p10_us"] * row["runs_per_s"] <= 2.1e6  # Two callers are never busier than all the time.
    assert (found["concurrency"], found["seconds_each"], found["rounds"]) == (2, 0.6, 3)
    assert found["duration_s"] > 0 and found["environment"]["machine"]["cpu"] and found["threads"]["each_session"] >= 1
    low, high = found["speedup_interval"]
    assert low <= found["speedup_vs_best_single"] <= high


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"concurrency": 10**9}, {"duration_s": 0.0}, {"duration_s": 1e9}]
)
def test_senseless_loads_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        bench_serving(tmp_path / "m.collage", **options)


def test_an_estimator_and_an_objective_do_not_go_together(model: Path) -> None:
    from collage.testing import MockCostEstimator

    with pytest.raises(UsageError, match="objective has no effect"):
        collage.compile(
            model, ["onnxruntime"], options=CompileOptions(objective="size"), estimator=MockCostEstimator({})
        )
