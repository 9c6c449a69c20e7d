"""Defaults that most toolchains share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from collage.toolchains._contract import Availability, PatternEntry, Support

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains._contract import Toolchain

__all__ = ["ToolchainBase", "availability_for"]


def availability_for(toolchain: Toolchain, target: Target) -> Availability:
    """Whether a toolchain can be used for one of its targets; without ``availability_of`` it is the same for all."""
    ask: Callable[[Target], Availability] | None = getattr(toolchain, "availability_of", None)
    return toolchain.availability() if ask is None else ask(target)


class ToolchainBase:
    """A toolchain that decides by trying: no patterns, and no operator refused in advance.

    What it really takes is found by compiling each distinct operator once, in a worker process.
    """

    name: str
    targets: tuple[str, ...]
    availability: Callable[[], Availability]
    options: Mapping[str, str] = {}
    optimises_whole_graphs = True
    on_default_menu = True

    def availability_of(self, target: Target) -> Availability:
        """Whether it can be used for one of its targets: the same for all, unless it serves several kinds of device."""
        return self.availability()

    def ran_on(self, target: Target) -> str | None:
        """Where its tests have passed: hardware that the author had, None if none. The processor counts as one."""
        return "CPU"

    def pattern_table(self) -> Sequence[PatternEntry]:
        """No patterns: decided by operator."""
        return ()

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Worth trying."""
        return Support(True)
