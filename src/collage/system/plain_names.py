"""File names that mean one file in one folder on every system."""

from __future__ import annotations

from pathlib import PurePosixPath

__all__ = ["is_plain_name"]

_MAX_NAME = 200
# Characters. Systems know names of up to 255 bytes.


def is_plain_name(name: str) -> bool:
    """True if a name is that of a file in the folder itself, on any system."""
    plain = PurePosixPath(name).name == name and name not in ("", ".", "..") and len(name) <= _MAX_NAME
    return plain and name.isprintable() and not any(character in '\\/:*?"<>|' for character in name)
