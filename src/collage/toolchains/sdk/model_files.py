"""Kernels as ONNX files in a workspace, and the few decisions about them that toolchains share."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from collage._errors import CompileError, TargetError, Unsupported
from collage.system.machine import thread_count
from collage.system.machine import usable_cores as usable_processors
from collage.toolchains._contract import Support

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains._contract import LoadOptions, OptionValues

__all__ = [
    "MAPPED_WEIGHTS",
    "check_options",
    "elem_type",
    "kernel_name",
    "load_threads",
    "model_file",
    "one_line",
    "refuse_operators",
    "save_kernel",
    "support_of",
    "usable_cores",
    "values_of",
]

MAPPED_WEIGHTS = ".weights"
"""The end of the names of files of weights that a kernel maps and reads in place. Plans share equal ones."""

SPILL_BYTES = 1_500_000_000
"""Weights beyond this go into a file of their own: a protobuf message ends at 2 GiB."""


def kernel_name(kernel: ir.Model) -> str:
    """The kernel's graph name, with which every file that belongs to it begins.

    Raises:
        CompileError: The name is empty, or would lead out of the workspace.
    """
    name = kernel.graph.name
    if not name or name != Path(name).name or name in (".", "..") or "\0" in name:
        raise CompileError(f"a kernel's graph needs a name that can begin a file name, not {name!r}")
    return name


def model_file(name: str) -> str:
    """Name of the file in which the kernel called ``name`` is kept."""
    return f"{name}.onnx"


def save_kernel(kernel: ir.Model, workspace: Path, form: str = "") -> tuple[str, ...]:
    """Write a kernel as ``<name>.onnx``; weights that lie in files of the workspace stay there.

    The file appears at once and complete, since several toolchains may write the same kernel at the same time.

    Args:
        kernel: The kernel.
        workspace: The folder.
        form: Suffix that tells this file from that of the kernel as it was, such as ``.int8``.

    Returns:
        Names of all files that belong to the kernel, those of its weights included.

    Raises:
        CompileError: Its name or its weights lead out of the workspace.
    """
    import onnx_ir as ir

    from collage.graph import copy_model

    name = f"{kernel_name(kernel)}{form}"
    weights = _weight_files(kernel, workspace)
    spilled = f"{name}.data" if _embedded_bytes(kernel) > SPILL_BYTES else None
    final = workspace / model_file(name)
    draft = workspace / f"{name}.{os.getpid()}.draft.onnx"
    try:
        ir.save(copy_model(kernel), draft, external_data=spilled)
        draft.replace(final)
    finally:
        draft.unlink(missing_ok=True)
    return (final.name, spilled) if spilled else (final.name, *weights)


def values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    """Every value of a graph and of the bodies inside it: inputs, initializers, results of nodes."""
    for inner in (graph, *graph.subgraphs()):
        yield from inner.inputs
        yield from inner.initializers.values()
        for node in inner:
            yield from node.outputs


def elem_type(value: ir.Value) -> ir.DataType | None:
    """Return the element type of a tensor, None if it is unknown or the value is not a tensor."""
    import onnx_ir as ir

    if isinstance(value.type, ir.TensorType):
        return value.type.dtype
    return value.const_value.dtype if value.const_value is not None else None


def check_options(target: Target, options: OptionValues) -> None:
    """Refuse options that a toolchain does not know, and values that they do not take.

    Args:
        target: The target.
        options: See ``OptionValues``.

    Raises:
        TargetError: The target has another option, or another value.
    """
    for name, value in target.options:
        if name not in options:
            has = ", ".join(f"-{option}" for option in sorted(options)) or "none"
            near = _nearest(name, options, "-")
            raise TargetError(f"target {str(target)!r}: {target.toolchain} has no option -{name}; {near}it has {has}")
        choices = options[name]
        if choices is None and not (value.isascii() and value.isdigit() and int(value) > 0):
            raise TargetError(f"target {str(target)!r}: -{name} takes a whole number of at least 1, not {value!r}")
        if choices and value not in choices:
            takes = f"-{name} takes {', '.join(choices)}, not {value!r}"
            raise TargetError(
                f"target {str(target)!r}: {' '.join([takes + ';', _nearest(value, choices)]).strip(' ;')}"
            )


def _nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {prefix}{near[0]}? " if near else ""


def refuse_operators(refusal: Callable[[ir.Node], str | None], graph: ir.Graph) -> None:
    """Raise ``Unsupported`` with the reason that ``refusal`` returns for the first operator that it refuses."""
    for node in graph.all_nodes():
        if (reason := refusal(node)) is not None:
            raise Unsupported(reason)


def support_of(
    refuse_values: Callable[[Iterable[ir.Value]], None],
    node: ir.Node,
    refusal: Callable[[ir.Node], str | None] = lambda node: None,
) -> Support:
    """Return the reason against an operator from two checks: one returns a reason, and one of its values raises."""
    try:
        reason = refusal(node)
        if reason is None:
            refuse_values(value for value in (*node.inputs, *node.outputs) if value is not None)
    except Unsupported as unsupported:
        reason = str(unsupported)
    except TypeError as error:
        reason = f"{node.op_type} is not as ONNX defines it: {one_line(error)}"
    return Support(reason is None, reason)


def load_threads(target: Target, options: LoadOptions) -> int:
    """Return the threads that a kernel is to use.

    It is the target's own number, or else the loader's, or else the number that the container's quota permits. 0 is the
    toolchain's default for the whole machine.
    """
    return int(target.option("threads") or options.threads) or thread_count()


def usable_cores() -> int:
    """Physical cores that this process may use: the default of toolchains."""
    return min(psutil.cpu_count(logical=False) or 1, usable_processors())


def one_line(error: BaseException, limit: int = 300) -> str:
    """The last telling line of a toolchain's error message.

    Toolchains put the place in their source first and the reason last.
    """
    lines = [line.strip() for line in str(error).replace("\0", "").splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:limit]


def _weight_files(kernel: ir.Model, workspace: Path) -> tuple[str, ...]:
    import onnx_ir as ir

    files: dict[str, None] = {}
    for graph in (kernel.graph, *kernel.graph.subgraphs()):
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                location = os.fspath(tensor.location)
                inside = Path(tensor.base_dir).resolve() == workspace.resolve() and location == Path(location).name
                if not inside:
                    raise CompileError(
                        f"weight {value.name!r} lies in {tensor.path}, outside the workspace {workspace}"
                    )
                files[location] = None
    return tuple(files)


def _embedded_bytes(kernel: ir.Model) -> int:
    import onnx_ir as ir

    tensors = (
        value.const_value
        for graph in (kernel.graph, *kernel.graph.subgraphs())
        for value in graph.initializers.values()
    )
    return sum(t.nbytes for t in tensors if t is not None and not isinstance(t, ir.ExternalTensor))
