"""The command line as a user meets it: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.cli import main
from tests.e2e.conftest import MENU

COLLAGE = str(Path(sys.executable).parent / "collage")


def run(*words: str | Path, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COLLAGE, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "NO_COLOR": "1"},
    )


def run_here(capsys: pytest.CaptureFixture[str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in this process: most of what a process of its own takes is to import what this one has."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([*map(str, words)])
    said = capsys.readouterr()
    return subprocess.CompletedProcess(words, int(stop.value.code or 0), said.out, said.err)


@pytest.fixture(scope="module")
def artefact(mixed_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    path = tmp_path_factory.mktemp("cli") / "m.collage"
    done = run("compile", mixed_model, "-o", path, *(w for t in MENU for w in ("-t", t)), "--json")
    assert done.returncode == 0, done.stderr
    return path, json.loads(done.stdout)


def test_compile_prints_one_json_document(artefact: tuple[Path, dict]) -> None:
    path, report = artefact
    assert path.is_dir()
    assert {
        "schema", "model", "kernels", "estimate_us", "measured_us", "singles", "speedup_vs_best_single",
        "speedup_interval", "additive_error", "machine_drift", "search", "numerics",
    } <= set(report)  # fmt: skip
    assert report["model"]["nodes"] == 7
    assert len(report["model"]["sha256"]) == 64
    assert {"median", "p10", "p90"} == set(report["measured_us"])


def test_compile_prints_tables(
    artefact: tuple[Path, dict], mixed_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "compile", mixed_model, "-o", tmp_path / "n.collage", *(w for t in MENU for w in ("-t", t)))
    assert done.returncode == 0
    assert "the best single toolchain" in done.stdout
    assert "nothing was measured: every timing was known" in done.stdout


def test_run_reads_and_writes_files(artefact: tuple[Path, dict], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 8, 50), np.float32))
    done = run("run", artefact[0], "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout)["outputs"]
    assert [(o["name"], o["shape"]) for o in outputs] == [("y", [50, 1, 10]), ("last", [1, 1, 16])]
    assert np.load(outputs[0]["file"]).sum() == pytest.approx(50, rel=1e-5)
    assert run("run", artefact[0]).returncode == 0


def test_bench_races_against_every_single_on_given_inputs(artefact: tuple[Path, dict], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 8, 50), np.float32))
    done = run("bench", artefact[0], "--rounds", "3", "--json", "--input", f"x={tmp_path / 'x.npy'}")
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    assert [row["name"] for row in table["rows"]] == ["collage", *MENU]
    assert all(set(row) >= {"name", "median_us", "p10_us", "p90_us"} for row in table["rows"])
    low, high = table["speedup_interval"]
    assert low <= table["speedup_vs_best_single"] <= high


def test_bench_refuses_inputs_of_another_shape(
    artefact: tuple[Path, dict], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "narrow.npy", np.ones((1, 7, 50), np.float32))
    done = run_here(capsys, "bench", artefact[0], "--input", f"x={tmp_path / 'narrow.npy'}")
    assert done.returncode == 2
    assert "'x'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_targets_names_all_and_what_can_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    targets = json.loads(run_here(capsys, "targets", "--json").stdout)["targets"]
    assert {row["alias"] for row in targets} >= set(MENU)
    assert all(row["available"] and row["version"] for row in targets if row["alias"] in MENU)


def test_env_and_inspect(mixed_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = json.loads(run_here(capsys, "env", "--json").stdout)
    assert env["machine"]["cores"] >= 1
    found = json.loads(run_here(capsys, "inspect", mixed_model, "--coverage", "--json").stdout)
    assert found["operators"]["GRU"] == 1
    tvm = next(row for row in found["coverage"] if row["target"] == "llvm")
    assert tvm["taken"] == 6
    assert tvm["refused"][0]["operator"] == "GRU"


BAD = [
    (("compile", "missing.onnx", "-o", "o.collage"), 2, "missing.onnx"),
    (("compile", "text.onnx", "-o", "o.collage"), 5, "text.onnx"),
    (("compile", "half.onnx", "-o", "o.collage"), 5, "half.onnx"),
    (("compile", "empty.onnx", "-o", "o.collage"), 5, "empty.onnx"),
    (("compile", ".", "-o", "o.collage"), 5, "is a folder"),
    (("compile", "good.onnx", "-o", "o.collage", "-t", "openvin"), 2, "did you mean 'openvino'"),
    (("compile", "good.onnx", "-o", "o.collage", "-t", "llvm -compiler"), 2, "-name=value"),
    (("compile", "good.onnx", "-o", "o.collage", "-t", "onnxruntime -thread=1"), 2, "did you mean -threads"),
    (("compile", "good.onnx", "-o", "nowhere/o.collage"), 2, "nowhere"),
    (("compile", "good.onnx", "-o", "text.onnx"), 2, "is no artefact"),
    (("compile", "good.onnx", "-o", "text.onnx/o.collage"), 2, "cannot write"),
    (("compile", "good.onnx"), 2, "--output"),
    (("compile", "good.onnx", "-o", "o.collage", "--dim", "seq"), 2, "NAME=LENGTH"),
    (("compile", "good.onnx", "-o", "o.collage", "--dim", "seq=0"), 2, "at least 1"),
    (("compile", "good.onnx", "-o", "o.collage", "--fix", "seq=long"), 2, "--fix seq=long"),
    (("compile", "good.onnx", "-o", "o.collage", "--fix", "seq=7"), 2, "all its dimensions are fixed"),
    (("compile", "good.onnx", "-o", "o.collage", "--time-budget", "soon"), 2, "soon"),
    (("run", "missing.collage"), 2, "missing.collage"),
    (("run", "."), 5, "manifest.json"),
    (("bench", "missing.collage"), 2, "missing.collage"),
    (("inspect", "text.onnx"), 5, "text.onnx"),
    (("frobnicate",), 2, "frobnicate"),
]


@pytest.mark.parametrize(("words", "code", "said"), BAD, ids=[" ".join(words) for words, _, _ in BAD])
def test_bad_input_gets_one_sentence_and_the_documented_code(
    words: tuple[str, ...],
    code: int,
    said: str,
    mixed_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    good = mixed_model.read_bytes()
    (tmp_path / "good.onnx").write_bytes(good)
    (tmp_path / "half.onnx").write_bytes(good[: len(good) // 2])
    (tmp_path / "text.onnx").write_text("This is a text about models.\n" * 20)
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == code
    assert_one_sentence(capsys.readouterr().err, said)


def assert_one_sentence(errors: str, said: str) -> None:
    said_lines = [line for line in errors.splitlines() if line.startswith("collage: ")]
    assert len(said_lines) == 1
    assert said in said_lines[0]
    assert "Traceback" not in errors


def test_the_program_ends_with_what_its_entry_point_says() -> None:
    done = run("compile", "missing.onnx", "-o", "o.collage")
    assert done.returncode == 2
    assert_one_sentence(done.stderr, "missing.onnx")


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (("q", np.ones((1, 8, 50), np.float32)), "unknown input 'q'"),
        (("x", np.ones((1, 8, 51), np.float32)), "shape [1, 8, 51]"),
        (("x", np.ones((1, 8, 50))), "float64"),
        (("x", np.array([{}], dtype=object)), "cannot read"),
    ],
)
def test_wrong_inputs(
    artefact: tuple[Path, dict],
    array: tuple[str, np.ndarray],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, value = array
    np.save(tmp_path / "v.npy", value, allow_pickle=True)
    done = run_here(capsys, "run", artefact[0], "--input", f"{name}={tmp_path / 'v.npy'}")
    assert done.returncode == 2
    assert said in done.stderr


def test_outputs_that_cannot_be_written_are_one_sentence(
    artefact: tuple[Path, dict], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    for option, path in (("--output-dir", tmp_path / "file"), ("--profile", tmp_path / "file" / "trace.json")):
        done = run_here(capsys, "run", artefact[0], option, path)
        assert done.returncode == 2
        assert done.stderr.startswith(f"collage: cannot write {path}")


def test_names_in_a_model_do_not_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = (helper.make_tensor_value_info(f"{name}\x1b[31m", TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", [x.name], [y.name])], "g\x1b[2J", [x], [y])
    onnx.save(helper.make_model(graph, ir_version=10), tmp_path / "m.onnx")
    for words in ([], ["--passes", "prepare", "--print-after", "InferType"]):
        done = run_here(capsys, "inspect", tmp_path / "m.onnx", *words)
        assert done.returncode == 0 and "\x1b" not in done.stdout
        assert "x\N{REPLACEMENT CHARACTER}[31m" in done.stdout and "1 operator" in done.stdout


@pytest.mark.parametrize("words", [[], ["db"]])
def test_without_a_command_there_is_help(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 2 and done.stderr.startswith("Usage: collage")
    assert done.stderr.splitlines() == run(*words, "--help").stdout.splitlines()


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("compile", "run", "bench", "inspect", "targets", "env"):
        done = run_here(capsys, command, "--help")
        assert done.returncode == 0
        assert f"collage {command} " in done.stdout
