"""The measuring slot: on one machine, one measurement at a time, across all tuners."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["measuring_slot"]


@contextlib.contextmanager
def measuring_slot() -> Iterator[None]:
    """Waits for the machine's measuring slot and holds it.

    The lock goes with the process: a killed tuner leaves nothing locked.
    """
    path = Path(tempfile.gettempdir()) / f"collage-measuring-slot-{os.getuid()}"
    # O_NOFOLLOW: the folder is shared, and somebody may have put a link there.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
