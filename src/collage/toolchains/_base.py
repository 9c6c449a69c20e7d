"""Defaults that most toolchains share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collage.toolchains._contract import Availability, OptionValues, PatternEntry, Support

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains._contract import Toolchain

__all__ = [
    "ToolchainBase",
    "availability_for",
    "loading_availability_for",
]


def availability_for(toolchain: Toolchain, target: Target) -> Availability:
    """Return whether a toolchain can be used for a target of it; without ``availability_of`` it is the same for all.

    One that breaks its word, and raises, is not available.
    """
    return _answer(toolchain, target, ("availability_of",))


def loading_availability_for(toolchain: Toolchain, target: Target) -> Availability:
    """Return the availability of a toolchain for loading compiled kernels, which may need less than compiling.

    Without ``loading_availability_of`` it takes as much.
    """
    return _answer(toolchain, target, ("loading_availability_of", "availability_of"))


def _answer(toolchain: Toolchain, target: Target, methods: Sequence[str]) -> Availability:
    asks: list[Callable[[Target], Any]] = [getattr(toolchain, name) for name in methods if hasattr(toolchain, name)]
    try:
        found = asks[0](target) if asks else toolchain.availability()
    except Exception as error:
        return Availability(False, reason=f"broken: availability() raises {type(error).__name__}: {error}")
    if isinstance(found, Availability):
        return found
    return Availability(False, reason=f"broken: availability() returns {found!r:.60}")


class ToolchainBase:
    """A toolchain that decides by trying: no patterns, and no operator refused in advance.

    The operators that it takes are found by compiling each distinct operator once, in a worker process.
    """

    name: str
    targets: tuple[str, ...]
    availability: Callable[[], Availability]
    options: Mapping[str, str] = {}
    optimises_whole_graphs = True
    on_default_menu = True
    checks_indices_on: tuple[str, ...] = ()
    checks_sizes_of: tuple[str, ...] = ()
    reads_contributed = False

    @property
    def reserves_address_space(self) -> bool:
        """True if a process for it may reserve far more addresses than it uses, as drivers of devices do."""
        return False

    def availability_of(self, target: Target) -> Availability:
        """Return the availability for one target. It is the same for all, unless the toolchain serves several kinds of device."""
        return self.availability()

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes. Here any text is accepted; ``compile`` refuses unknown values."""
        return dict.fromkeys(self.options, ())

    def ran_on(self, target: Target) -> str | None:
        """Return the hardware on which the toolchain's tests have passed; None if there is none. The processor counts."""
        return "CPU"

    def pattern_table(self) -> Sequence[PatternEntry]:
        """No patterns: decided by operator."""
        return ()

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Worth trying."""
        return Support(True)
