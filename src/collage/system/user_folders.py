"""Folders of the user's own, where the XDG base directory specification has them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from collage._errors import UsageError

__all__ = ["cache_folder", "is_own"]


def cache_folder(remedy: str) -> Path:
    """Return Collage's folder in the user's cache folder. It need not exist.

    Args:
        remedy: The option that names another place, for the message.

    Raises:
        UsageError: The user has no home folder, as a container's user that has only a number.
    """
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "collage"
    try:
        return Path.home() / ".cache" / "collage"
    except RuntimeError:
        raise UsageError(f"this user has no home folder: set HOME or XDG_CACHE_HOME, or {remedy}") from None


def is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Return True if a path is of a kind, is not a link, and only this user may write to it.

    Args:
        path: The path, which need not exist.
        is_kind: Tells the kind by the mode, such as ``stat.S_ISDIR``.
    """
    try:
        found = path.lstat()
    except OSError:
        return False
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_kind(found.st_mode) and not others_write and found.st_uid == getattr(os, "geteuid", lambda: -1)()
