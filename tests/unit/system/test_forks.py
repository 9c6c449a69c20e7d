"""Forks wait until other threads sleep."""

from __future__ import annotations

import ctypes
import sys
import threading
import time

import numpy as np
import pytest

from collage.system.forks import wait_for_sleep

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are listed by Linux only")


@pytest.fixture
def busy_thread() -> threading.Event:
    """A thread that computes without Python's lock until the event is set."""
    stop, started, numbers = threading.Event(), threading.Event(), np.random.default_rng(0).random(3_000_000)

    def compute() -> None:
        while not stop.is_set():
            started.set()
            np.sort(numbers)

    threading.Thread(target=compute, daemon=True).start()
    started.wait()
    return stop


def test_a_thread_that_runs_is_waited_for_until_time_is_up(busy_thread: threading.Event) -> None:
    began = time.monotonic()
    try:
        assert not wait_for_sleep(0.2)
    finally:
        busy_thread.set()
    assert time.monotonic() - began >= 0.2


def test_threads_that_end_are_waited_for_no_longer(busy_thread: threading.Event) -> None:
    threading.Timer(0.3, busy_thread.set).start()
    assert wait_for_sleep(30)


def test_a_thread_may_have_a_name_that_is_no_text() -> None:
    named, done = threading.Event(), threading.Event()

    def sleep() -> None:
        ctypes.CDLL(None).prctl(15, "a name of 14 b€".encode()[:15], 0, 0, 0)  # PR_SET_NAME, which cuts the € in two
        named.set()
        done.wait()

    threading.Thread(target=sleep, daemon=True).start()
    named.wait()
    try:
        assert wait_for_sleep(30)
    finally:
        done.set()
