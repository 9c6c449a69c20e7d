"""IREE: sub-graphs lowered through MLIR to one module of native code, run by a pool of threads that sleep between runs.

Its compiled form is for this machine's processor, weights included; loading it compiles nothing.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.system.forks import in_forks, keep_for_ever
from collage.toolchains import Availability, Compiled, CompileError, LoadOptions, Support, ToolchainBase, Unsupported
from collage.toolchains.sdk.import_probe import import_failure, install_command
from collage.toolchains.sdk.model_files import (
    check_options,
    elem_type,
    kernel_name,
    load_threads,
    one_line,
    refuse_operators,
    save_kernel,
    support_of,
    usable_cores,
    values_of,
)

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains import Kernel, OptionValues, Tensor

__all__ = ["IreeToolchain"]

_OPTIONS: OptionValues = {"threads": None, "opt-level": ("0", "1", "2", "3")}
_TYPES = frozenset(
    (
        "BOOL",
        "FLOAT",
        "DOUBLE",
        "FLOAT16",
        "BFLOAT16",
        *(f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)),
    )
)
_SETTINGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",  # it would build for any x86-64 otherwise
)
_DOUBLES = "--iree-input-demote-f64-to-f32=false"
"""f64 means f64. If a kernel has no f64, IREE may demote constants of the importer, and some of these then cannot be computed."""
_ENTRY = "kernel"
_BFLOAT16 = "bfloat16"
_ALIGNMENT = 64
"""Alignment in bytes that IREE's code assumes of every array."""
_WRITERS = frozenset(("TopK", "Scatter", "ScatterElements", "ScatterND", "TensorScatter", "If", "Loop", "Scan"))
"""Operators that IREE lets write over their last input, even if it belongs to the caller. Kernels with one get copies."""


class IreeToolchain(ToolchainBase):
    """Compiles kernels with IREE for the CPU."""

    name = "iree"
    targets = ("llvm -compiler=iree",)
    on_default_menu = False
    options = {
        "threads": "number of threads (default: one for each physical core)",
        "opt-level": "0 to 3: IREE's own optimisation level (default 3)",
    }

    def availability(self) -> Availability:
        """Version of the runtime and of the compiler, which are two packages."""
        remedy = install_command("iree")
        try:
            version, compiler = (importlib.metadata.version(f"iree-base-{part}") for part in ("runtime", "compiler"))
        except importlib.metadata.PackageNotFoundError as error:
            return Availability(False, reason=f"{error.name} is not installed", remedy=remedy)
        try:
            failures = {package: import_failure(package) for package in ("iree.compiler", "iree.runtime")}
        except ModuleNotFoundError as error:  # of the package around both
            return Availability(False, reason=one_line(error), remedy=f"{remedy} --force-reinstall")
        for package, reason in failures.items():
            if reason is not None:
                return Availability(False, reason=f"{package}: {reason}", remedy=f"{remedy} --force-reinstall")
        return Availability(True, version, f"iree {version}, compiler {compiler}", ("CPU",))

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes."""
        return _OPTIONS

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Accept an operator, unless its type is not supported or IREE is known to compute it wrongly."""
        return support_of(_refuse_types, node, _refusal)

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Import the kernel into MLIR, and have IREE's compiler make a module of it."""
        check_options(target, _OPTIONS)
        name = kernel_name(kernel)
        refuse_operators(_refusal, kernel.graph)
        _refuse_second_sort(kernel.graph)
        _refuse_types(values_of(kernel.graph))
        _refuse_symbolic(kernel.graph)
        with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=workspace) as draft:
            imported = Path(draft) / "kernel.mlir"
            _import(kernel, workspace, imported)
            made = self._translated(kernel, imported, target.option("opt-level") or "3")
            options = "".join(f".{option}={value}" for option, value in target.options)
            module = made.replace(workspace / f"{name}{options}.vmfb")
        dtypes = [_dtype(value) for value in kernel.graph.outputs]
        return Compiled(
            self.name,
            str(target),
            (module.name,),
            tuple(str(value.name) for value in kernel.graph.inputs),
            tuple(str(value.name) for value in kernel.graph.outputs),
            metadata={"module": module.name, "dtypes": dtypes, "only_reads": _only_reads(kernel.graph)},
        )

    def _translated(self, kernel: ir.Model, imported: Path, level: str) -> Path:
        try:
            return _translate(imported, level, [_DOUBLES])
        except Unsupported:
            if any(dtype is not None and dtype.name == "DOUBLE" for dtype in map(elem_type, values_of(kernel.graph))):
                raise
            return _translate(imported, level, [])

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Map the module into memory, on a device with the requested number of threads."""
        check_options(target, _OPTIONS)
        device = _device(load_threads(target, options) or usable_cores())
        told = compiled.metadata
        # Modules of earlier versions do not say whether they only read.
        return _ModuleKernel(workspace / told["module"], device, told["dtypes"], bool(told.get("only_reads")))


class _ModuleKernel:
    """A module's entry, called below IREE's Python checks; outputs are memory of its own, which NumPy views."""

    reuses_outputs = False

    def __init__(self, path: Path, device: Any, dtypes: Sequence[str], only_reads: bool) -> None:
        import iree.runtime as rt
        import ml_dtypes  # noqa: F401  has NumPy know bfloat16

        self._rt = rt
        self._device = device
        self._only_reads = only_reads
        self._dtypes = [np.dtype(dtype) for dtype in dtypes]
        self._memory = rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE
        self._usage = rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING
        instance = _instance()
        module = rt.VmModule.mmap(instance, str(path))
        self._context = rt.VmContext(instance, [rt.create_hal_module(instance, device), module])
        self._entry = module.lookup_function(_ENTRY)

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        rt = self._rt
        given, made = rt.VmVariantList(len(inputs)), rt.VmVariantList(len(self._dtypes))
        read = [np.asarray(x, order="C") for x in inputs]
        for x in read:
            given.push_ref(self._lent(x) or self._copied(x))
        self._context.invoke(self._entry, given, made)
        views = [made.get_as_object(i, rt.HalBufferView) for i in range(len(self._dtypes))]
        outputs = [_array(view, dtype) for view, dtype in zip(views, self._dtypes, strict=True)]
        # Equal outputs come as one, and an input that is an output too comes back as it was lent.
        return [
            y.copy() if any(map(partial(np.may_share_memory, y), (*read, *outputs[:i]))) else y
            for i, y in enumerate(outputs)
        ]

    def _lent(self, x: Tensor) -> Any:
        """A view of an array's own memory; None if it might be written to, or is not aligned as its code expects."""
        if not self._only_reads or x.ctypes.data % _ALIGNMENT or not x.size or not x.flags.writeable:
            return None
        buffer = self._device.allocator.import_host_allocation(_bytes_of(x), self._memory, self._usage)
        return self._rt.HalBufferView(buffer, x.shape, _element_type(x.dtype))

    def _copied(self, x: Tensor) -> Any:
        return self._device.allocator.allocate_buffer_copy(
            memory_type=self._memory,
            allowed_usage=self._usage,
            device=self._device,
            buffer=_bytes_of(x),
            element_type=_element_type(x.dtype),
        )


def _array(view: Any, dtype: np.dtype[Any]) -> Tensor:
    shape = tuple(view.shape)
    if 0 in shape:
        return np.empty(shape, dtype)
    # Not ``asarray``: what that returns keeps the memory itself, but views of it do not.
    memory = np.frombuffer(view.map(), np.uint8)
    return memory[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _bytes_of(x: Tensor) -> Tensor:
    """An array in a type that other libraries know; bfloat16 becomes another type."""
    return x.view(np.uint16) if x.dtype.name == _BFLOAT16 else x


@functools.cache
def _element_type(dtype: np.dtype[Any]) -> Any:
    from iree.runtime.dtypes import map_dtype_to_hal_element_type

    return map_dtype_to_hal_element_type(dtype)


@functools.cache
def _instance() -> Any:
    import iree.runtime as rt

    return rt.VmInstance()


_devices: dict[int, Any] = {}


def _device(threads: int) -> Any:
    """Return the device with this number of threads. There is one in a process."""
    if threads not in _devices:
        _devices[threads] = _make_device(threads)
    return _devices[threads]


def _forget_devices() -> None:
    """Have a fork make devices of its own: those that it was born with wait for threads that it does not have."""
    global _devices
    if _devices:
        from iree.runtime._binding import clear_hal_driver_cache

        keep_for_ever(_devices)
        _devices = {}
        clear_hal_driver_cache()


in_forks(_forget_devices)


def _make_device(threads: int) -> Any:
    """Make a device with this number of threads, which sleep between runs. One thread is the caller's own.

    The number is a flag of the whole process, read when a device is made. Memory of outputs that are no longer held is kept for
    the next ones: pages that are new to the process cost as much as a tenth of a large transpose.
    """
    import iree.runtime as rt

    if threads == 1:
        return rt.get_driver("local-sync").create_default_device(["caching"])
    rt.flags.parse_flags(f"--task_topology_group_count={threads}")
    return rt.get_driver("local-task").create_default_device(["caching"])


def _refusal(node: ir.Node) -> str | None:
    """Return the reason to refuse an operator that IREE takes and computes wrongly, else None. ONNX's suite found these."""
    attributes = node.attributes
    if node.op_type == "Bernoulli" or node.op_type.startswith("Random"):
        return f"iree draws other random numbers for {node.op_type} than ONNX Runtime"
    if node.op_type == "DepthToSpace" and attributes.get_string("mode") == "CRD" and _makes_one_channel(node):
        return "iree shuffles the pixels of DepthToSpace with mode CRD where it makes one channel"
    if node.op_type == "Slice" and _begins_behind_the_end(node):
        return "iree reads beyond the end in Slice with a negative step"
    if node.op_type == "Pad" and attributes.get_string("mode") == "wrap":
        return "iree's compiler does not terminate for some Pads of mode wrap"
    if node.op_type in ("ScatterElements", "ScatterND") and _writes_one_constant(node):
        return f"iree reads beyond the one constant index of {node.op_type} with constant data"
    if node.op_type == "SoftmaxCrossEntropyLoss" and len(node.inputs) > 2 and node.inputs[2] is not None:
        return "iree computes SoftmaxCrossEntropyLoss with weights wrongly"
    if node.op_type == "MaxPool" and len(node.outputs) > 1 and not _is_one_whole_image(node):
        return "iree returns wrong indices of MaxPool with padding, several images or several channels"
    if node.op_type == "LSTM" and len(node.inputs) > 7 and node.inputs[7] is not None:
        return "iree ignores the peepholes of LSTM"
    if node.op_type == "QLinearMatMul" and any(x is not None and len(x.shape or ()) > 2 for x in node.inputs):
        return "iree computes batches of QLinearMatMul wrongly"
    if node.op_type == "GridSample":
        return "iree's GridSample in mode nearest takes wrong neighbours, and reads beyond the image"
    if node.op_type == "SpaceToDepth" and attributes.get_string("mode") == "CRD":
        return "iree computes every SpaceToDepth in mode DCR"
    if node.op_type == "AveragePool" and all(attributes.get_int(name) for name in ("ceil_mode", "count_include_pad")):
        return "iree counts elements beyond the padding of AveragePool with ceil_mode and count_include_pad"
    if node.op_type in ("Div", "Mod") and _divides_by_anything(node):
        return f"iree's {node.op_type} of integers ends the process where the least is divided by -1, or anything by 0"
    if node.op_type in ("Clip", "Div", "Mod") and _is_unsigned(node):
        return f"iree takes unsigned integers for signed ones in {node.op_type}"
    if node.op_type == "Mod" and not _is_integer(node):
        return "iree's Mod of floats takes its quotient from a rounded division"
    if node.op_type == "Pow" and not _has_plain_power(node):
        return "iree's Pow makes NaN of negative numbers to a power that is not one constant, and wrong infinities of 0"
    if node.op_type in ("Acosh", "Asinh", "Cos", "Sin", "Tan"):
        return f"iree's {node.op_type} is wrong for large numbers"
    if node.op_type == "LpNormalization":
        return "iree makes NaN of zeros in LpNormalization"
    if node.op_type == "Scan" and _is_of_one_step(node):
        return "iree returns zeros for a Scan of one step over a part of a tensor"
    return None


def _divides_by_anything(node: ir.Node) -> bool:
    """Return True unless a divisor is of floats, or a constant without 0 and -1."""
    divisor = node.inputs[1] if len(node.inputs) > 1 else None
    dtype = None if divisor is None else elem_type(divisor)
    if divisor is None or dtype is None:
        return True
    if not dtype.is_integer():
        return False
    return divisor.const_value is None or bool(np.isin(divisor.const_value.numpy(), (0, -1)).any())


def _is_integer(node: ir.Node) -> bool:
    dtype = elem_type(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    return dtype is not None and dtype.is_integer()


def _is_unsigned(node: ir.Node) -> bool:
    dtype = elem_type(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    return dtype is not None and dtype.is_integer() and not dtype.is_signed()


def _has_plain_power(node: ir.Node) -> bool:
    """Return True for floats if the base is constant and positive, or the exponent one constant, finite and not negative."""
    operands = (*node.inputs, None, None)[:2]
    base, exponent = (None if x is None or x.const_value is None else x.const_value.numpy() for x in operands)
    if _is_integer(node) or any(x is not None and x.dtype.kind not in "fiu" for x in (base, exponent)):
        return False
    if base is not None and base.size and base.min() > 0:
        return True
    return exponent is not None and exponent.size > 0 and 0 <= exponent.min() == exponent.max() < math.inf


def _is_of_one_step(node: ir.Node) -> bool:
    """Return True if a Scan may have a single step, as far as shapes tell."""
    count = node.attributes.get_int("num_scan_inputs", 0) or 0
    scanned = node.inputs[len(node.inputs) - count :]
    axes = node.attributes.get_ints("scan_input_axes") or [0] * count
    shapes = [x.shape for x in scanned if x is not None and x.shape is not None]
    return any(-len(s) <= axis < len(s) and s[axis] == 1 for s, axis in zip(shapes, axes, strict=False))


def _is_one_whole_image(node: ir.Node) -> bool:
    """Return True if a pool's input is one image of one channel, without padding."""
    x = node.inputs[0]
    return (
        x is not None
        and x.shape is not None
        and tuple(x.shape[:2]) == (1, 1)
        and not any(node.attributes.get_ints("pads") or ())
        and node.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    )


def _makes_one_channel(node: ir.Node) -> bool:
    shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    return shape is None or len(shape) != 4 or shape[1] == (node.attributes.get_int("blocksize") or 0) ** 2


def _writes_one_constant(node: ir.Node) -> bool:
    constants = [value.const_value for value in node.inputs[1:3] if value is not None and value.const_value is not None]
    return len(constants) == 2 and constants[1].size == 1


def _begins_behind_the_end(node: ir.Node) -> bool:
    """Return True if a Slice with a negative step starts beyond the end, where ONNX takes the last element."""
    given = [None if value is None else value.const_value for value in (*node.inputs, None, None, None, None)[:5]]
    starts, axes, steps = given[1], given[3], given[4]
    shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
    if shape is None or starts is None or axes is None or steps is None:
        return False
    places = zip(starts.numpy().tolist(), axes.numpy().tolist(), steps.numpy().tolist(), strict=False)
    return any(
        step < 0 and -len(shape) <= axis < len(shape) and isinstance(size := shape[axis], int) and start >= size
        for start, axis, step in places
    )


def _refuse_types(values: Iterable[ir.Value]) -> None:
    for value in values:
        dtype = elem_type(value)
        if dtype is not None and dtype.name not in _TYPES:
            raise Unsupported(f"iree is not used for {dtype.name.lower()} ({value.name!r})")
        if value.type is not None and dtype is None:
            raise Unsupported(f"iree takes tensors, not {value.type} ({value.name!r})")


def _only_reads(graph: ir.Graph) -> bool:
    return not any(node.op_type in _WRITERS for node in graph)


def _refuse_second_sort(graph: ir.Graph) -> None:
    """IREE has all that sort rows of one length share one row of indices, and sorts that in place along with the values."""
    if sum(node.op_type == "TopK" for node in graph.all_nodes()) > 1:
        raise Unsupported("iree returns wrong indices of the second TopK of a kernel")


def _refuse_symbolic(graph: ir.Graph) -> None:
    """Refuse symbolic sizes. IREE takes unknown sizes to be equal instead of broadcasting, so a 1 gives wrong values."""
    for value in (*graph.inputs, *graph.outputs):
        if value.shape is None or not all(isinstance(size, int) for size in value.shape):
            raise Unsupported(f"iree's kernels are compiled for fixed shapes ({value.name!r} is {value.shape})")


def _refuse_unknown_sizes(model: onnx.ModelProto) -> None:
    """The same between operators: where a size depends on data, or inference does not find it."""
    for value in model.graph.value_info:
        if not all(axis.HasField("dim_value") for axis in value.type.tensor_type.shape.dim):
            raise Unsupported(f"iree's kernels are compiled for fixed shapes ({value.name!r} has none)")


def _dtype(value: ir.Value) -> str:
    dtype = elem_type(value)
    if dtype is None:
        raise Unsupported(f"iree needs to know the type of {value.name!r}")
    return str(dtype.numpy())


def _import(kernel: ir.Model, workspace: Path, path: Path) -> None:
    """Write a kernel in MLIR.

    Raises:
        Unsupported: It holds an operator or form that the importer does not know.
    """
    import onnx
    import onnx.shape_inference
    from iree.compiler.extras import onnx_importer
    from iree.compiler.ir import Context

    files = save_kernel(kernel, workspace)
    try:
        model = onnx.load(workspace / files[0])
    finally:
        (workspace / files[0]).unlink()
    model.graph.name = _ENTRY
    try:
        # Every value needs a type, as IREE's own tool sees to.
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        _refuse_unknown_sizes(inferred)
        info = onnx_importer.ModelInfo(inferred)
        module = info.create_module(context=Context()).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
        module.verify()
        with path.open("wb") as file:
            module.write_bytecode(file)
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(f"iree cannot import it: {one_line(error)}") from error


def _translate(imported: Path, level: str, settings: Sequence[str]) -> Path:
    """Run the compiler in a new process, since it aborts its process on unexpected input.

    Raises:
        Unsupported: The compiler reports that it cannot.
        CompileError: It died.
    """
    import iree.compiler

    made = imported.with_suffix(".vmfb")
    tool = Path(iree.compiler.__file__).with_name("_mlir_libs") / "iree-compile"
    command = [str(tool), str(imported), f"-o={made}", f"--iree-opt-level=O{level}", *_SETTINGS, *settings]
    here = {**os.environ, "TMPDIR": str(imported.parent)}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=here, stdin=subprocess.DEVNULL)
    if done.returncode == 1:
        raise Unsupported(f"iree: {_complaint(done.stderr)}")
    if done.returncode:
        raise CompileError(f"iree's compiler ended with {done.returncode}: {_complaint(done.stderr)}")
    return made


def _complaint(said: str) -> str:
    """The first error of many lines: those that follow are its consequences."""
    errors = (line.split("error: ", 1)[1] for line in said.splitlines() if "error: " in line)
    return one_line(RuntimeError(next(errors, said)))
