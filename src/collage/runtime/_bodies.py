"""Kernels of operators with bodies: compiling their parts, and loading the whole.

In such a kernel's model every body consists of calls of kernels, as a partitioned model does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage._errors import CompileError
from collage.runtime._control_flow import Body, Constant, ControlFlowKernel, Program
from collage.target import HOST_TARGET, Target
from collage.toolchains import Compiled, Kernel, LoadOptions, Registry, load_for

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["BODIES_TARGET", "compile_bodies", "has_bodies", "load_kernel"]

BODIES = "bodies"
BODIES_TARGET = HOST_TARGET.with_options(**{BODIES: "kernels"})
"""The target of operators whose bodies are kernels of their own: the host runs the operator, and toolchains run these."""

_PROGRAM = "program"
_PLAIN_KINDS = "biufc"
_MOST_CONSTANT_BYTES = 16 << 20
"""Constants that a body returns lie in the program itself."""


def has_bodies(target: Target) -> bool:
    """Return True if kernels for a target are operators whose bodies are kernels of their own."""
    return target == BODIES_TARGET


def load_kernel(
    compiled: Compiled, target: Target, workspace: Path, options: LoadOptions, toolchains: Registry
) -> Kernel:
    """Return a kernel that can be called, with the kernels inside it.

    Raises:
        ToolchainError: It cannot be loaded.
    """
    if not has_bodies(target):
        return load_for(toolchains.get(compiled.toolchain), compiled, target, workspace, options)
    file = str(compiled.metadata.get(_PROGRAM))
    if file not in compiled.files:
        raise CompileError(f"{file[:80]!r} is not a file of a kernel for {target}")

    def load(part: Compiled) -> Kernel:
        return load_kernel(part, Target.parse(part.target), workspace, options, toolchains)

    return ControlFlowKernel(Program.read(workspace / file), compiled, load)


def compile_bodies(
    kernel: ir.Model, target: Target, workspace: Path, build: Callable[[ir.Model, Target], Compiled]
) -> Compiled:
    """Return a kernel whose bodies' kernels are compiled.

    Args:
        kernel: One operator, whose bodies are calls of kernels.
        target: Its target.
        workspace: The folder for its files.
        build: Compiles one kernel of a body.

    Raises:
        CompileError: It is another operator, or a body returns a constant that is not numeric.
        ToolchainError: A kernel of a body cannot be built.
    """
    from collage.graph import bodies

    nodes = [node for node in kernel.graph if node.op_type != "Constant"]
    if len(nodes) != 1 or not any(True for _ in bodies(nodes[0])):
        raise CompileError(f"{kernel.graph.name}: a kernel for {target} is one operator with bodies")
    node, parts = nodes[0], list[Compiled]()
    constants = dict(_constants(node.inputs))
    told = []
    for graph in bodies(node):
        flow = []
        for model, owner in _kernels(kernel, graph):
            parts.append(build(model, owner))
            flow.append((_names(model.graph.inputs), _names(model.graph.outputs)))
        constants |= _constants(graph.outputs)
        told.append(_body(graph, flow, set(constants)))
    if sum(len(constant.data) for constant in constants.values()) > _MOST_CONSTANT_BYTES:
        raise CompileError(f"{kernel.graph.name}: the constants that bodies return are larger than 16 MiB")
    file = f"{kernel.graph.name}.{BODIES}.json"
    Program(node.op_type, _names(node.inputs), _names(node.outputs), tuple(told), constants, _scanned(node)).save(
        workspace / file
    )
    files = dict.fromkeys([file, *(name for part in parts for name in part.files)])
    return Compiled(
        target.toolchain,
        str(target),
        tuple(files),
        _names(kernel.graph.inputs),
        _names(kernel.graph.outputs),
        portable=all(part.portable for part in parts),
        metadata={_PROGRAM: file},
        parts=tuple(parts),
    )


def _kernels(kernel: ir.Model, graph: ir.Graph) -> list[tuple[ir.Model, Target]]:
    """Return the kernels that a body consists of, each as a model and with its target."""
    from collage.graph import constant_tensor, kernel_model, kernels_of

    calls = kernels_of(kernel, graph)
    others = [node for node in graph if node not in [call.node for call in calls]]
    if any(constant_tensor(node.outputs[0]) is None for node in others):
        raise CompileError(f"{kernel.graph.name}: a body has operators that are in no kernel")
    return [
        (kernel_model(kernel, call.node, str(call.node.name)), Target.parse(call.metadata["target"])) for call in calls
    ]


def _body(graph: ir.Graph, flow: Sequence[tuple[tuple[str, ...], tuple[str, ...]]], constants: set[str]) -> Body:
    inputs, outputs = _names(graph.inputs), _names(graph.outputs)
    inner = {*inputs, *constants, *(name for _, made in flow for name in made)}
    used = dict.fromkeys([*(name for reads, _ in flow for name in reads), *outputs])
    return Body(
        inputs,
        outputs,
        tuple(name for name in used if name not in inner),
        tuple(flow),
        tuple(map(_result, graph.outputs)),
        tuple(None if value.shape is None else len(value.shape) for value in graph.inputs),
    )


def _result(value: ir.Value) -> tuple[str, tuple[int | None, ...]] | None:
    """Return the element type of a body's output, and its lengths as far as known."""
    import onnx_ir as ir

    if not isinstance(value.type, ir.TensorType) or value.shape is None or value.dtype == ir.DataType.STRING:
        return None
    lengths = tuple(length if isinstance(length, int) else None for length in value.shape)
    return value.type.dtype.numpy().name, lengths


def _constants(values: Sequence[ir.Value | None]) -> dict[str, Constant]:
    from collage.graph import constant_tensor

    found = {}
    for value in values:
        tensor = None if value is None else constant_tensor(value)
        if value is not None and tensor is not None:
            array = tensor.numpy()
            if array.dtype.kind not in _PLAIN_KINDS:
                raise CompileError(
                    f"a body returns the constant {value.name!r} of type {array.dtype}, which is not numeric"
                )
            found[str(value.name)] = Constant.of(array)
    return found


def _scanned(node: ir.Node) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Return axis and direction of the split inputs and of the stacked outputs of a Scan; empty for other operators."""
    if node.op_type != "Scan":
        return (), ()
    count = node.attributes["num_scan_inputs"].as_int()
    stacked = len(node.outputs) - (len(node.inputs) - count)

    def ints(name: str, length: int) -> list[int]:
        attribute: Any = node.attributes.get(name)
        return [0] * length if attribute is None else list(attribute.as_ints())

    return (
        tuple(zip(ints("scan_input_axes", count), ints("scan_input_directions", count), strict=True)),
        tuple(zip(ints("scan_output_axes", stacked), ints("scan_output_directions", stacked), strict=True)),
    )


def _names(values: Sequence[ir.Value | None]) -> tuple[str, ...]:
    return tuple("" if value is None else str(value.name or "") for value in values)
