"""Which processes are left over: those that inherited a mark from whoever started them."""

from __future__ import annotations

import contextlib
import time

import psutil

VARIABLE = "COLLAGE_TEST_MARK"


def marked(mark: str) -> list[psutil.Process]:
    """Living processes that carry a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(VARIABLE) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def assert_none_left(mark: str, patience_s: float = 60.0) -> None:
    deadline = time.monotonic() + patience_s
    while left := marked(mark):
        assert time.monotonic() < deadline, [process.cmdline() for process in left]
        time.sleep(0.05)
