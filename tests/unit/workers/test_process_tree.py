"""Pausing and resuming whole families of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from collage.workers._process_tree import descendants, pause, resume

PATIENCE_S = 60.0
_CHAIN = """
import subprocess, sys, time
depth = int(sys.argv[1])
if depth:
    subprocess.Popen([sys.executable, "-c", sys.argv[2], str(depth - 1), sys.argv[2]], start_new_session=depth == 2)
else:
    print("complete", flush=True)
time.sleep(600)
"""


@pytest.fixture
def family() -> Iterator[list[int]]:
    """A process, its child in a session of its own, and so on: four generations, eldest first."""
    eldest = subprocess.Popen([sys.executable, "-c", _CHAIN, "3", _CHAIN], stdout=subprocess.PIPE)
    assert eldest.stdout is not None
    assert eldest.stdout.readline() == b"complete\n"
    pids = list(descendants(eldest.pid))
    yield pids
    for pid in pids:
        psutil.Process(pid).kill()
    eldest.wait()
    eldest.stdout.close()


def _states(pids: list[int]) -> set[str]:
    return {psutil.Process(pid).status() for pid in pids}


def test_all_descendants_are_paused_and_resumed_and_the_root_is_not(family: list[int]) -> None:
    assert len(family) == 4
    pause(family[0])
    deadline = time.monotonic() + PATIENCE_S
    while _states(family[1:]) != {psutil.STATUS_STOPPED}:  # One that runs on another processor stops at its next tick.
        assert time.monotonic() < deadline
    assert _states(family[:1]) != {psutil.STATUS_STOPPED}
    resume(family[0])
    while psutil.STATUS_STOPPED in _states(family):
        assert time.monotonic() < deadline


def test_children_are_resumed_before_their_parents(family: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was resumed first found its busy child still paused, took it for quiet, and it was paused no more."""
    order, kill = list[int](), os.kill

    def record(pid: int, number: int) -> None:
        order.append(pid)
        kill(pid, number)

    pause(family[0])
    monkeypatch.setattr(os, "kill", record)
    resume(family[0])
    assert order == family[:0:-1]
