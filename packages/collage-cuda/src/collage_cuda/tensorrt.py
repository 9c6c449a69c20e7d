"""TensorRT: whole sub-graphs, built into an engine for the device of this machine.

Its compiled form is the serialised engine, which fits this version of TensorRT and this kind of device only. Networks
are strongly typed: f32 in the model is computed in f32. The builder sets the TF32 flag by default, so it is cleared. For f16
the model is written in f16. The builder times its own implementations of each layer. It keeps the timings until the
process ends, so equal layers are not timed again.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.toolchains import Availability, CollageError, Compiled, CompileError, LoadOptions, Support, Unsupported
from collage.toolchains.sdk.model_files import (
    check_options,
    elem_type,
    kernel_name,
    model_file,
    one_line,
    support_of,
    values_of,
)
from collage_cuda import cuda_support

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains import Kernel, OptionValues

__all__ = ["TensorRtToolchain"]

_PACKAGES = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")
_OPTIONS = {"precision": ("f32", "tf32", "f16"), "opt-level": ("0", "1", "2", "3", "4", "5")}
_TYPES = frozenset(("FLOAT", "FLOAT16", "INT8", "INT32", "INT64", "BOOL", "UINT8"))
_DATA_DEPENDENT = frozenset(("NonZero", "Compress", "Unique", "NonMaxSuppression"))

_measured = b""
"""Timing cache of this process, serialised."""


class TensorRtToolchain(cuda_support.CudaToolchain):
    """Builds and runs engines of TensorRT."""

    name = "tensorrt"
    targets = ("cuda -compiler=tensorrt",)
    on_default_menu = False
    options = {
        "precision": "f32; tf32: products of 10-bit mantissas, added up in f32; f16: in half precision (default f32)",
        "opt-level": "0 to 5: number of kernels that the builder tries (default 3, the vendor's)",
    }

    def availability(self) -> Availability:
        """Version of the package, and the missing parts."""
        version = next(filter(None, map(cuda_support.package_version, _PACKAGES)), None)
        missing = None
        if version is None or importlib.util.find_spec("tensorrt") is None:
            missing = cuda_support.Absence(
                "tensorrt is not installed", "pip install tensorrt-cu13, or -cu12 as torch's CUDA is"
            )
        return cuda_support.cuda_availability(
            version, f"tensorrt {version}", missing, reduced=_OPTIONS["precision"][1:]
        )

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes."""
        return _OPTIONS

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Worth trying, unless a type, or a shape that depends on data, speaks against it."""
        if node.op_type in _DATA_DEPENDENT:
            return Support(False, f"tensorrt is used for shapes that do not depend on data ({node.op_type})")
        return support_of(_refuse_types, node)

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Parse the kernel and build an engine."""
        check_options(target, _OPTIONS)
        name = kernel_name(kernel)
        _refuse_types(values_of(kernel.graph))
        _refuse_shapes(kernel.graph)
        found = self.availability()
        if not found.available:
            raise Unsupported(f"tensorrt: {found.reason}; {found.remedy}")
        options = "".join(f".{option}={value}" for option, value in target.options)
        engine = workspace / f"{name}.tensorrt{options}.engine"
        _write_atomically(engine, _build(kernel, workspace, target))
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        return Compiled(self.name, str(target), (engine.name,), inputs, outputs, metadata={"engine": engine.name})

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Make an execution context of the engine."""
        check_options(target, _OPTIONS)
        device = cuda_support.cuda_device()
        engine = _Engine((workspace / compiled.metadata["engine"]).read_bytes(), compiled, device)
        return cuda_support.CudaKernel(engine, device)


class _Engine:
    """An engine, called with tensors; its work is the same launches on every call."""

    def __init__(self, plan: bytes, compiled: Compiled, device: cuda_support.TorchDevice) -> None:
        import tensorrt as trt
        import torch

        self._torch = torch
        self._device = device
        self._runtime = trt.Runtime(_logger())
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise CompileError(f"tensorrt cannot read its engine: {_said()}")
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise CompileError(f"tensorrt has no memory for an execution context: {_said()}")
        known = {self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)}
        # An input that nothing reads is none of the engine's.
        self._inputs = [name if name in known else None for name in compiled.inputs]
        self._outputs = [
            (name, tuple(self._engine.get_tensor_shape(name)), self._torch_type(name)) for name in compiled.outputs
        ]

    def _torch_type(self, name: str) -> Any:
        import tensorrt as trt

        types = {
            trt.DataType.FLOAT: "float32",
            trt.DataType.HALF: "float16",
            trt.DataType.INT8: "int8",
            trt.DataType.INT32: "int32",
            trt.DataType.INT64: "int64",
            trt.DataType.BOOL: "bool",
            trt.DataType.UINT8: "uint8",
        }
        return getattr(self._torch, types[self._engine.get_tensor_dtype(name)])

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        context = self._context
        for name, x in zip(self._inputs, inputs, strict=True):
            if name is not None:
                context.set_tensor_address(name, x.data_ptr())
        made = [self._torch.empty(shape, dtype=dtype, device=self._device.name) for _, shape, dtype in self._outputs]
        for (name, _, _), y in zip(self._outputs, made, strict=True):
            context.set_tensor_address(name, y.data_ptr())
        with cuda_support.queue_of(self._device) as queue:
            if not context.execute_async_v3(queue):
                raise RuntimeError(f"tensorrt: {_said()}")
        return made


def _build(kernel: ir.Model, workspace: Path, target: Target) -> bytes:
    """The serialised engine of a kernel."""
    global _measured
    import onnx_ir as ir
    import tensorrt as trt

    from collage.graph import copy_model

    try:
        builder = trt.Builder(_logger())
        # From TensorRT 11 on there are only strongly typed networks, and no flag to ask for them.
        typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        network = builder.create_network(0 if typed is None else 1 << int(typed))
        parser = trt.OnnxParser(network, _logger())
        # Weights in files are looked for beside the path.
        message = _message(ir.to_proto(copy_model(kernel)), workspace, target)
        if not parser.parse(message, str(workspace / model_file(""))):
            reasons = [parser.get_error(i).desc() for i in range(parser.num_errors)]
            raise Unsupported(f"tensorrt: {one_line(ValueError(reasons[0] if reasons else _said()))}")
        config = builder.create_builder_config()
        if target.option("precision") == "tf32":
            config.set_flag(trt.BuilderFlag.TF32)
        else:
            config.clear_flag(trt.BuilderFlag.TF32)
        config.builder_optimization_level = int(target.option("opt-level") or "3")
        config.set_timing_cache(config.create_timing_cache(_measured), ignore_mismatch=False)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise Unsupported(f"tensorrt builds no engine: {_said()}")
        _measured = bytes(config.get_timing_cache().serialize())
        return bytes(plan)
    except CollageError:
        raise
    except Exception as error:
        raise CompileError(f"tensorrt: {one_line(error)}") from error


@functools.cache
def _logger() -> Any:
    """TensorRT takes one logger for a process. It keeps the last error, and prints nothing."""
    import tensorrt as trt

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.last = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                self.last = message

    return Logger()


def _said() -> str:
    """The last error that TensorRT logged."""
    return one_line(ValueError(_logger().last or "it gives no reason"))


def _refuse_types(values: Iterable[ir.Value] | Iterator[ir.Value]) -> None:
    import onnx_ir as ir

    for value in values:
        if isinstance(value.type, ir.SequenceType | ir.OptionalType):
            raise Unsupported(f"tensorrt takes tensors only ({value.name!r} is {value.type})")
        dtype = elem_type(value)
        if dtype is not None and dtype.name not in _TYPES:
            raise Unsupported(f"tensorrt does not take {dtype.name.lower()} ({value.name!r})")


def _refuse_shapes(graph: ir.Graph) -> None:
    """Engines are built for fixed shapes. A range of shapes would have to be guessed, and is slower."""
    for value in (*graph.inputs, *graph.outputs):
        if value.shape is None or not all(isinstance(size, int) and size > 0 for size in value.shape):
            raise Unsupported(f"tensorrt's engines are built for fixed shapes ({value.name!r} is {value.shape})")


def _message(model: Any, workspace: Path, target: Target) -> bytes:
    if target.option("precision") == "f16":
        from onnx.external_data_helper import load_external_data_for_model

        from collage.toolchains.sdk.half import in_half

        load_external_data_for_model(model, str(workspace))
        model = in_half(model)
    message: bytes = model.SerializeToString()
    return message


def _write_atomically(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.draft")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
