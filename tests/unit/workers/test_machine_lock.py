"""One measurement alone, or any number of builds; across processes."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

import pytest

from collage._errors import UsageError
from collage.workers import machine_lock
from collage.workers.machine_lock import build_lock, measurement_lock

CONTEXT = multiprocessing.get_context("fork")
PATIENCE_S = 60.0
KINDS = {"measure": measurement_lock, "build": build_lock}


class Tuner:
    """A process that takes the slot, says so, and gives it back when told to."""

    def __init__(self, kind: str) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=self._hold, args=(kind, theirs))
        self.process.start()

    @staticmethod
    def _hold(kind: str, pipe: Connection) -> None:
        with KINDS[kind]():
            pipe.send("in")
            pipe.recv()
        pipe.send("out")

    def is_in(self, within_s: float = 0.3) -> bool:
        return self.pipe.poll(within_s)

    def leave(self) -> None:
        self.pipe.recv()
        self.pipe.send("leave")
        assert self.pipe.poll(PATIENCE_S)
        self.process.join(PATIENCE_S)


def first_in(*tuners: Tuner) -> Tuner:
    (pipe, *_) = wait([tuner.pipe for tuner in tuners], PATIENCE_S)
    return next(tuner for tuner in tuners if tuner.pipe is pipe)


def is_nobody_in_line(folder: Path) -> bool:
    with (folder / "collage-slot-line").open("rb") as line:
        try:
            fcntl.flock(line, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.fixture(autouse=True)
def own_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(machine_lock, "_FOLDER", tmp_path)
    yield
    for process in multiprocessing.active_children():
        process.kill()


def test_builds_share_and_a_measurement_does_not() -> None:
    one, other = Tuner("build"), Tuner("build")
    assert one.is_in(PATIENCE_S)
    assert other.is_in(PATIENCE_S)
    measurement = Tuner("measure")
    assert not measurement.is_in()
    one.leave()
    assert not measurement.is_in()
    other.leave()
    assert measurement.is_in(PATIENCE_S)
    second = Tuner("measure")
    build = Tuner("build")
    assert not second.is_in()
    assert not build.is_in()
    measurement.leave()
    first_in(second, build).leave()


def test_a_stream_of_builds_keeps_no_measurement_waiting(tmp_path: Path) -> None:
    build = Tuner("build")
    assert build.is_in(PATIENCE_S)
    measurement = Tuner("measure")
    while is_nobody_in_line(tmp_path):
        time.sleep(0.01)
    late = Tuner("build")
    assert not late.is_in()
    build.leave()
    assert measurement.is_in(PATIENCE_S)
    measurement.leave()
    assert late.is_in(PATIENCE_S)


def test_a_killed_tuner_leaves_nothing_locked() -> None:
    killed, next_ = Tuner("measure"), Tuner("measure")
    first = first_in(killed, next_)
    os.kill(first.process.pid or 0, signal.SIGKILL)
    assert (next_ if first is killed else killed).is_in(PATIENCE_S)


def test_a_fork_of_a_tuner_that_has_left_keeps_nothing_locked() -> None:
    with measurement_lock():
        fork = CONTEXT.Process(target=time.sleep, args=(PATIENCE_S,))
        fork.start()
    next_ = Tuner("measure")
    assert next_.is_in(PATIENCE_S / 2)
    assert fork.is_alive()
    next_.leave()


def test_something_else_in_its_place_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "collage-slot-line").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="by which tuners take turns"), measurement_lock():
        pass
