"""Artefacts as one file: a zip that is stored, not compressed.

Weights hardly compress, and a zip without compression can be checked before anything of it is unpacked: nothing in it is
larger than the file itself. Everything that zip allows beyond flat plain files is refused.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
import zipfile
from collections.abc import Container, Iterable
from pathlib import Path
from typing import BinaryIO

from collage._errors import ArtefactError
from collage.system.plain_names import is_plain_name

__all__ = ["unpack", "write_zip"]

_MAX_DIRECTORY_BYTES = 16 << 20
"""Largest size of the zip's directory, which is read into memory: a hundred thousand entries."""

_ENCRYPTED = 0x1 | 0x40 | 0x2000
_EPOCH = (1980, 1, 1, 0, 0, 0)

_END = struct.Struct("<4s4H2LH")
_END_64_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")


def write_zip(files: Iterable[Path], archive: BinaryIO) -> None:
    """Write files, by their names; the same files give the same bytes."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as writer:
        for file in files:
            info = zipfile.ZipInfo(file.name, _EPOCH)
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            info.file_size = file.stat().st_size
            with file.open("rb") as source, writer.open(info, "w") as target:
                shutil.copyfileobj(source, target, 1 << 22)


def unpack(archive: Path, folder: Path, only: Container[str] | None = None) -> None:
    """Unpack a zipped artefact into an empty folder.

    Args:
        archive: The zip.
        folder: The folder.
        only: Names of the files to unpack; None unpacks all. Every entry is checked in any case.

    Raises:
        ArtefactError: It is not a zip, or an entry is compressed, not a plain file, or there twice. Nothing is unpacked
            then. Also if bytes are damaged.
    """
    try:
        with archive.open("rb") as file:
            _check_directory_size(file, archive)
            with zipfile.ZipFile(file) as reader:
                _check_entries(reader, archive, file.seek(0, os.SEEK_END))
                for info in reader.infolist():
                    if only is not None and info.filename not in only:
                        continue
                    with reader.open(info) as source, (folder / info.filename).open("xb") as target:
                        shutil.copyfileobj(source, target, 1 << 22)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, struct.error) as error:
        raise ArtefactError(f"{archive} is not an artefact, or is damaged: {error}") from error
    except OSError as error:
        raise ArtefactError(f"cannot unpack {archive}: {error.strerror or error}") from error


def _check_entries(reader: zipfile.ZipFile, archive: Path, archive_bytes: int) -> None:
    seen: set[str] = set()
    for info in reader.infolist():
        name = info.filename
        if name != info.orig_filename or not is_plain_name(name):
            raise ArtefactError(f"{archive} holds {info.orig_filename[:80]!r}; only plain file names are allowed")
        if name in seen:
            raise ArtefactError(f"{archive} holds {name!r} twice")
        seen.add(name)
        if info.flag_bits & _ENCRYPTED:
            raise ArtefactError(f"{archive} holds {name!r} encrypted")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise ArtefactError(f"{archive} holds {name!r} compressed; an artefact is stored as it is (zip -0)")
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
            raise ArtefactError(f"{archive} holds {name!r}, which is not a plain file")
    total = sum(info.file_size for info in reader.infolist())
    if total > archive_bytes:
        raise ArtefactError(f"{archive} claims to hold {total:,} bytes and has {archive_bytes:,}: its entries overlap")


def _check_directory_size(file: BinaryIO, archive: Path) -> None:
    """Read the size of the directory from the end of the zip, before ``zipfile`` reads the directory into memory."""
    tail = _tail(file, _END.size + _END_64_LOCATOR.size + _END_64.size)
    end = tail[-_END.size :]
    if len(end) < _END.size or not end.startswith(b"PK\5\6"):
        kind = "an ONNX model" if archive.suffix == ".onnx" else "not a zip, or has data after its end"
        raise ArtefactError(f"{archive} is not an artefact: it is {kind}; `collage compile` writes artefacts")
    size = _END.unpack(end)[5]
    locator = tail[-_END.size - _END_64_LOCATOR.size : -_END.size]
    if locator.startswith(b"PK\6\7"):
        end_64 = tail[: _END_64.size]
        if len(end_64) < _END_64.size or not end_64.startswith(b"PK\6\6"):
            raise ArtefactError(f"{archive} is not an artefact, or is damaged: its directory cannot be found")
        size = _END_64.unpack(end_64)[8]
    if size > _MAX_DIRECTORY_BYTES:
        raise ArtefactError(f"{archive} has a directory of {size:,} bytes; no artefact needs that")


def _tail(file: BinaryIO, size: int) -> bytes:
    length = file.seek(0, os.SEEK_END)
    file.seek(max(0, length - size))
    return file.read(size)
