"""The installation: all that decides how this user's toolchains build kernels, apart from the machine."""

from __future__ import annotations

import functools
import hashlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

__all__ = ["installation_digest"]

_GROUPS = "collage."
_DISTRIBUTIONS = (".dist-info", ".egg-info", ".pth")
_COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "ld", "nvcc")
_DRIVERS = ("/sys/module/nvidia/version", "/sys/module/amdgpu/version")


@functools.cache
def installation_digest() -> str:
    """Return a digest that changes with each installation, and with each edit of a package that is installed in place.

    Distributions, compilers and drivers count, and all sources of packages with entry points of Collage, among them its own.
    Files are told apart by their sizes and times of change.
    """
    digest = hashlib.sha256(sys.version.encode())
    for file in sorted({*_distributions(), *_sources(), *_tools()}):
        try:
            facts = file.stat()
        except OSError:
            continue
        digest.update(f"{file}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _distributions() -> Iterator[Path]:
    for folder in {Path(entry) for entry in sys.path if entry}:
        with suppress(OSError):  # It is no folder, or may not be read.
            yield from (entry for entry in folder.iterdir() if entry.suffix in _DISTRIBUTIONS)


def _sources() -> Iterator[Path]:
    points = entry_points()
    modules = {p.module for group in points.groups if group.startswith(_GROUPS) for p in points.select(group=group)}
    for name in {module.partition(".")[0] for module in modules}:
        if (spec := find_spec(name)) is None:
            continue
        if spec.origin is not None:
            yield Path(spec.origin)
        for folder in spec.submodule_search_locations or []:
            yield from Path(folder).rglob("*.py")


def _tools() -> Iterator[Path]:
    found = (shutil.which(name) for name in _COMPILERS)
    yield from (Path(name).resolve() for name in found if name is not None)
    yield from map(Path, _DRIVERS)
