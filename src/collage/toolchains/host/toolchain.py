"""The host, which runs the operators that no toolchain of the menu takes.

Views (Reshape and its like) run as NumPy and cost nothing; the rest falls back to ONNX Runtime, then to ONNX's
reference implementation, so that a model is refused only if nothing at all can run an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import ToolchainError, Unsupported
from collage.toolchains._base import ToolchainBase
from collage.toolchains._contract import Availability, Compiled, LoadOptions
from collage.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
from collage.toolchains.sdk.model_files import check_options, model_file, one_line, save_kernel

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains._contract import Kernel, Tensor
    from collage.toolchains._device import Device, DeviceKernel

__all__ = ["HostToolchain"]

View = Callable[["Tensor"], "Tensor"]


class HostToolchain(ToolchainBase):
    """Runs kernels that no toolchain of the menu takes."""

    name = "host"
    targets = ("llvm -compiler=host",)
    reads_contributed = True
    checks_indices_on = ("llvm",)
    options = {}
    optimises_whole_graphs = False

    def availability(self) -> Availability:
        """Always here."""
        # Needed to load kernels. Imported between the making of an ONNX Runtime session and its first run, it costs each run
        # up to 8 %, measured again and again on a super-resolution model. The reason is not known.
        import onnx_ir  # noqa: F401

        fallback = OnnxRuntimeToolchain().availability()
        build = f"numpy {np.__version__}, {fallback.build or 'no fallback'}"
        return Availability(True, np.__version__, build, ("CPU",))

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Choose the runtime of the kernel, and write the kernel."""
        check_options(target, {})
        files = save_kernel(kernel, workspace)
        metadata = {"runner": "numpy"} if _views(kernel.graph) is not None else _fallback(kernel, target, workspace)
        metadata["model"] = files[0]
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        return Compiled(self.name, str(target), files, inputs, outputs, portable=True, metadata=metadata)

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Make the kernel callable on the runtime that was chosen."""
        check_options(target, {})
        path = workspace / compiled.metadata["model"]
        runner = compiled.metadata["runner"]
        if runner == "numpy":
            return _ViewKernel(path)
        if runner == "reference":
            return _ReferenceKernel(path, compiled)
        # As written: what is to be trusted most, the reference among it, is not a part of ONNX Runtime's rewriting.
        return OnnxRuntimeToolchain().load(compiled, target.with_options(**{"opt-level": "0"}), workspace, options)


def _fallback(kernel: ir.Model, target: Target, workspace: Path) -> dict[str, Any]:
    """Return the metadata of a kernel that is more than views: its runtime, and the number of threads that is right."""
    try:
        compiled = _compile_with_onnxruntime(kernel, target, workspace)
    except ToolchainError as refusal:
        try:
            _reference(workspace / model_file(str(kernel.graph.name)))
        except Exception as error:
            raise Unsupported(f"{refusal}; ONNX's reference implementation: {one_line(error)}") from error
        return {"runner": "reference"}
    return {"runner": "onnxruntime", "one_thread": compiled.metadata["one_thread"]}


def _compile_with_onnxruntime(kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
    toolchain = OnnxRuntimeToolchain()
    found = toolchain.availability()
    if not found.available:
        raise Unsupported(f"onnxruntime: {found.reason}")
    return toolchain.compile(kernel, target, workspace)


def _reference(path: Path) -> Any:
    import onnx
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(onnx.load(path))


class _ReferenceKernel:
    """ONNX's own implementation: slow, and defined for every standard operator."""

    reuses_outputs = False

    def __init__(self, path: Path, compiled: Compiled) -> None:
        self._evaluator = _reference(path)
        self._inputs = compiled.inputs

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        outputs = self._evaluator.run(None, dict(zip(self._inputs, inputs, strict=True)))
        return [np.array(y, order="C") if isinstance(y, np.ndarray | np.generic) else y for y in outputs]


class _ViewKernel:
    """A chain of views: NumPy arrays over the memory of the inputs.

    An output shares memory with an input, so it changes when the input does. It therefore counts as reused.
    """

    reuses_outputs = True

    def __init__(self, path: Path) -> None:
        import onnx_ir as ir

        self._path = path
        graph = ir.load(path).graph
        slots: dict[ir.Value | None, int] = {value: slot for slot, value in enumerate(graph.inputs)}
        self._steps: list[tuple[View, int]] = []
        for node, view in _views(graph) or ():
            self._steps.append((view, slots[node.inputs[0]]))
            slots[node.outputs[0]] = len(slots)
        self._outputs = [slots[value] for value in graph.outputs]

    def moved_to(self, device: Device) -> DeviceKernel | None:
        """The same on a device between whose kernels it stands; None if it cannot be there."""
        import onnx_ir as ir

        try:
            return device.views(ir.load(self._path))
        except Unsupported:
            return None

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        values = list(inputs)
        for view, source in self._steps:
            values.append(view(values[source]))
        return [values[slot] for slot in self._outputs]


def _views(graph: ir.Graph) -> Sequence[tuple[ir.Node, View]] | None:
    """A view for each node of the graph, or None if it holds anything else."""
    steps: list[tuple[ir.Node, View]] = []
    made = set(graph.inputs)
    for node in graph:
        make = _VIEWS.get(node.op_type) if node.domain == "" else None
        parameters = [_constant(value) for value in node.inputs[1:] if value is not None]
        if make is None or node.inputs[0] not in made or any(p is None for p in parameters):
            return None
        steps.append((node, make(node, [p for p in parameters if p is not None])))
        made.add(node.outputs[0])
    return steps if steps and all(value in made for value in graph.outputs) else None


def _constant(value: ir.Value) -> Tensor | None:
    return value.const_value.numpy() if value.const_value is not None else None


def _axes(node: ir.Node, parameters: Sequence[Tensor]) -> tuple[int, ...] | None:
    """Axes of Squeeze and Unsqueeze: an input since opset 13, an attribute before."""
    if parameters:
        return tuple(int(axis) for axis in parameters[0].ravel())
    attribute = node.attributes.get("axes")
    return tuple(attribute.as_ints()) if attribute is not None else None


def _identity(node: ir.Node, parameters: Sequence[Tensor]) -> View:
    return lambda x: x


def _reshape(node: ir.Node, parameters: Sequence[Tensor]) -> View:
    shape = tuple(int(size) for size in parameters[0])
    attribute = node.attributes.get("allowzero")
    if 0 not in shape or (attribute is not None and attribute.as_int()):
        return lambda x: x.reshape(shape)
    return lambda x: x.reshape(tuple(size or x.shape[axis] for axis, size in enumerate(shape)))


def _flatten(node: ir.Node, parameters: Sequence[Tensor]) -> View:
    attribute = node.attributes.get("axis")
    axis = attribute.as_int() if attribute is not None else 1

    def view(x: Tensor) -> Tensor:
        rows = int(np.prod(x.shape[: axis if axis >= 0 else x.ndim + axis], dtype=np.int64))
        columns = int(np.prod(x.shape[axis if axis >= 0 else x.ndim + axis :], dtype=np.int64))
        return x.reshape(rows, columns)

    return view


def _squeeze(node: ir.Node, parameters: Sequence[Tensor]) -> View:
    axes = _axes(node, parameters)
    return lambda x: x.squeeze(axes)


def _unsqueeze(node: ir.Node, parameters: Sequence[Tensor]) -> View:
    axes = _axes(node, parameters) or ()
    return lambda x: np.expand_dims(x, axes)


def _transpose(node: ir.Node, parameters: Sequence[Tensor]) -> View:
    attribute = node.attributes.get("perm")
    order = tuple(attribute.as_ints()) if attribute is not None else None
    return lambda x: np.array(x.transpose(order), order="C", copy=None)


_VIEWS: Mapping[str, Callable[[ir.Node, Sequence[Tensor]], View]] = {
    "Flatten": _flatten,
    "Identity": _identity,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
