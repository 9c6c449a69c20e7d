"""``collage toolchain check`` and ``collage targets``, for toolchains that their authors got wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from collage.cli import main
from collage.testing import FakeToolchain
from collage.toolchains import Availability, registry


class Broken:
    """No toolchain."""


class Unsure(FakeToolchain):
    """Does not know whether it is there."""

    def __init__(self) -> None:
        super().__init__(name="unsure")

    def availability(self) -> Availability:
        raise OSError("the licence server does not answer")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[object], None]]:
    """Adds toolchains, and broken ones by their class, to those that are installed."""
    toolchains = registry()
    monkeypatch.setattr(toolchains, "_points", dict(toolchains._points))
    monkeypatch.setattr(toolchains, "_loaded", dict(toolchains._loaded))
    monkeypatch.setattr(toolchains, "broken", dict(toolchains.broken))
    monkeypatch.setattr("collage.cli._compile.check_target_names", lambda targets: None)  # It asks what is installed.

    def add(toolchain: object) -> None:
        if isinstance(toolchain, type):
            name = toolchain.__name__.lower()
            toolchains._points[name] = EntryPoint(name, f"{__name__}:{toolchain.__name__}", "collage.toolchains")
        else:
            assert isinstance(toolchain, FakeToolchain)
            toolchains.add(toolchain)

    yield add


def code_of(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(words)
    return int(stop.value.code or 0)


def test_targets_lists_what_is_broken_and_why(
    installed: Callable[[object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    installed(Broken)
    installed(Unsure)
    assert code_of("targets", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["targets"]}
    assert "Broken.name is missing" in rows["broken"]["reason"]
    assert "licence server" in rows["unsure"]["reason"]
    assert rows["broken"]["broken"] and not rows["onnxruntime"]["broken"]
    assert rows["openvino"]["by_target"][0]["values"]["precision"] == [
        *("f32", "bf16", "f16", "int8", "w8", "w4", "default")
    ]
    assert code_of("targets") == 0
    said = capsys.readouterr().out
    assert "broken: TypeError" in said and "Traceback" not in said
    assert code_of("targets", "-v") == 0
    assert "Traceback" in capsys.readouterr().out


def test_a_broken_target_says_so(
    tmp_path: Path, installed: Callable[[object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    installed(Broken)
    (tmp_path / "m.onnx").touch()
    assert code_of("compile", str(tmp_path / "m.onnx"), "-o", "o.collage", "-t", "broken") == 2
    assert "toolchain 'broken' is broken: TypeError: Broken.name is missing" in capsys.readouterr().err
    assert code_of("toolchain", "check", "broken") == 2
    assert "is broken" in capsys.readouterr().err


@pytest.mark.parametrize(("misbehaviour", "code"), [pytest.param("", 0, marks=pytest.mark.slow), ("run:wrong", 1)])
def test_check_prints_a_table(
    misbehaviour: str, code: int, installed: Callable[[object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    installed(FakeToolchain(misbehaviour, name="mine"))
    words = [
        "toolchain",
        "check",
        "mine",
        *(word for kernel in ("matmul", "elementwise") for word in ("--takes", kernel)),
    ]
    assert code_of(*words, "--json") in (0, 1)
    found = json.loads(capsys.readouterr().out)
    results = {row["check"]: row["result"] for row in found["checks"]}
    assert found["failed"] == sum(result == "failed" for result in results.values())
    assert len(results) > 20
    assert results["common kernels are right [matmul]"] == ("passed" if code == 0 else "failed")
    assert all(row["reason"] for row in found["checks"] if row["result"] == "failed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing",), "no toolchain is called 'nothing'"),
        (("mine", "-t", "openvino"), "is not a target of mine"),
        (("unsure",), "cannot be checked"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(
    words: tuple[str, ...], said: str, installed: Callable[[object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    installed(FakeToolchain(name="mine"))
    installed(Unsure)
    assert code_of("toolchain", "check", *words) == 2
    assert said in capsys.readouterr().err


def test_without_pytest_it_says_what_to_install(
    installed: Callable[[object], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(FakeToolchain(name="mine"))
    monkeypatch.setitem(sys.modules, "pytest", None)
    assert code_of("toolchain", "check", "mine") == 2
    assert capsys.readouterr().err == "collage: the checks need pytest, which is not installed: pip install pytest\n"
