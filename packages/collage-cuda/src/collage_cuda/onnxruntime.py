"""ONNX Runtime's CUDA execution provider: sessions whose inputs and outputs stay on the device.

Settings, and why they are not the vendor's: ``use_tf32`` is on by default, and f32 means f32; the compute stream is ours, so
that nothing waits for the host between two kernels. ``cudnn_conv_algo_search`` is exhaustive by default, which is right: a
kernel is loaded once and runs often.

Sessions are not recorded into CUDA graphs: their memory comes from an arena that goes on being used by other calls, and
operators that the provider lacks run on the processor in between.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.toolchains import Availability, Compiled, CompileError, LoadOptions, Unsupported
from collage.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
from collage.toolchains.sdk.model_files import check_options, one_line, save_kernel
from collage_cuda import cuda_support

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains import Kernel, OptionValues, Tensor

__all__ = ["OnnxRuntimeOnCuda"]

_PROVIDER = "CUDAExecutionProvider"
_LIBRARY = "capi/libonnxruntime_providers_cuda.so"
_PACKAGE = "onnxruntime-gpu"
_PRECISIONS = ("f32", "tf32", "f16")
_OPTIONS: OptionValues = {"threads": None, "precision": _PRECISIONS, "opt-level": ("0", "1", "2", "3")}
_TYPES = {
    "tensor(float)": (1, "float32"),
    "tensor(uint8)": (2, "uint8"),
    "tensor(int8)": (3, "int8"),
    "tensor(int16)": (5, "int16"),
    "tensor(int32)": (6, "int32"),
    "tensor(int64)": (7, "int64"),
    "tensor(bool)": (9, "bool"),
    "tensor(float16)": (10, "float16"),
    "tensor(double)": (11, "float64"),
}
"""ONNX Runtime's name of a type to ONNX's number and torch's name."""
_SILENT, _WARNINGS = 4, 2
"""Severities of ONNX Runtime's logs from which it prints: nothing but fatal errors, and its default."""


class OnnxRuntimeOnCuda(cuda_support.CudaToolchain, OnnxRuntimeToolchain):
    """Compiles and runs kernels with ONNX Runtime's execution providers for processors and for CUDA."""

    targets = (*OnnxRuntimeToolchain.targets, "cuda -compiler=onnxruntime")
    options = OnnxRuntimeToolchain.options | {
        "precision": f"{OnnxRuntimeToolchain.options['precision']}; on CUDA f32, tf32 or f16"
    }

    def availability_of(self, target: Target) -> Availability:
        """Return the availability; on CUDA it depends on the device, and on a build that has the provider."""
        found = self.availability()
        return _availability(found.version, found.build) if target.kind == "cuda" else found

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes."""
        return _OPTIONS if target.kind == "cuda" else super().option_values(target)

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Write the kernel, and have the provider of the target's device resolve every operator of it."""
        if target.kind == "cuda":
            return _compile(kernel, target, workspace, self.availability_of(target))
        return super().compile(kernel, target, workspace)

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Make a session."""
        if target.kind == "cuda":
            return _load(compiled, target, workspace)
        return super().load(compiled, target, workspace, options)

    def profile(
        self, compiled: Compiled, target: Target, workspace: Path, inputs: Sequence[Tensor], repeats: int
    ) -> Mapping[tuple[int, ...], float]:
        """Seconds by step. None on a device, where ONNX Runtime reports launches and not runs."""
        return {} if target.kind == "cuda" else super().profile(compiled, target, workspace, inputs, repeats)


def _availability(version: str | None, build: str) -> Availability:
    """Return if this build of ONNX Runtime has the provider, and there is a device for it."""
    missing = None
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None or not Path(spec.origin).with_name(_LIBRARY.split("/")[0]).is_dir():
        missing = cuda_support.Absence("onnxruntime is not installed", f"pip install {_PACKAGE}")
    elif not (Path(spec.origin).parent / _LIBRARY).exists():
        reason = f"the installed onnxruntime has no {_PROVIDER}"
        missing = cuda_support.Absence(reason, f"pip uninstall onnxruntime, then pip install {_PACKAGE}")
    return cuda_support.cuda_availability(version, build, missing, reduced=_PRECISIONS[1:])


def _compile(kernel: ir.Model, target: Target, workspace: Path, found: Availability) -> Compiled:
    """Write the kernel, and have the provider resolve every operator of it.

    Raises:
        Unsupported: It cannot be used here, or does not take the kernel.
    """
    check_options(target, _OPTIONS)
    if not found.available:
        raise Unsupported(f"onnxruntime: {found.reason}; {found.remedy}")
    files = save_kernel(kernel, workspace)
    if target.option("precision") == "f16":
        files = (_in_half(workspace / files[0]),)
    _session(workspace / files[0], target, "0")
    inputs = tuple(str(value.name) for value in kernel.graph.inputs)
    outputs = tuple(str(value.name) for value in kernel.graph.outputs)
    metadata = {"model": files[0]}
    return Compiled("onnxruntime", str(target), files, inputs, outputs, portable=True, metadata=metadata)


def _load(compiled: Compiled, target: Target, workspace: Path) -> Kernel:
    """Make a session.

    Raises:
        Unsupported: An input or output is of a type that tensors on the device cannot have.
    """
    check_options(target, _OPTIONS)
    session = _session(workspace / compiled.metadata["model"], target, target.option("opt-level") or "3")
    for port in (*session.get_inputs(), *session.get_outputs()):
        if port.type not in _TYPES:
            raise Unsupported(f"onnxruntime on CUDA: {port.name!r} is {port.type}, which torch does not carry")
    device = cuda_support.cuda_device()
    return cuda_support.CudaKernel(_BoundSession(session, compiled, device), device, capturable=False)


class _BoundSession:
    """A session that reads and writes tensors of torch where they are."""

    def __init__(self, session: Any, compiled: Compiled, device: cuda_support.TorchDevice) -> None:
        import onnxruntime as ort
        import torch

        self._torch = torch
        self._session = session
        self._device = device
        self._binding = session.io_binding()
        self._run_options = ort.RunOptions()
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        types = {port.name: port.type for port in session.get_inputs()}
        self._inputs = [(name, _TYPES[types[name]][0]) for name in compiled.inputs]
        self._places = {name: place for place, name in enumerate(compiled.inputs)}
        self._outputs = [self._port(port) for port in session.get_outputs()]

    def _port(self, port: Any) -> tuple[str, int, Any, list[int] | None]:
        number, name = _TYPES[port.type]
        shape = list(port.shape)
        return port.name, number, getattr(self._torch, name), shape if all(type(n) is int for n in shape) else None

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        if not all(x.numel() for x in inputs) or any(shape and 0 in shape for _, _, _, shape in self._outputs):
            return self._from_arrays(inputs)
        binding, device = self._binding, self._device.name
        for (name, number), x in zip(self._inputs, inputs, strict=True):
            binding.bind_input(name, "cuda", 0, number, list(x.shape), x.data_ptr())
        made: list[Any] = []
        for name, number, dtype, shape in self._outputs:
            if name in self._places:  # Handed on as it is: ONNX Runtime does not copy it to where the output is bound.
                made.append(inputs[self._places[name]].clone())
                binding.bind_output(name, "cuda", 0)
            elif shape is None:
                made.append(None)
                binding.bind_output(name, "cuda", 0)
            else:
                y = self._torch.empty(shape, dtype=dtype, device=device)
                made.append(y)
                binding.bind_output(name, "cuda", 0, number, shape, y.data_ptr())
        with cuda_support.queue_of(self._device, fixed=True):
            self._session.run_with_iobinding(binding, self._run_options)
        return self._taken(made) if any(y is None for y in made) else made

    def _taken(self, made: Sequence[Any]) -> Sequence[Any]:
        """Return outputs whose shapes the session chose, in memory of its own for as long as there are references to it."""
        values = self._binding.get_outputs()
        found = []
        for y, value, (_, _, dtype, _) in zip(made, values, self._outputs, strict=True):
            found.append(y if y is not None else self._torch.from_dlpack(value._ortvalue.to_dlpack()).to(dtype))
        self._binding.clear_binding_outputs()
        return found

    def _from_arrays(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Tensors without elements have no address to bind."""
        feeds = {name: self._device.download(x) for (name, _), x in zip(self._inputs, inputs, strict=True)}
        names = [name for name, _, _, _ in self._outputs]
        return [self._device.upload(y) for y in self._session.run(names, feeds)]


def _in_half(path: Path) -> str:
    """Write the kernel in half precision; the file's name."""
    import onnx

    from collage.toolchains.sdk.half import in_half

    made = path.with_suffix(".f16.onnx")
    onnx.save(in_half(onnx.load(path)), made)
    return made.name


def _session(path: Path, target: Target, level: str) -> Any:
    importlib.import_module("torch")  # Brings along the libraries that the provider needs.
    import onnxruntime as ort

    levels = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
    options = ort.SessionOptions()
    options.log_severity_level = _SILENT
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, levels[int(level)])
    with cuda_support.queue_of(cuda_support.cuda_device(), fixed=True) as queue:
        provider = {
            "device_id": "0",
            "use_tf32": "1" if target.option("precision") == "tf32" else "0",
            "cudnn_conv_algo_search": "EXHAUSTIVE",
            "user_compute_stream": str(queue),
        }
        # It warns that its provider is not a plug-in, through the logger of the whole process.
        ort.set_default_logger_severity(_SILENT)
        try:
            session = ort.InferenceSession(path, options, providers=[(_PROVIDER, provider), "CPUExecutionProvider"])
        except Exception as error:
            kind = Unsupported if type(error).__name__ in ("NotImplemented", "InvalidGraph", "Fail") else CompileError
            raise kind(f"onnxruntime: {one_line(error)}") from error
        finally:
            ort.set_default_logger_severity(_WARNINGS)
    if _PROVIDER not in session.get_providers():
        raise Unsupported(f"onnxruntime could not start its {_PROVIDER}; its libraries do not fit torch's")
    session.disable_fallback()
    return session
