"""Options of `collage compile` from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_compile_command import Slow

from collage.cli import main
from collage.compiler import pipeline
from collage.options import CompileOptions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, CompileOptions]]:
    told: list[tuple[Any, CompileOptions]] = []

    def compile_(model: Any, targets: Any, *, options: CompileOptions, progress: Any) -> Slow:
        told.append((targets, options))
        return Slow()

    monkeypatch.setattr(pipeline, "compile", compile_)
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").touch()
    return told


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["compile", "m.onnx", "-o", "o.collage", "--json", *words])
    return int(stop.value.code or 0)


TEXT = """
[compile]
target = ["llvm", "openvino"]
time-budget = "2m"
threads = 2
accuracy_budget = 1e-2
allow-host = true
use-tuned = false
search = "proof"
force = ["/Resize:llvm"]
dim = "seq=32"
"""


def test_a_file_in_the_current_folder_sets_defaults_and_the_command_line_wins(
    asked: list[tuple[Any, CompileOptions]],
) -> None:
    Path("collage.toml").write_text(TEXT)
    assert run("--threads", "3", "-t", "onnxruntime") == 0
    (targets, options), *_ = asked
    assert targets == ["onnxruntime"] and options.threads == 3
    assert (options.time_budget_s, options.accuracy_budget, options.search) == (120.0, 0.01, "proof")
    assert options.allow_host and not options.use_tuned and options.force == ("/Resize:llvm",)
    assert options.dims == {"seq": 32}


def test_another_file_is_read_instead_if_it_is_named(asked: list[tuple[Any, CompileOptions]]) -> None:
    Path("collage.toml").write_text("[compile]\nthreads = 5\n")
    Path("other.toml").write_text("[compile]\nsearch = 'exhaustive'\n")
    assert run("--config", "other.toml") == 0
    assert (asked[0][1].threads, asked[0][1].search) == (0, "exhaustive")


def test_without_a_file_nothing_changes(asked: list[tuple[Any, CompileOptions]]) -> None:
    assert run() == 0
    assert asked[0][1] == CompileOptions()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[compile]\nthread = 2", "did you mean 'threads'?"),
        ("[compile]\nconfig = 'x'", "'config' is not an option"),
        ("[compile]\nmodel = 'x'", "'model' is not an option"),
        ("[bench]\nrounds = 3", "'bench' is not known"),
        ("compile = 3", "'compile' is not a table"),
        ("[compile]\nthreads = [1]", "threads is not a plain value"),
        ("[compile]\nthreads = true", "threads takes a value"),
        ("[compile]\nallow-host = 'yes'", "allow-host is a switch: write true or false"),
        ("[compile]\nno-tuned = true", "did you mean 'use-tuned'?"),
        ("[compile]\ntarget = [['a']]", "target is not a list of plain values"),
        ("[compile]\nsearch = 'quick'", "quick"),
        ("[compile]\nthreads = 'many'", "whole number"),
        ("[compile", "is not TOML"),
        ("\xff", "is not TOML"),
    ],
)
def test_what_cannot_be_is_refused(
    text: str, said: str, asked: list[tuple[Any, CompileOptions]], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("collage.toml").write_bytes(text.encode("latin-1"))
    assert run() == 2
    assert said in capsys.readouterr().err and not asked


def test_a_named_file_that_is_not_there_is_refused(
    asked: list[tuple[Any, CompileOptions]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--config", "none.toml") == 2
    assert "cannot read none.toml" in capsys.readouterr().err
