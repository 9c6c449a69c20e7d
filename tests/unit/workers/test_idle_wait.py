"""Threads that run on after the work is done."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from collage.workers.idle_wait import until_quiet


def in_process(program: str) -> str:
    """What a program prints: threads of the test runner would be waited for, too."""
    program = "import threading, time\nfrom collage.workers.idle_wait import until_quiet\n" + program
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_a_quiet_process_is_not_waited_for() -> None:
    asleep = "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\ntime.sleep(0.01)\n"
    quiet, took_s = in_process(f"{asleep}t = time.monotonic(); print(until_quiet(20.0), time.monotonic() - t)").split()
    assert quiet == "True"
    assert float(took_s) < 10.0


SPIN = """
def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
t = time.monotonic()
threading.Thread(target=spin, args=({}, ), daemon=True).start()
print(until_quiet({}), time.monotonic() - t)
"""


def test_a_thread_that_spins_for_a_while_is_waited_for() -> None:
    quiet, took_s = in_process(SPIN.format(0.15, 20.0)).split()
    assert quiet == "True"
    assert float(took_s) > 0.1


def test_one_that_spins_for_ever_is_not() -> None:
    quiet, took_s = in_process(SPIN.format(60.0, 0.1)).split()
    assert quiet == "False"
    assert 0.1 < float(took_s) < 50.0


@pytest.mark.parametrize("name", ["plain", "a (b) R", ")"])
def test_threads_may_have_any_name(name: str) -> None:
    sleeper = threading.Thread(target=time.sleep, args=(0.05,), name=name)
    sleeper.start()
    until_quiet(0.01)
    sleeper.join()
