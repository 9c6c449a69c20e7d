"""Kernels through a toolchain: compiled, loaded and profiled, with indices checked for toolchains that do not check them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from collage._errors import Unsupported
from collage.system.codec import to_json
from collage.toolchains._checked_kernel import INDEX_CHECKS, checked_kernel, unchecked
from collage.toolchains._contract import IN_FLOATS, Compiled, Importer, Profiler, Support
from collage.toolchains.sdk.profiler_names import note_places

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains._contract import Kernel, LoadOptions, Tensor, Toolchain
    from collage.toolchains._index_checks import CheckedModel

__all__ = ["check_import_for", "compile_for", "kernel_for", "load_for", "profile_for", "support_for", "written_out"]


def compile_for(toolchain: Toolchain, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
    """Compile a kernel with a toolchain. It is written in ONNX's own operators first if the toolchain reads no others.

    The nodes of the kernel are given their places, by which a profiler knows them.

    Raises:
        Unsupported: The toolchain cannot take it.
        CompileError: It failed.
    """
    note_places(kernel)
    if not _reads_contributed(toolchain):
        return _compile(toolchain, _checked(toolchain, target, kernel, in_standard=True), target, workspace)
    try:
        return _compile(toolchain, _checked(toolchain, target, kernel, in_standard=False), target, workspace)
    except Unsupported:
        if not _has_contrib_ops(kernel):
            raise
        return _compile(toolchain, _checked(toolchain, target, kernel, in_standard=True), target, workspace)


def _checked(toolchain: Toolchain, target: Target, kernel: ir.Model, *, in_standard: bool) -> CheckedModel:
    """Return a kernel as a toolchain is given it: in ONNX's standard operators or as it stands, with what its checks read.

    Raises:
        Unsupported: It holds what cannot be checked.
    """
    # Late: it imports onnx_ir, which loading a kernel does not need.
    from collage.toolchains._index_checks import CheckedModel, with_index_checks
    from collage.toolchains._repeated_indices import with_indices_of_rows
    from collage.toolchains._sum_checks import with_sum_checks

    checked = CheckedModel(kernel)
    if in_standard and _has_contrib_ops(kernel):
        checked = with_sum_checks(kernel)
        checked = checked._replace(model=written_out(checked.model))
    if _checks_indices(toolchain, target):
        return checked
    rows = with_indices_of_rows(checked.model)
    return with_index_checks(checked._replace(model=rows), _checks_sizes_of(toolchain))


def _has_contrib_ops(kernel: ir.Model) -> bool:
    from collage.frontend import has_contrib_ops

    return has_contrib_ops(kernel)


def _compile(toolchain: Toolchain, checked: CheckedModel, target: Target, workspace: Path) -> Compiled:
    compiled = toolchain.compile(checked.model, target, workspace)
    if not checked.checks and not checked.sums:
        return compiled
    entry = {
        "checks": [to_json(check) for check in checked.checks],
        "sums": [to_json(check) for check in checked.sums],
        "outputs": list(checked.outputs),
    }
    metadata: dict[str, Any] = {**compiled.metadata, INDEX_CHECKS: entry}
    if IN_FLOATS in metadata:
        metadata[IN_FLOATS] = [i - bisect_left(checked.added, i) for i in metadata[IN_FLOATS]]
    outputs = compiled.outputs[: len(compiled.outputs) - len(checked.outputs)]
    return replace(compiled, outputs=outputs, metadata=metadata)


def check_import_for(toolchain: Toolchain, kernel: ir.Model, target: Target, workspace: Path) -> None:
    """Have a toolchain, an ``Importer``, read a kernel as ``compile_for`` does, without building it.

    Raises:
        Unsupported: The toolchain cannot take it.
        CompileError: It failed.
    """
    assert isinstance(toolchain, Importer)
    try:
        toolchain.check_import(kernel_for(toolchain, kernel, target), target, workspace)
    except Unsupported:
        if not _reads_contributed(toolchain) or not _has_contrib_ops(kernel):
            raise
        toolchain.check_import(_checked(toolchain, target, kernel, in_standard=True).model, target, workspace)


def load_for(toolchain: Toolchain, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
    """Load what ``compile_for`` made."""
    return checked_kernel(toolchain.load(unchecked(compiled), target, workspace, options), compiled)


def profile_for(
    toolchain: Profiler, compiled: Compiled, target: Target, workspace: Path, inputs: Sequence[Tensor], repeats: int
) -> Mapping[tuple[int, ...], float]:
    """Return the seconds of the steps of a kernel that ``compile_for`` made, by the places of nodes."""
    return toolchain.profile(unchecked(compiled), target, workspace, inputs, repeats)


def kernel_for(toolchain: Toolchain, kernel: ir.Model, target: Target) -> ir.Model:
    """Return a kernel as a toolchain reads it."""
    return _checked(toolchain, target, kernel, in_standard=not _reads_contributed(toolchain)).model


def support_for(toolchain: Toolchain, node: ir.Node, target: Target) -> Support:
    """Return if a toolchain takes an operator, as it stands or as several of ONNX's own. Never raises."""
    if (
        node.domain == "collage"
    ):  # The domain of kernels, see ``graph.KERNEL_DOMAIN``, which loading a kernel does not need.
        return Support(False, "it is a kernel that was made earlier")
    support = _support(toolchain, node, target)
    if support.ok:
        return support
    from collage.transform import in_standard_operators

    inner = [_support(toolchain, each, target) for each in in_standard_operators(node)]
    return next((each for each in inner if not each.ok), Support(True)) if inner else support


def _support(toolchain: Toolchain, node: ir.Node, target: Target) -> Support:
    """Return if a toolchain takes an operator as it stands."""
    if not _checks_indices(toolchain, target):
        from collage.toolchains._index_uses import refusal

        if (reason := refusal(node, _checks_sizes_of(toolchain))) is not None:
            return Support(False, reason)
    return toolchain.supports(node, target)


def _reads_contributed(toolchain: Toolchain) -> bool:
    return bool(getattr(toolchain, "reads_contributed", False))


def _checks_indices(toolchain: Toolchain, target: Target) -> bool:
    return target.kind in getattr(toolchain, "checks_indices_on", ())


def _checks_sizes_of(toolchain: Toolchain) -> Collection[str]:
    return tuple(getattr(toolchain, "checks_sizes_of", ()))


def written_out(kernel: ir.Model) -> ir.Model:
    """Return a kernel in ONNX's own operators, as far as they can express it; the kernel itself if it has no others.

    What they assume of values is for the caller to check, see ``with_sum_checks``.
    """
    if not _has_contrib_ops(kernel):
        return kernel
    from collage.transform import ExpandContributed, InferType, PassContext, Sequential

    with PassContext(opt_level=0):
        return Sequential([ExpandContributed(assuming=True), InferType()])(kernel)
