"""Paths of libraries: a file that took the place of a loaded library is a library of its own.

The dynamic loader compares paths first. It hands out the library that it once loaded from a path, whatever lies there now.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["path_to_load"]

_loaded: dict[str, tuple[int, tuple[int, ...]]] = {}
"""For each path the number of files that were loaded from it, and the last of them."""


def path_to_load(library: Path) -> str:
    """Return a path of a library from which no other file was loaded by this process."""
    path = Path(os.path.realpath(library))
    found = path.stat()
    identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    count, last = _loaded.get(str(path), (0, identity))
    count += last != identity
    _loaded[str(path)] = count, identity
    # Another spelling of the path is another path to the loader. ``Path`` would bring it back to the usual one.
    return f"{path.parent}/{'./' * count}{path.name}"
