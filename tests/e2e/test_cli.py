"""The command line as a user meets it: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.cli import main
from tests.short_measurements import PROGRAM

COLLAGE = str(Path(sys.executable).parent / "collage")
ROOT = Path(__file__).parents[2]
MENU = ("onnxruntime", "openvino")


def run(
    *words: str | Path, program: Sequence[str] = (COLLAGE,), timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
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
    words = ["compile", mixed_model, "-o", path, *(w for t in MENU for w in ("-t", t)), "--json"]
    done = run(*words, program=[sys.executable, "-c", PROGRAM])
    assert done.returncode == 0, done.stderr
    return path, json.loads(done.stdout)


def test_compile_prints_one_json_document(artefact: tuple[Path, dict]) -> None:
    path, report = artefact
    assert path.is_dir()
    assert {
        "schema", "model", "kernels", "estimate_us", "additive_error", "rows", "gains", "search", "numerics",
    } <= set(report)  # fmt: skip
    assert report["model"]["nodes"] == 7
    assert len(report["model"]["sha256"]) == 64
    assert all(row["verdict"] for row in report["rows"])


def test_compile_prints_tables(
    artefact: tuple[Path, dict], mixed_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "compile", mixed_model, "-o", tmp_path / "n.collage", *(w for t in MENU for w in ("-t", t)))
    assert done.returncode == 0
    assert "the best single toolchain" in done.stdout
    # A machine that is busy may leave a target out, which is raced again.
    assert "nothing was measured: every timing was known" in done.stdout or " 0 measured" in done.stdout


def test_run_reads_and_writes_files(
    artefact: tuple[Path, dict], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 8, 50), np.float32))
    words = ("--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out", "--json")
    done = run_here(capsys, "run", artefact[0], *words)
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout)["outputs"]
    assert [(o["name"], o["shape"]) for o in outputs] == [("y", [50, 1, 10]), ("last", [1, 1, 16])]
    assert np.load(outputs[0]["file"]).sum() == pytest.approx(50, rel=1e-5)
    assert run_here(capsys, "run", artefact[0]).returncode == 0


def test_bench_races_against_every_single_on_given_inputs(
    artefact: tuple[Path, dict], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 8, 50), np.float32))
    given = ("--input", f"x={tmp_path / 'x.npy'}", "--neighbour", "idle")
    done = run_here(capsys, "bench", artefact[0], "--rounds", "3", "--json", *given)
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    assert table["neighbour"] == "idle"
    names = [row["name"] for row in table["rows"]]
    # Small models are tried on one thread too.
    singles = [name for name in names if "default" not in name and "-threads=1" not in name]
    assert sorted(singles) == sorted(["collage", *MENU])
    assert all(row["precision"] for row in table["rows"])
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
    asked = ("inspect", mixed_model, "--coverage", "-t", "onnxruntime")
    found = json.loads(run_here(capsys, *asked, "-t", "llvm", "--json").stdout)
    assert found["operators"]["GRU"] == 1
    rows = {row["target"]: row for row in found["coverage"]}
    assert rows["llvm -compiler=onnxruntime"]["whole_model"] and rows["llvm -compiler=onnxruntime"]["taken"] == 7
    assert rows["llvm"]["taken"] == 6 and not rows["llvm"]["whole_model"]
    assert "nothing was built" in run_here(capsys, *asked).stdout


BAD = [
    (("compile", "missing.onnx", "-o", "o.collage"), 2, "missing.onnx"),
    (("compile", "text.onnx", "-o", "o.collage"), 5, "text.onnx"),
    (("compile", "half.onnx", "-o", "o.collage"), 5, "half.onnx"),
    (("compile", "empty.onnx", "-o", "o.collage"), 5, "empty.onnx"),
    (("compile", ".", "-o", "o.collage"), 5, "is a folder"),
    (("compile", "good.onnx", "-o", "o.collage", "-t", "openvin"), 2, "did you mean 'openvino'"),
    (("compile", "good.onnx", "-o", "o.collage", "-t", "llvm -compiler"), 2, "-name=value"),
    (("compile", "good.onnx", "-o", "o.collage", "-t", "onnxruntime -thread=1"), 2, "did you mean -threads"),
    (("compile", "good.onnx", "-o", "o.collage", "-t", "openvino -precision=fp16"), 2, "not 'fp16'; did you mean f16?"),
    (("compile", "good.onnx", "-o", "o.collage", "-t", "onnxruntime,openvino"), 2, "-t onnxruntime -t openvino"),
    (("compile", "good.onnx", "-o", "o.collage", "-t", "gpu"), 2, "did you mean 'cuda'"),
    (("inspect", "good.onnx", "--coverage", "-t", "openvino -precision=fp16"), 2, "not 'fp16'"),
    (("compile", "good.onnx", "-o", "o.collage", "--percentile", "60"), 2, "'10', '50', '90'"),
    (("compile", "good.onnx", "-o", "o.collage", "--search", "best"), 2, "'fast', 'proof', 'exhaustive'"),
    (("compile", "misfit.onnx", "-o", "o.collage", "-t", "onnxruntime"), 5, "node 'mm' (MatMul)"),
    (("compile", "misfit.onnx", "-o", "o.collage", "-t", "onnxruntime", "--allow-host"), 5, "a [2, 9] and b [8, 4]"),
    (("inspect", "misfit.onnx"), 5, "a [2, 9] and b [8, 4]"),
    (("compile", "good.onnx", "-o", "nowhere/o.collage"), 2, "nowhere"),
    (("compile", "good.onnx", "-o", "text.onnx"), 2, "is not an artefact"),
    (("compile", "good.onnx", "-o", "text.onnx/o.collage"), 2, "cannot write"),
    (("compile", "good.onnx"), 2, "--output"),
    (("compile", "good.onnx", "-o", "o.collage", "--dim", "seq"), 2, "NAME=LENGTH"),
    (("compile", "good.onnx", "-o", "o.collage", "--fix", "seq=0"), 2, "at least 1"),
    (("compile", "good.onnx", "-o", "o.collage", "--fix", "seq=long"), 2, "--fix seq=long"),
    (("compile", "good.onnx", "-o", "o.collage", "--fix", "seq=7"), 2, "all its dimensions are fixed"),
    (("compile", "good.onnx", "-o", "o.collage", "--time-budget", "soon"), 2, "soon"),
    (("run", "missing.collage"), 2, "missing.collage"),
    (("run", "."), 5, "manifest.json"),
    (("bench", "missing.collage"), 2, "missing.collage"),
    (("inspect", "text.onnx"), 5, "text.onnx"),
    (("frobnicate",), 2, "frobnicate"),
]


@pytest.mark.few(12)
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
    onnx.save(
        parsed("g (float[2,9] a, float[8,4] b) => (float[2,4] y) { [mm] y = MatMul(a, b) }"), tmp_path / "misfit.onnx"
    )
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == code
    assert_one_sentence(capsys.readouterr().err, said)
    assert not (tmp_path / "o.collage").exists()


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20, "com.acme": 1]> {text}')


NO_GPU = pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a GPU")
UNRUNNABLE = [
    pytest.param(
        "g (float[2] x) => (float[2] y) { [r] y = Relu(x) }", ("-t", "cuda"), 3, "cuda: no NVIDIA", marks=NO_GPU
    ),
    (
        'g (string[2] x) => (string[2] y) { [up] y = StringNormalizer <case_change_action = "UPPER"> (x) }',
        ("-t", "openvino"),
        3,
        "openvino: openvino's CPU plugin does not compute in string",
    ),
    (
        "g (float[2] x) => (float[2] y) { [foo] z = com.acme.Foo(x) y = Relu(z) }",
        ("-t", "onnxruntime", "--allow-host"),
        3,
        "node 'foo' is a com.acme::Foo",
    ),
    (
        "g (float[N,K] a, float[M,L] b) => (float[N,L] y) { [mm] y = MatMul(a, b) }",
        ("-t", "onnxruntime", "--dim", "K=9", "--dim", "M=8"),
        5,
        "node 'mm' (MatMul) is given shapes that do not fit",
    ),
    (
        "g (float[4,9] a, int64[2] s) => (float[P,Q] y) { t = Mul (s, s) [one] z = Reshape <allowzero = 1> (a, t) y = Relu(z) }",
        ("-t", "onnxruntime"),
        5,
        "node 'one' (Reshape)",
    ),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("text", "words", "code", "said"), UNRUNNABLE)
def test_what_cannot_run_is_refused_once_and_nothing_is_written(
    text: str, words: tuple[str, ...], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(parsed(text), tmp_path / "m.onnx")
    done = run_here(capsys, "compile", tmp_path / "m.onnx", "-o", tmp_path / "o.collage", *words)
    assert done.returncode == code, done.stderr
    assert done.stdout == "" and not (tmp_path / "o.collage").exists()
    assert_one_sentence(done.stderr, said)
    sentence = next(line for line in done.stderr.splitlines() if line.startswith("collage: "))
    assert sentence.count(said) == 1 and "scratch" not in sentence and "[ONNXRuntimeError]" not in sentence
    if code == 5:
        assert "--input " in sentence
        assert ("--dim " in sentence) == ("--dim" in words)  # Where no length is free, none can be given.
    elif "--allow-host" not in words:
        assert "--allow-host" in sentence


def test_the_host_runs_what_nothing_else_does_where_it_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'g (string[2] x) => (string[2] y) { y = StringNormalizer <case_change_action = "UPPER"> (x) }'
    onnx.save(parsed(text), tmp_path / "m.onnx")
    words = ("compile", tmp_path / "m.onnx", "-o", tmp_path / "o.collage", "-t", "openvino", "--allow-host", "--json")
    done = run_here(capsys, *words)
    assert done.returncode == 0, done.stderr
    assert [kernel["target"] for kernel in json.loads(done.stdout)["kernels"]] == ["llvm -compiler=host"]


@pytest.mark.slow
def test_an_artefact_does_not_tell_where_its_model_was(
    artefact: tuple[Path, dict], mixed_model: Path, tmp_path: Path
) -> None:
    path, report = artefact
    assert report["model"]["path"] == mixed_model.name
    manifest = (path / "manifest.json").read_text()
    assert str(mixed_model.parent) not in manifest and "scratch" not in manifest
    done = run("bench", path, "--rounds", "3", "--against", "onnxruntime", "--model", mixed_model, "--json")
    assert done.returncode == 0, done.stderr
    assert "not found from here" not in done.stderr
    onnx.save(parsed("g (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path / "other.onnx")
    done = run("bench", path, "--model", tmp_path / "other.onnx")
    assert done.returncode == 2
    assert_one_sentence(done.stderr, "is not the model that the artefact was compiled from")


def test_tables_are_printed_by_terminals_that_know_only_ascii(tmp_path: Path) -> None:
    done = subprocess.run(
        [COLLAGE, "db", "show", "--db", str(tmp_path / "t.sqlite")],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert b"Traceback" not in done.stderr
    program = "import sys; from collage.cli import _app; _app._main = lambda _: print('1 \xb5s') or 0; _app.main([])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert (done.returncode, done.stdout) == (0, b"1 ?s\n"), done.stderr


def test_without_a_folder_for_temporary_files_there_is_one_sentence(
    mixed_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    done = run_here(capsys, "compile", mixed_model, "-o", tmp_path / "o.collage", "-t", "onnxruntime")
    assert done.returncode == 2, done.stderr
    assert_one_sentence(done.stderr, "set TMPDIR to a folder that can be")


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
