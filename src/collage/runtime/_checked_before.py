"""The record of artefacts whose models this user has checked before, so that a second load need not check them again.

An entry is an empty file in a folder that only this user may write to. Its name is a digest of the manifest and of the version
that checked. The manifest holds the digest of every file, so an entry is of these bytes and no others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage._errors import UsageError
from collage._version import __version__
from collage.system.user_folders import cache_folder, is_own

__all__ = ["note_as_checked", "was_checked"]

_FOLDER = "checked"
# Entries from which the record begins anew: a folder of some hundred kilobytes at most.
_MOST = 4096


def was_checked(manifest: Mapping[str, Any]) -> bool:
    """Return True if this user has checked the models of an artefact with this manifest."""
    folder = _folder()
    return folder is not None and is_own(folder, stat.S_ISDIR) and is_own(folder / _name(manifest), stat.S_ISREG)


def note_as_checked(manifest: Mapping[str, Any]) -> None:
    """Record that the models of an artefact with this manifest are right. Without a folder to write to, nothing is recorded."""
    folder = _folder()
    with contextlib.suppress(OSError):
        if folder is None:
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_own(folder, stat.S_ISDIR):
            return
        if len(entries := list(folder.iterdir())) >= _MOST:
            for entry in entries:
                entry.unlink(missing_ok=True)
        os.close(os.open(folder / _name(manifest), os.O_CREAT | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0), 0o600))


def _folder() -> Path | None:
    try:
        return cache_folder("") / _FOLDER
    except UsageError:
        return None


def _name(manifest: Mapping[str, Any]) -> str:
    text = json.dumps([__version__, manifest], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
