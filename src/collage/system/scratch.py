"""Folders that last as long as their process. Those of killed processes are removed by the next one."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from collage._errors import UsageError

_fcntl: Any
try:
    import fcntl as _fcntl
except ImportError:  # Windows: folders cannot be locked. Those of killed processes stay.
    _fcntl = None

__all__ = ["make_scratch", "remove_scratch", "scratch"]

_PREFIX = "collage_scratch_"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_GRACE_S = 60.0
"""Age in seconds below which a folder without a lock is left alone. Its maker may be about to lock it."""


class _Hold(NamedTuple):
    """The process that made a folder, and the descriptor that holds its lock, if the system knows such locks.

    The system releases the lock whenever the process ends.
    """

    process: int
    descriptor: int | None


_held: dict[Path, _Hold] = {}


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder of this process's own, within the ``with``.

    Raises:
        UsageError: There is no folder for temporary files, or its disk becomes full within the ``with``.
    """
    folder = make_scratch()
    try:
        yield folder
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise UsageError(
            f"{error.strerror}, most likely in {folder.parent}: make room, or have TMPDIR name a folder that has some"
        ) from error
    finally:
        remove_scratch(folder)


def make_scratch() -> Path:
    """Make a folder for this process, until ``remove_scratch``. Folders of killed processes are removed first.

    Raises:
        UsageError: There is no folder for temporary files, or nothing can be written to it.
    """
    try:
        if not _held:
            _sweep(Path(tempfile.gettempdir()))
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"temporary files cannot be written: {reason}; set TMPDIR to a folder that can be") from error
    try:
        descriptor = None if _fcntl is None else os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:  # This process has as many files open as it may.
        folder.rmdir()
        raise UsageError(f"temporary files cannot be written: {error.strerror}") from error
    _held[folder] = _Hold(os.getpid(), descriptor)
    if descriptor is not None:
        _lock(descriptor)
    return folder


def remove_scratch(folder: Path) -> None:
    """Remove a folder that ``make_scratch`` made. In a fork do nothing: the process that made the folder removes it."""
    hold = _held.pop(folder, None)
    if hold is None:
        return
    if hold.process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
    if hold.descriptor is not None:
        os.close(hold.descriptor)


def _sweep(parent: Path) -> None:
    """Remove this user's folders that no living process holds."""
    if _fcntl is None:
        return
    try:
        with os.scandir(parent) as entries:
            named = [Path(entry.path) for entry in entries if entry.name.startswith(_PREFIX)]
    except PermissionError:  # Its files can be made and not listed, as on some shared systems.
        return
    for folder in named:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # Another process swept it, or it is no folder of ours.
            continue
        try:
            facts = os.fstat(descriptor)
            if facts.st_uid == os.geteuid() and time.time() - facts.st_mtime > _GRACE_S and _lock(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Take the lock, if it is free, and the file system knows locks."""
    try:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except OSError:
        return False
    return True
