"""Defaults that most toolchains share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from collage.toolchains._contract import PatternEntry, Support

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target

__all__ = ["ToolchainBase"]


class ToolchainBase:
    """A toolchain that decides by trying: no patterns, and no operator refused in advance.

    What it really takes is found by compiling each distinct operator once, in a worker process.
    """

    name: str
    targets: tuple[str, ...]
    options: Mapping[str, str] = {}
    optimises_whole_graphs = True
    on_default_menu = True

    def pattern_table(self) -> Sequence[PatternEntry]:
        """No patterns: decided by operator."""
        return ()

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Worth trying."""
        return Support(True)
