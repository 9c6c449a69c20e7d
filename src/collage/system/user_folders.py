"""Folders of the user's own, where the XDG base directory specification has them."""

from __future__ import annotations

import os
from pathlib import Path

from collage._errors import UsageError

__all__ = ["cache_folder", "data_folder"]


def cache_folder(remedy: str) -> Path:
    """Return Collage's folder in the user's cache folder. It need not exist.

    Args:
        remedy: The option that names another place, for the message.

    Raises:
        UsageError: The user has no home folder, as a container's user that has only a number.
    """
    return _within("XDG_CACHE_HOME", Path(".cache"), remedy)


def data_folder(remedy: str) -> Path:
    """Return Collage's folder in the user's data folder; otherwise like ``cache_folder``."""
    return _within("XDG_DATA_HOME", Path(".local", "share"), remedy)


def _within(variable: str, usual: Path, remedy: str) -> Path:
    if told := os.environ.get(variable):
        return Path(told) / "collage"
    try:
        return Path.home() / usual / "collage"
    except RuntimeError:
        raise UsageError(f"this user has no home folder: set HOME or {variable}, or {remedy}") from None
