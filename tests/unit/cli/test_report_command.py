from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from collage.cli._app import _main

OLD = Path(__file__).parents[2] / "data" / "0.1.0.collage"


def report(*arguments: str | Path) -> int:
    return _main(["report", *map(str, arguments)])


def test_an_old_artefact_makes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(OLD, "-o", tmp_path / "report.html") == 0
    html = (tmp_path / "report.html").read_text()
    assert html.startswith("<!DOCTYPE html>") and "0.1.0.collage" in html
    assert "written to" in capsys.readouterr().out


def test_a_zip_makes_the_page_of_its_folder(tmp_path: Path) -> None:
    from collage.runtime._zip import write_zip

    with (tmp_path / "m.zip").open("wb") as archive:
        write_zip(sorted(OLD.iterdir()), archive)
    shutil.copytree(OLD, tmp_path / "m")
    assert report(tmp_path / "m.zip", "-o", tmp_path / "a.html") == 0
    assert report(tmp_path / "m", "-o", tmp_path / "b.html") == 0
    assert (tmp_path / "a.html").read_text().replace("m.zip", "m") == (tmp_path / "b.html").read_text()


@pytest.mark.parametrize(
    ("name", "begins"), [("a.svg", "<svg "), ("a.dot", "digraph"), ("a.gv", "digraph"), ("A.HTM", "<!DOCTYPE")]
)
def test_the_end_of_the_name_decides(name: str, begins: str, tmp_path: Path) -> None:
    assert report(OLD, "-o", tmp_path / name) == 0
    assert (tmp_path / name).read_text().startswith(begins)


def test_a_trace_and_an_attachment_are_asked_for_by_format(tmp_path: Path) -> None:
    assert report(OLD, "-o", tmp_path / "t.json", "--format", "perfetto") == 0
    assert any(event["ph"] == "X" for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"])
    assert report(OLD, "-o", tmp_path / "n.json", "--format", "netron") == 0
    assert json.loads((tmp_path / "n.json").read_text())["signature"] == "netron:attachment"


def test_a_dash_is_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(OLD, "-o", "-", "--format", "dot") == 0
    assert capsys.readouterr().out.startswith("digraph")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("-o", "x.json"), "cannot derive the format"),
        (("-o", "-"), "cannot derive the format"),
        (("-o", "x.html", "--dim", "n=2"), "perfetto"),
        (("-o", "x.json", "--format", "netron", "--redact"), "leave --redact out"),
        (("-o", "nowhere/x.html"), "does not exist"),
        (("-o", "folder.html"), "it is a folder"),
        (("-o", "x.html", "--format", "pdf"), "pdf"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    assert report(OLD, *arguments) == 2
    assert told in capsys.readouterr().err
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_a_changed_artefact_makes_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(OLD, tmp_path / "m")
    with (tmp_path / "m" / "model.onnx").open("r+b") as file:
        file.write(b"\0\0\0\0")
    assert report(tmp_path / "m", "-o", tmp_path / "a.html") == 5
    assert report(tmp_path / "nothing", "-o", tmp_path / "a.html") == 2
    assert not (tmp_path / "a.html").exists()


def test_a_redacted_page_of_an_artefact_has_no_name_of_its_model(tmp_path: Path) -> None:
    manifest = json.loads((OLD / "manifest.json").read_text())
    names = {port["name"] for kind in ("inputs", "outputs") for port in manifest[kind]}
    names |= {name for kernel in manifest["kernels"] for name in (*kernel["inputs"], *kernel["outputs"])}
    assert report(OLD, "-o", tmp_path / "open.svg") == 0
    assert report(OLD, "-o", tmp_path / "redacted.svg", "--redact") == 0
    shown, redacted = ((tmp_path / name).read_text() for name in ("open.svg", "redacted.svg"))
    for name in names:
        drawn = re.compile(rf">(input |output )?{re.escape(name)}[:<]")
        assert drawn.search(shown) and not drawn.search(redacted), name
