"""The four phases of a compilation: gather, collect, search, compare end to end.

``pipeline`` is the story, readable top to bottom. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage._lazy import ImportedOnUse

if TYPE_CHECKING:
    from collage.compiler.fuse_ops_pass import CollageFuseOps
    from collage.compiler.pipeline import compile
    from collage.options import CompileOptions
    from collage.toolchains import choose_menu
else:
    __getattr__ = ImportedOnUse(
        __name__,
        {
            "collage.compiler.fuse_ops_pass": "CollageFuseOps",
            "collage.options": "CompileOptions",
            "collage.toolchains": "choose_menu",
            "collage.compiler.pipeline": "compile",
        },
    )


__all__ = ["CollageFuseOps", "CompileOptions", "choose_menu", "compile"]
