"""The four phases of a compilation: gather, collect, search, compare end to end.

``pipeline`` is the story, readable top to bottom. Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collage.compiler.fuse_ops_pass import CollageFuseOps
    from collage.compiler.pipeline import compile
    from collage.options import CompileOptions
    from collage.toolchains import choose_menu

_HOME = {
    "CollageFuseOps": "collage.compiler.fuse_ops_pass",
    "CompileOptions": "collage.options",
    "choose_menu": "collage.toolchains",
    "compile": "collage.compiler.pipeline",
}

__all__ = ["CollageFuseOps", "CompileOptions", "choose_menu", "compile"]

if not TYPE_CHECKING:  # As in `collage`: it would turn every misspelt name into Any.

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
