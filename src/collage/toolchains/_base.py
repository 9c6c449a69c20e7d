"""Defaults that most toolchains share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collage._errors import Unsupported
from collage.graph import KERNEL_DOMAIN
from collage.toolchains._contract import Availability, OptionValues, PatternEntry, Support

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains._contract import Compiled, Toolchain

__all__ = [
    "ToolchainBase",
    "availability_for",
    "compile_for",
    "kernel_for",
    "loading_availability_for",
    "support_for",
    "written_out",
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


def compile_for(toolchain: Toolchain, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
    """Compile a kernel with a toolchain. It is written in ONNX's own operators first if the toolchain reads no others.

    Raises:
        Unsupported: The toolchain cannot take it.
        CompileError: It failed.
    """
    if not _reads_contributed(toolchain):
        return toolchain.compile(written_out(kernel), target, workspace)
    try:
        return toolchain.compile(kernel, target, workspace)
    except Unsupported:
        standard = written_out(kernel)
        if standard is kernel:
            raise
        return toolchain.compile(standard, target, workspace)


def kernel_for(toolchain: Toolchain, kernel: ir.Model) -> ir.Model:
    """A kernel as a toolchain reads it."""
    return kernel if _reads_contributed(toolchain) else written_out(kernel)


def support_for(toolchain: Toolchain, node: ir.Node, target: Target) -> Support:
    """Return if a toolchain takes an operator, as it stands or as several of ONNX's own. Never raises."""
    if node.domain == KERNEL_DOMAIN:
        return Support(False, "it is a kernel that was made earlier")
    support = toolchain.supports(node, target)
    if support.ok:
        return support
    from collage.transform import in_standard_operators

    inner = [toolchain.supports(each, target) for each in in_standard_operators(node)]
    return next((each for each in inner if not each.ok), Support(True)) if inner else support


def _reads_contributed(toolchain: Toolchain) -> bool:
    return bool(getattr(toolchain, "reads_contributed", False))


def written_out(kernel: ir.Model) -> ir.Model:
    """Return a kernel in ONNX's own operators, as far as they can express it; the kernel itself if it has no others."""
    from collage.frontend import has_contrib_ops

    if not has_contrib_ops(kernel):
        return kernel
    from collage.transform import ExpandContributed, InferType, PassContext, Sequential

    with PassContext(opt_level=0):
        return Sequential([ExpandContributed(), InferType()])(kernel)


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
    reads_contributed = False

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
