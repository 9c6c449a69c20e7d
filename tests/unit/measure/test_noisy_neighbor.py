"""Somebody else who computes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from collage._errors import WorkerDied
from collage.measure import noisy_neighbor
from collage.measure.noisy_neighbor import under_load

SERVICE = """
import time
from collage.measure._noisy_neighbor_worker import NoisyNeighborWorker
count = NoisyNeighborWorker().work()
began_s, deadline = time.process_time(), time.monotonic() + 30.0
while time.process_time() < began_s + 0.5 and time.monotonic() < deadline:
    time.sleep(0.1)
print(count, time.process_time() - began_s)
"""


def test_half_of_the_processors_are_kept_busy() -> None:
    told = subprocess.run([sys.executable, "-c", SERVICE], capture_output=True, text=True, timeout=60, check=True)
    count, busy_s = told.stdout.split()
    assert int(count) == max(1, (os.cpu_count() or 1) // 2)
    # Others may want the processors too, so it is given time; one that sleeps would have used some hundredths.
    assert float(busy_s) >= 0.5


def test_a_neighbour_goes_when_it_is_not_wanted_any_longer() -> None:
    before = _processes()
    with under_load() as is_there:
        assert is_there
        assert _processes() - before
    assert not _processes() - before


def test_where_none_can_be_started_none_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead:
        def __init__(self, service: str) -> None:
            pass

        def call(self, method: str, timeout_s: float) -> None:
            raise WorkerDied("gone")

        def kill(self) -> None:
            pass

    monkeypatch.setattr(noisy_neighbor, "Worker", Dead)
    with under_load() as is_there:
        assert not is_there


def _processes() -> set[int]:
    """What this process has started, and what that has, as far as it is still there."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit():
                state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(parent) if state != "Z" else 0
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found
