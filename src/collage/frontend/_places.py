"""Files beside a model, opened so that the checked file is the one that is read.

A location is a plain relative path. It may lead through links, as in the cache of a hub, whose snapshots are links into
a folder of blobs. It has to end in the model's folder or beside the file that the model's own path leads to. The path
without links is then opened one component at a time, each relative to the folder opened before and never through a
link. Later openings must find the same file.

A hard link has no other end that could be checked. It is accepted if its file belongs to the owner of the model's file.
Otherwise a model could make its reader show files of other users. A file of gigabytes that were never written is refused:
it costs its author nothing, and its readers minutes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from collage._errors import ModelError
from collage.system.sparse_files import has_large_holes

__all__ = ["CheckedFile", "Place", "find_file"]

_PLAIN = re.compile(r"[^\x00-\x1f*?\"<>|:\\/]+(/[^\x00-\x1f*?\"<>|:\\/]+)*")
"""Relative, without drive letters, wild cards or control characters: runtimes keep private markers in such strings."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a model among files.

    Attributes:
        folder: The folder that locations are relative to.
        target: The folder of the file that the model's path leads to, if links are followed; None if there is no file.
        owner: Number of the user that the model's file belongs to; None if there is no file.
    """

    folder: Path
    target: Path | None = None
    owner: int | None = None

    @staticmethod
    def of(path: Path, status: os.stat_result) -> Place:
        """The place of a model that was read from ``path``, whose open file had this status."""
        try:
            real = Path(os.path.realpath(path, strict=True))
            same = os.path.samestat(real.stat(), status)
        except OSError:
            same = False
        return Place(path.parent, real.parent if same else None, status.st_uid)

    def roots(self) -> list[Path]:
        """The folders in which files of the model may lie, without links."""
        return [Path(os.path.realpath(root)) for root in (self.folder, self.target) if root is not None]


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A regular file that passed all checks.

    Attributes:
        root: A folder.
        parts: The components of the file's path below it, none of them a link.
        identity: Device and number of the file.
        size: Its size in bytes.
    """

    root: Path
    parts: tuple[str, ...]
    identity: tuple[int, int]
    size: int

    @contextmanager
    def opened(self) -> Iterator[int]:
        """The file, open for reading until the block is left.

        Raises:
            ModelError: It is gone, or another one has taken its place.
        """
        try:
            descriptor = _open(self.root, self.parts)
        except OSError as error:
            raise ModelError(f"weights in {self._shown()} cannot be read any more: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != self.identity:
                raise ModelError(f"weights in {self._shown()} were replaced since the model was read; read it again")
            yield descriptor
        finally:
            os.close(descriptor)

    def _shown(self) -> str:
        return repr(os.fspath(self.root.joinpath(*self.parts))[-200:])


def find_file(place: Place, location: str, shown: str) -> CheckedFile:
    """Find and check the file at a location.

    Args:
        place: The place of the model.
        location: A path relative to its folder.
        shown: The beginning of messages: the part of the model that refers to the location.

    Raises:
        ModelError: The location is not a plain relative path, or leads out of the model's folders, or to nothing, or to
            anything but a regular file with contents.
    """
    parts = location.removeprefix("./").split("/")
    if not _PLAIN.fullmatch("/".join(parts)) or any(part in (".", "..") for part in parts):
        raise ModelError(f"{shown}, which is not a plain relative path")
    try:
        real = Path(os.path.realpath(place.folder.joinpath(*parts), strict=True))
        root = next((root for root in place.roots() if real.is_relative_to(root)), None)
        if root is None:
            raise ModelError(
                f"{shown}, which leads through a link to {os.fspath(real)[-200:]!r}, outside the folder of the model and "
                f"of the file that its path leads to; put the file, or a copy of it, into one of them"
            )
        inner = real.relative_to(root).parts
        if not inner:
            raise ModelError(f"{shown}, which is not a regular file")
        descriptor = _open(root, inner)
    except OSError as error:
        raise ModelError(f"{shown}, which cannot be opened: {error.strerror or 'no reason is given'}") from None
    try:
        status = os.fstat(descriptor)
        _refuse_unusual(status, descriptor, place, shown)
    finally:
        os.close(descriptor)
    return CheckedFile(root, inner, (status.st_dev, status.st_ino), status.st_size)


def _open(root: Path, parts: tuple[str, ...]) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, flags | os.O_DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], flags, dir_fd=folder)
    finally:
        os.close(folder)


def _refuse_unusual(status: os.stat_result, descriptor: int, place: Place, shown: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{shown}, which is not a regular file")
    if status.st_nlink != 1 and status.st_uid != place.owner:
        owners = "of a model in memory" if place.owner is None else "and belongs to another user than the model"
        raise ModelError(f"{shown}, which has a second hard link {owners}; copy the file")
    if has_large_holes(descriptor):
        raise ModelError(f"{shown}, which has large holes: most of it was never written")
