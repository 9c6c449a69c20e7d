"""Files to and from URLs: whole or not at all."""

from __future__ import annotations

import secrets
from pathlib import Path

from collage._errors import ArtefactError, UsageError
from collage.store._places import FileSystem, shown, telling
from collage.system.scratch import scratch

__all__ = ["check_writable", "download", "upload"]

_FILE = "artefact"
_BLOCK_BYTES = 1 << 22


def download(url: str, folder: Path) -> Path:
    """Download the file at a URL into an empty folder, and return it.

    Raises:
        UsageError: There is nothing at the URL, or it cannot be read.
        ArtefactError: It has another size than the file system states.
    """
    source, target, copied = FileSystem(url), folder / _FILE, 0
    with telling("read", url):
        size = source.size(source.path)
        if size is None:
            raise UsageError(f"{shown(url)} does not exist, or is a folder; an artefact at a URL is one file, a zip")
        with source.open(source.path) as reader, target.open("xb") as writer:
            # Not more than is stated: the disk of this machine is not the file's to fill.
            while copied <= size and (block := reader.read(_BLOCK_BYTES)):
                copied += writer.write(block)
    if copied != size:
        target.unlink()
        raise ArtefactError(f"{shown(url)} has another size than the {size} bytes that are stated")
    return target


def upload(file: Path, url: str) -> None:
    """Write a file to a URL.

    Raises:
        UsageError: It cannot be written.
    """
    place = FileSystem(url)
    with telling("write", url):
        place.write(file, place.path)
        found = place.size(place.path)
        if found != file.stat().st_size:
            raise UsageError(f"cannot write {shown(url)}: {found} bytes arrived of {file.stat().st_size}")


def check_writable(url: str) -> None:
    """Write an empty file beside a URL and remove it, so that a failure comes before the work and not after it.

    Raises:
        UsageError: Nothing can be written there.
    """
    place = FileSystem(url)
    probe = f"{place.path}.{secrets.token_hex(8)}.probe"
    with telling("write", url), scratch() as folder:
        empty = folder / "probe"
        empty.write_bytes(b"")
        place.write(empty, probe)
        place.remove(probe)
