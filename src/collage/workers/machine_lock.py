"""The lock of the machine's cores: for one measurement alone, or any number of builds, across all tuners.

A build beside a measurement slows it several times over, whichever tuner it belongs to. So a builder shares the slot with
other builders, and a measurement has it to itself. Waiting processes stand in line, builders behind a waiting
measurement too, so that no stream of builds keeps a measurement waiting for ever. The locks go with the process: a
killed tuner leaves nothing locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from collage._errors import UsageError

__all__ = ["build_lock", "measurement_lock"]

_FOLDER = Path("/tmp")
"""Not ``$TMPDIR``, which may differ between two tuners of one machine."""


def measurement_lock() -> contextlib.AbstractContextManager[None]:
    """Wait until nothing is built or measured on this machine, and hold the slot alone."""
    return _lock(fcntl.LOCK_EX)


def build_lock() -> contextlib.AbstractContextManager[None]:
    """Wait until nothing is measured on this machine, and hold the slot, with other builders."""
    return _lock(fcntl.LOCK_SH)


@contextlib.contextmanager
def _lock(kind: int) -> Iterator[None]:
    with _opened("collage-slot") as slot:
        with _opened("collage-slot-line") as line:
            fcntl.flock(line, fcntl.LOCK_EX)
            fcntl.flock(slot, kind)
        yield


@contextlib.contextmanager
def _opened(name: str) -> Iterator[int]:
    """Open a file that all users of the machine share; for reading, since that is enough for locking it.

    Raises:
        UsageError: Something else is in its place.
    """
    path = _FOLDER / name
    # O_NOFOLLOW: the folder is shared, and somebody may have put a link there; O_NONBLOCK: or a pipe.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o444))
        descriptor = os.open(path, flags)
    except OSError as error:
        raise UsageError(f"cannot open {path}, by which tuners take turns: {error.strerror}; remove it") from error
    process = os.getpid()
    try:
        yield descriptor
    finally:
        # Closing alone would leave the lock to a fork that was made meanwhile, for as long as that lives.
        if os.getpid() == process:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
