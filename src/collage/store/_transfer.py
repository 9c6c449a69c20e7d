"""Files to and from URLs: whole or not at all."""

from __future__ import annotations

import secrets
from pathlib import Path

from collage._errors import UsageError
from collage.store._copies import copy_verified
from collage.store._objects import Store, check_name
from collage.store._places import STORE, FileSystem, shown, telling
from collage.system.scratch import scratch

__all__ = ["check_writable", "download", "stored_name", "upload"]

_FILE = "artefact"


def stored_name(url: str) -> str | None:
    """Return the object that a URL names in the content-addressed store; None if it is another kind of URL."""
    return url.removeprefix(f"{STORE}://") if url.startswith(f"{STORE}://") else None


def download(url: str, folder: Path) -> Path | None:
    """Download the artefact at a URL into an empty folder.

    Returns:
        The file. None if the URL names an artefact of the store, whose files are then in the folder.

    Raises:
        UsageError: There is nothing at the URL, or it cannot be read.
        ArtefactError: Its bytes are not those that were stored.
    """
    if (name := stored_name(url)) is not None:
        Store().get(name, folder)
        return None
    source = FileSystem(url)
    with telling("read", url):
        size = source.size(source.path)
        if size is None:
            raise UsageError(f"{shown(url)} does not exist, or is a folder; an artefact at a URL is one file, a zip")
        copy_verified(source, source.path, folder / _FILE, size)
    return folder / _FILE


def upload(file: Path, url: str) -> None:
    """Write a file to a URL that is not of the store.

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
    if (name := stored_name(url)) is not None:
        check_name(name)
        place = Store().place
        probe = place.at(f"{secrets.token_hex(8)}.probe")
    else:
        place = FileSystem(url)
        probe = f"{place.path}.{secrets.token_hex(8)}.probe"
    with telling("write", url), scratch() as folder:
        empty = folder / "probe"
        empty.write_bytes(b"")
        place.write(empty, probe)
        place.remove(probe)
