"""Threads and notes of an artefact that runs on other processors than those it was compiled on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import collage
from collage.runtime import Executable, Recipe, _manifest
from collage.runtime._machine_fit import fitting_streams, fitting_threads
from collage.system.cgroups import processor_quota
from collage.system.machine import this_machine


def on(monkeypatch: pytest.MonkeyPatch, cores: int, quota: float | None) -> None:
    machine = replace(this_machine(), cores=cores, quota=quota)
    monkeypatch.setattr(_manifest, "this_machine", lambda: machine)


def recipe(threads: int) -> Recipe:
    return Recipe((), (), (), threads, "model.onnx", {}, {})


def container(folder: Path, quota_us: int) -> float | None:
    """The quota that a made-up control group grants."""
    group = folder / "docker" / "abc"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(f"{quota_us} 100000\n")
    own = folder / "cgroup"
    own.write_text("0::/docker/abc\n")
    return processor_quota(folder, own)


@pytest.mark.parametrize(
    ("quota_us", "compiled", "used"),
    [(100_000, 0, 1), (50_000, 0, 1), (150_000, 0, 2), (200_000, 8, 2), (1_600_000, 0, 0), (3_200_000, 8, 8)],
)
def test_a_quota_is_kept_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota_us: int, compiled: int, used: int
) -> None:
    on(monkeypatch, 16, container(tmp_path, quota_us))
    threads, notes = fitting_threads(recipe(compiled), {"cores": 16, "quota": None})
    assert threads == used
    assert any("may use" in note for note in notes) == (threads != compiled)


@pytest.mark.parametrize(("threads", "here", "used"), [(16, 4, 4), (2, 4, 2), (0, 4, 0), (4, 4, 4)])
def test_no_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch, threads: int, here: int, used: int) -> None:
    on(monkeypatch, here, None)
    found, notes = fitting_threads(recipe(threads), {"cores": 16, "quota": None})
    assert found == used
    assert "16 processors were usable, and here are 4" in notes[-1]


@pytest.mark.parametrize("quota", [None, 1.0, 2.5])
@pytest.mark.parametrize("threads", [0, 1, 8])
def test_where_nothing_has_changed_threads_are_those_that_were_measured(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, threads: int
) -> None:
    on(monkeypatch, 4, quota)
    assert fitting_threads(recipe(threads), {"cores": 4, "quota": quota}) == (threads, [])


@pytest.mark.parametrize(
    "facts", [None, 7, {}, {"cores": "many"}, {"cores": True}, {"cores": 0}, {"cores": 10**400, "quota": 10**400}]
)
def test_what_a_manifest_says_of_processors_is_not_believed(monkeypatch: pytest.MonkeyPatch, facts: object) -> None:
    on(monkeypatch, 4, None)
    threads, _ = fitting_threads(recipe(0), facts)
    assert threads == 0


def test_an_artefact_that_moves_into_a_small_container(
    small: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, 16, None)
    path = small.save(tmp_path / "m.collage")
    assert json.loads((path / "manifest.json").read_text())["processors"] == {"cores": 16, "quota": None}
    on(monkeypatch, 16, 1.0)
    exe = collage.load(path)
    assert "kernels use 1 thread" in exe.notes[0]
    assert exe._loader.args[4].threads == 1


@pytest.mark.parametrize(
    ("cores", "quota", "streams", "threads", "used"),
    [
        (2, None, 2, 1, 2),
        (1, None, 2, 1, 1),
        (8, None, 4, 2, 4),
        (4, None, 4, 2, 2),
        (8, 2.0, 8, 1, 2),
        (4, None, 2, 0, 1),
    ],
)
def test_streams_that_the_processors_have_no_room_for_are_left_out(
    monkeypatch: pytest.MonkeyPatch, cores: int, quota: float | None, streams: int, threads: int, used: int
) -> None:
    on(monkeypatch, cores, quota)
    found, notes = fitting_streams(replace(recipe(threads), streams=streams), threads)
    assert found == used
    assert bool(notes) == (used != streams)


def test_an_artefact_of_several_streams_remembers_them(
    small: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, 4, None)
    made = Executable(replace(small.recipe, streams=3, threads=1), small.workspace, is_lazy=True)
    path = made.save(tmp_path / "m.collage")
    assert Recipe.from_json(json.loads((path / "manifest.json").read_text())).streams == 3
    exe = collage.load(path, trusted=True)
    assert exe._limit == 3 and not exe.notes
    assert collage.load(path, trusted=True, contexts=2)._limit == 2
    on(monkeypatch, 2, None)
    exe = collage.load(path, trusted=True)
    assert exe._limit == 2 and "2 at once here" in exe.notes[-1]
    plain = json.loads((small.save(tmp_path / "plain.collage") / "manifest.json").read_text())
    assert "streams" not in plain
