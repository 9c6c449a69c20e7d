"""Several representative lengths: what is chosen is fastest on their weighted mean, and right at each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import collage
from collage.benchmark import bench
from collage.cli import main
from collage.runtime import Executable
from collage.toolchains import Registry
from tests.e2e.conftest import LENT
from tests.figures import figures
from tests.fixed_time_toolchain import DeclaredToolchain

ROWS = '<ir_version: 10, opset_import: ["" : 17]> g (float[n,4] x, float[4] b) => (float[n,4] y) {y = Add (x, b)}'
STEADY_S = 4e-3
BY_ROWS_S = 0.25e-3
"""Of a row of four: at 4 rows this one takes 1 ms, at 64 it takes 16."""


@pytest.fixture(autouse=True, scope="module")
def workers() -> Iterator[None]:
    """Nobody else needs these."""
    known = set(LENT)
    yield
    for name in set(LENT) - known:
        LENT.pop(name).kill()


def compiled(folder: Path, weights: dict[int, float], misbehaviour: str = "", **options: object) -> Executable:
    toolchains = Registry()
    linear = "linear" + misbehaviour.replace(":", "")
    toolchains.add(DeclaredToolchain(seconds=STEADY_S, name="steady"))
    toolchains.add(DeclaredToolchain(misbehaviour, name=linear, per_element_s=BY_ROWS_S / 4))
    told = collage.CompileOptions(
        db=str(folder / "t.sqlite"), dims={"n": weights}, baseline="none", specialise=False, **options
    )  # type: ignore[arg-type]
    model = onnx.ModelProto()
    model.CopyFrom(parser.parse_model(ROWS))
    return collage.compile(model, ["steady", linear], options=told, toolchains=toolchains, workers=LENT)


def single(executable: Executable) -> dict[str, Any]:
    """What is told of the toolchain whose time depends on the rows."""
    (row,) = (row for row in figures(executable.report)["singles"] if "linear" in row["target"])
    return row


def command(*arguments: str) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


def chosen(executable: Executable) -> set[str]:
    return {kernel.compiled.toolchain for kernel in executable.recipe.kernels}


@pytest.mark.parametrize(
    ("weights", "best", "finals"),
    [({4: 9, 64: 1}, "linear", False), ({4: 2, 64: 1}, "steady", True), ({4: 1}, "linear", False)],
)
def test_weights_decide(weights: dict[int, float], best: str, finals: bool, tmp_path: Path) -> None:
    executable = compiled(tmp_path, weights, finals=finals)
    assert chosen(executable) == {best}
    total = sum(weights.values())
    mean_s = sum(weight * rows * BY_ROWS_S for rows, weight in weights.items()) / total
    # Sleeping takes a little longer than was asked for.
    (linear,) = (answer for answer in executable.explain().targets if "linear" in answer.target)
    assert linear.whole_us is not None and mean_s < linear.whole_us * 1e-6 < mean_s + 2e-3
    assert executable.report["occasions"] == [
        {"weight": weight / total, "inputs": {"x": [rows, 4], "b": [4]}} for rows, weight in weights.items()
    ]
    for rows in (4, 64, 7):
        x, b = np.ones((rows, 4), np.float32), np.float32([-2, -1, 0, 1])
        np.testing.assert_array_equal(executable.run({"x": x, "b": b})["y"], x + b)


@pytest.mark.parametrize(
    ("misbehaviour", "reason"),
    [
        ("run:choosy", "not at these lengths, [(64, 4)"),
        # Wrong answers of every kind are found in tests/crash/test_bad_toolchains.py.
        pytest.param("run:stuck", "differs", marks=pytest.mark.slow),
    ],
)
def test_who_fails_or_is_wrong_at_one_of_them_is_not_chosen(misbehaviour: str, reason: str, tmp_path: Path) -> None:
    executable = compiled(tmp_path, {4: 9, 64: 1}, misbehaviour, finals=False)
    assert chosen(executable) == {"steady"}
    assert reason in single(executable)["reason"]


def test_what_is_known_is_known_for_the_same_weights_only(tmp_path: Path) -> None:
    for weights, measures in (({4: 9, 64: 1}, True), ({4: 18, 64: 2}, False), ({4: 8, 64: 2}, True)):
        executable = compiled(tmp_path, weights, finals=False)
        assert bool(executable.report["search"]["measured"]) == measures, weights


@pytest.mark.slow
def test_by_the_command_line_and_its_artefact_remembers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, artefact, db = tmp_path / "m.onnx", tmp_path / "m.collage", str(tmp_path / "t.sqlite")
    onnx.save(parser.parse_model(ROWS), model)
    begin = ["compile", str(model), "-o", str(artefact), "-t", "onnxruntime", "--no-specialise", "--db", db]
    assert command(*begin, "--dim", "n=4:3,64") == 0
    assert "all times are the mean of x[4, 4], b[4] (75%), x[64, 4], b[4] (25%)" in " ".join(
        capsys.readouterr().out.split()
    )
    explain = ["db", "explain-miss", str(model), "-t", "onnxruntime", "--db", db, "--json"]
    for lengths, known in ((["--dim", "n=4:3", "--dim", "n=64"], True), (["--dim", "n=4:4,64"], False)):
        assert command(*explain, *lengths) == 0
        (explanation,) = json.loads(capsys.readouterr().out)["explanations"]
        assert explanation["known"] == known
    assert json.loads((artefact / "manifest.json").read_text())["report"]["dims"] == {"n": {"4": 3.0, "64": 1.0}}
    rows = {row["name"]: row for row in bench(artefact, rounds=3)["rows"]}
    assert rows["collage"]["status"] == "ok" and "onnxruntime" in rows


@pytest.mark.parametrize("text", ["n=4:x", "n=4:", "n=:3", "n=4,,5", "n=4:0", "n=a"])
def test_what_cannot_be_read_is_said(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(ROWS), model)
    code = command("compile", str(model), "-o", str(tmp_path / "a"), "-t", "onnxruntime", "--dim", text)
    assert code == 2 and "n" in capsys.readouterr().err


def test_inspect_takes_lengths_as_compile_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(ROWS), model)
    assert command("inspect", str(model), "--fix", "n=3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == ["x: float[3, 4]", "b: float[4]"]
    show = ["--passes", "FoldConstant", "--print-after", "FoldConstant", "--json"]
    assert command("inspect", str(model), "--fix", "n=3", *show) == 0
    assert "3,4" in json.loads(capsys.readouterr().out)["printed"][0]["text"].replace(" ", "")
    assert command("inspect", str(model), "--coverage", "-t", "onnxruntime", "--dim", "n=2,5", "--json") == 0
    assert json.loads(capsys.readouterr().out)["coverage"][0]["taken"] == 1
