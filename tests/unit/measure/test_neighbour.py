"""The process beside a race computes while the race lasts, and never longer than its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collage.cost.objective import NEIGHBOURS
from collage.measure.neighbour import neighbour


def children() -> list[int]:
    return list(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def used_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("kind", [kind for kind in NEIGHBOURS if kind != "none"])
def test_it_computes_until_the_end(kind: str) -> None:
    before = set(children())
    with neighbour(kind):
        (pid,) = set(children()) - before
        assert os.sched_getscheduler(pid) == (os.SCHED_IDLE if kind == "idle" else os.SCHED_OTHER)
        deadline = time.monotonic() + 200  # One of idle priority waits for a processor that has nothing else to do.
        while used_s(pid) < 0.05 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert used_s(pid) >= 0.05
    assert not set(children()) - before


def test_none_is_no_process() -> None:
    before = children()
    with neighbour("none"):
        assert children() == before


def test_it_ends_with_its_parent() -> None:
    code = (
        "import os, time\nfrom collage.measure.neighbour import neighbour\n"
        "with neighbour('equal'):\n"
        "    print(open(f'/proc/self/task/{os.getpid()}/children').read(), flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[0])
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 200
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()
