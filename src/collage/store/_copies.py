"""Copies of files that are checked while they are copied."""

from __future__ import annotations

import hashlib
from pathlib import Path

from collage._errors import ArtefactError
from collage.store._places import FileSystem, shown

__all__ = ["copy_verified"]

_BLOCK = 1 << 22


def copy_verified(source: FileSystem, path: str, target: Path, size: int, digest: str | None = None) -> None:
    """Copy a file of a known size, and of a known SHA-256 if it is given, to this machine.

    Raises:
        ArtefactError: The file has another size or other bytes. Nothing is left of it.
    """
    seen, found = hashlib.sha256(), 0
    try:
        with source.open(path) as reader, target.open("xb") as writer:
            while block := reader.read(_BLOCK):
                found += len(block)
                if found > size:
                    break
                seen.update(block)
                writer.write(block)
        if found != size:
            raise ArtefactError(f"{shown(source.url)}: {path} has another size than the {size} bytes that are stated")
        if digest is not None and seen.hexdigest() != digest:
            raise ArtefactError(f"{shown(source.url)}: {path} was changed: its SHA-256 is not {digest}")
    except BaseException:
        target.unlink(missing_ok=True)
        raise
