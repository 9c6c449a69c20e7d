"""The compiler that torch brings: where it may write, and how it is kept from writing to the terminal."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "caches_in",
    "hide_folders",
    "quiet_compiler",
]


@contextlib.contextmanager
def caches_in(folder: Path) -> Iterator[None]:
    """Inductor's caches and temporary files in ``folder`` for as long as the context lasts."""
    temporary = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        with folder_for("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR", folder=folder):
            yield
    finally:
        tempfile.tempdir = temporary


@contextlib.contextmanager
def folder_for(*names: str, folder: Path) -> Iterator[None]:
    """These environment variables name ``folder`` for as long as the context lasts."""
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(folder) for name in names})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def quiet_compiler() -> Iterator[None]:
    """No warnings and no log lines of torch's to the user."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(level)


def hide_folders(library: Path, *folders: Path) -> None:
    """Overwrite the names of folders in a library with dots. Messages of its assertions name the sources of this machine."""
    names = {os.fsencode(path) for folder in folders for path in (folder, folder.resolve())}
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for name in sorted(names, key=len, reverse=True):
            place = data.find(name)
            while place >= 0:
                data[place : place + len(name)] = b"." * len(name)
                place = data.find(name, place + len(name))
