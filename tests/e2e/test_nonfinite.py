"""Models of which the usual made-up inputs make NaN: others are tried, and what stays NaN is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import collage
from collage.cli import main
from collage.testing import FakeToolchain
from collage.toolchains import Registry
from tests.e2e.conftest import LENT
from tests.figures import figures

HEAD = '<ir_version: 10, opset_import: ["": 17]>'


def model_of(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD} g (float[4, 32] x) => (float[4, 32] y) {{ {body} }}")


def compiled(body: str, tmp_path: Path, **options: Any) -> dict[str, Any]:
    toolchains = Registry()
    toolchains.add(FakeToolchain("run:zero"))
    chosen = collage.CompileOptions(db=str(tmp_path / "t.sqlite"), finals=False, **options)
    executable = collage.compile(
        model_of(body), ["onnxruntime", "fake"], options=chosen, toolchains=toolchains, workers=LENT
    )
    report: dict[str, Any] = executable.report
    return report


def status_of_the_fake(report: dict[str, Any]) -> str:
    return next(str(row["status"]) for row in figures(report)["singles"] if "fake" in row["target"])


@pytest.mark.parametrize(
    "body",
    [
        *(pytest.param(body, marks=pytest.mark.slow) for body in ("y = Log (x)", "y = Acosh (x)")),
        "a = Sqrt (x) b = Neg (a) c = Exp (b) y = Asin (c)",
    ],
)
def test_nobody_is_called_wrong_for_what_he_makes_of_nan(body: str, tmp_path: Path) -> None:
    report = compiled(body, tmp_path)
    assert status_of_the_fake(report) == "ok"
    assert report["numerics"]["nan"] == {}
    assert not any("NaN" in warning for warning in report["warnings"])


def test_what_is_nan_whatever_is_made_up_is_said_and_given_inputs_are_asked_for(tmp_path: Path) -> None:
    report = compiled("a = Abs (x) b = Neg (a) y = Log (b)", tmp_path)
    assert status_of_the_fake(report) == "wrong"
    assert report["numerics"]["nan"] == {"y": 1.0}
    (warning,) = [warning for warning in report["warnings"] if "is NaN" in warning]
    assert "100% of output 'y'" in warning and "--input x=FILE.npy" in warning


def test_given_inputs_are_what_counts(tmp_path: Path) -> None:
    body = "a = Abs (x) b = Neg (a) y = Log (b)"
    given = np.full((4, 32), np.nan, np.float32)
    report = compiled(body, tmp_path, inputs={"x": given})
    (warning,) = [warning for warning in report["warnings"] if "is NaN" in warning]
    assert "--input" not in warning


def test_missing_values_that_a_plan_drops_are_told_and_kept_on_request(tmp_path: Path) -> None:
    toolchains = Registry()
    toolchains.add(FakeToolchain("run:zero"))
    chosen = collage.CompileOptions(db=str(tmp_path / "n.sqlite"), baseline="none", time_budget_s=5.0)
    made = collage.compile(model_of("y = Sin (x)"), ["fake"], options=chosen, toolchains=toolchains, workers=LENT)
    (warning,) = [each for each in made.report["warnings"] if "NaN" in each]
    assert "output 'y'" in warning and "--probe nan" in warning
    report = compiled("y = Sin (x)", tmp_path, probe="nan")
    assert status_of_the_fake(report) == "wrong" and "nan" in report["numerics"]["reference"]["probes"]
    assert not any("--probe nan" in each for each in report["warnings"])


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model_of("y = Log (x)"), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.full((4, 32), 2.0, np.float32))
    np.save(tmp_path / "double.npy", np.full((4, 32), 2.0))
    command = ["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "a"), "-t", "onnxruntime"]
    command += ["--db", str(tmp_path / "t.sqlite"), "--json", "--input"]
    with pytest.raises(SystemExit) as stop:
        main([*command, f"x={tmp_path / 'x.npy'}"])
    assert not stop.value.code
    assert json.loads(capsys.readouterr().out)["numerics"]["ok"] is True
    for wrong, said in (
        (f"z={tmp_path / 'x.npy'}", "unknown input 'z'"),
        (f"x={tmp_path / 'double.npy'}", "float64"),
        (f"x={tmp_path / 'm.onnx'}", "not a .npy file"),
        (f"x={tmp_path / 'none.npy'}", "cannot read"),
    ):
        with pytest.raises(SystemExit) as stop:
            main([*command, wrong])
        assert stop.value.code == 2
        assert said in capsys.readouterr().err
