"""Which code drives a toolchain: what was measured with other code tells nothing of this one."""

from __future__ import annotations

import functools
import hashlib
import sys
from pathlib import Path

from collage.toolchains._contract import Toolchain

__all__ = ["revision_of"]

_DIGITS = 8


def revision_of(toolchain: Toolchain) -> str:
    """A digest of the source of a toolchain's integration: of the package that its class is in, or of the module if in none.

    A toolchain's build says which library it is; how it is called, with which schedules and settings, the integration says,
    and a timing depends on both. Empty where there is no source to be read.
    """
    module = sys.modules.get(type(toolchain).__module__)
    file = getattr(module, "__file__", None)
    return _digest(Path(file), bool(getattr(module, "__package__", None))) if file else ""


@functools.cache
def _digest(file: Path, in_package: bool) -> str:
    digest = hashlib.sha256()
    try:
        sources = sorted(file.parent.rglob("*.py")) if in_package else [file]
        for source in sources:
            digest.update(f"{source.relative_to(file.parent)}\0".encode())
            digest.update(hashlib.sha256(source.read_bytes()).digest())
    except OSError:
        return ""
    return digest.hexdigest()[:_DIGITS] if sources else ""
