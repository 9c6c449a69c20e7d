"""Folders of the user's own, where the XDG base directory specification has them."""

from __future__ import annotations

import os
from pathlib import Path

from collage._errors import UsageError

__all__ = ["cache_folder"]


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
