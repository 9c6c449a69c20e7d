"""``collage compile``: what it says beyond what the library does."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from collage.cli import main
from collage.cli._options import _targets
from collage.compiler import pipeline
from collage.options import CompileOptions
from collage.report import Numerics, Report, SearchFacts


class Slow:
    """An executable that takes a while to write."""

    report = Report(search=SearchFacts(built=7), numerics=Numerics(ok=True))

    def save(self, path: Path, recipe_only: bool) -> None:
        time.sleep(0.2)
        path.mkdir()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[CompileOptions]:
    """The options of each compilation; none takes place."""
    told: list[CompileOptions] = []

    def compile_(model: Any, targets: Any, *, options: CompileOptions, progress: Any) -> Slow:
        told.append(options)
        return Slow()

    monkeypatch.setattr(pipeline, "compile", compile_)
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").touch()
    return told


def test_the_time_is_that_which_the_user_waits(
    asked: list[CompileOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    with pytest.raises(SystemExit):
        main(["compile", "m.onnx", "-o", str(tmp_path / "o.collage"), "--json"])
    search = json.loads(capsys.readouterr().out)["search"]
    assert 0.2 <= search["wall_s"] <= time.monotonic() - began
    assert search["built"] == 7


def test_no_artefact_is_written_of_a_plan_that_is_wrong(
    asked: list[CompileOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for ok, code in ((True, 0), (None, 0), (False, 4)):
        monkeypatch.setattr(Slow, "report", Report(numerics=Numerics(ok=ok)))
        path = tmp_path / f"{ok}.collage"
        with pytest.raises(SystemExit) as stop:
            main(["compile", "m.onnx", "-o", str(path), "--json", "-q"])
        said = capsys.readouterr()
        assert stop.value.code == code and path.exists() == (code == 0)
        assert json.loads(said.out)["artefact"] == (None if code else str(path))
        assert ("nothing is written" in said.err) == bool(code)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], {"percentile": 50, "search": "fast", "allow_host": False}),
        (
            ["--percentile", "90", "--search", "proof", "--allow-host", "--baseline", "none", "-v"],
            {"percentile": 90, "search": "proof", "allow_host": True, "baseline": "none"},
        ),
    ],
)
def test_options_are_handed_on(
    words: list[str], wanted: dict[str, Any], asked: list[CompileOptions], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["compile", "m.onnx", "-o", str(tmp_path / "o.collage"), "--json", *words])
    assert stop.value.code == 0
    assert {name: getattr(asked[0], name) for name in wanted} == wanted


def test_choices_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compile", "--help"])
    said = capsys.readouterr().out
    assert all(form in said for form in ("10|50|90", "fast|proof|exhaustive"))


def test_targets_are_completed() -> None:
    assert _targets("on") == ["onednn", "onnxruntime"] and "llvm" in _targets("") and "host" not in _targets("")


def test_the_limit_is_told_before_anything_is_compiled(
    asked: list[CompileOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compile", "m.onnx", "-o", str(tmp_path / "o.collage"), "--json", "--threads", "4096"]
    with pytest.raises(SystemExit):
        main([*words, "--precision", "int8", "--data", str(tmp_path)])
    said = capsys.readouterr().err
    assert "may get worse by at most 1.00%" in said and "4096 on" in said
    with pytest.raises(SystemExit):
        main([*words, "--data", str(tmp_path)])
    assert "--data decides nothing" in capsys.readouterr().err
