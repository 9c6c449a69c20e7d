"""ONNX Runtime: whole sub-graphs, every ONNX operator, and the only one that takes strings, sequences and optionals.

Its compiled form is the kernel's ONNX file: optimisation happens when the session is made, so that the file fits any
machine.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import json
import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import CompileError, Unsupported
from collage.system.machine import this_machine
from collage.toolchains._base import ToolchainBase
from collage.toolchains._contract import IN_FLOATS, Availability, Compiled, Layout, LoadOptions
from collage.toolchains.onnxruntime.precisions import REDUCED, UNWANTED_OPTIMISERS
from collage.toolchains.sdk.import_probe import NOT_INSTALLED, import_failure, install_command
from collage.toolchains.sdk.in_place import InPlaceKernelBase, layouts_of
from collage.toolchains.sdk.model_files import (
    check_options,
    load_threads,
    one_line,
    save_kernel,
    usable_cores,
)
from collage.toolchains.sdk.precisions import NARROW_BITS
from collage.toolchains.sdk.profiler_names import BODY, tokenised, tokens_in
from collage.toolchains.sdk.thread_affinity import HelperThreads, started_meanwhile

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains._contract import Kernel, OptionValues, Tensor

__all__ = ["OnnxRuntimeToolchain", "from_ort", "narrow_type", "to_ort"]

_LEVELS = {"0": "ORT_DISABLE_ALL", "1": "ORT_ENABLE_BASIC", "2": "ORT_ENABLE_EXTENDED", "3": "ORT_ENABLE_ALL"}
_OPTIONS: OptionValues = {"threads": None, "precision": ("f32", *REDUCED), "exempt": None, "opt-level": tuple(_LEVELS)}
_PROVIDER = "CPUExecutionProvider"
_NUMPY_TYPES = frozenset(
    ("bool", "float16", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))
)
_IN_FLOAT32 = "1"
"""ONNX Runtime's number of the type in which it may compute products with narrow weights."""
_SILENT = 4
"""Log severity "fatal", since errors also arrive as exceptions."""

# Its Linux builds report on their use, from a thread beside what is timed. Nothing that Collage loads does, unless told to.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


class OnnxRuntimeToolchain(ToolchainBase):
    """Compiles and runs kernels with ONNX Runtime's execution provider for processors."""

    name = "onnxruntime"
    targets: tuple[str, ...] = ("llvm -compiler=onnxruntime",)
    reads_contributed = True
    # On CUDA, Gather returns zeros for an index beyond its table.
    checks_indices_on = ("llvm",)
    options = {
        "threads": "number of threads within an operator (default: one for each physical core)",
        "precision": "f32; int8: calibrated 8-bit integers in convolutions, matrix products and operators between them; "
        "int8-dynamic: matrix products in 8-bit integers, no calibration; w8 or w4: weights of matrix products of few rows "
        "in 8 or 4 bits (default f32)",
        "exempt": "with int8: number of the model's most sensitive parts that stay in float32; set by the search",
        "opt-level": "0 as written, 1 basic, 2 extended, 3 all graph optimisations (default 3)",
    }

    def availability(self) -> Availability:
        """Version and execution providers."""
        if (reason := import_failure("onnxruntime")) is not None:
            again = reason != NOT_INSTALLED
            remedy = f"{install_command('onnxruntime', again=again)}, or onnxruntime-gpu instead"
            return Availability(False, reason=reason, remedy=remedy)
        import onnxruntime as ort

        build = f"onnxruntime {ort.__version__}, {ort.get_build_info()}"
        # Elsewhere 8-bit products are no faster than f32 ones. Narrow weights are: a row through a decoder of 122 million weights
        # took 47.7 ms of one AVX2 core in f32, 13.5 in w8 and 9.0 in w4.
        precisions = REDUCED if this_machine().multiplies_bytes_at_once else tuple(NARROW_BITS)
        return Availability(True, ort.__version__, build, (_PROVIDER,), precisions=precisions, compact=REDUCED)

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes."""
        return _OPTIONS

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Write the kernel, and have ONNX Runtime resolve every operator of it, without optimising."""
        check_options(target, _OPTIONS)
        from collage.toolchains.onnxruntime.reduced import save_reduced  # late: it reads models

        in_floats: list[int] = []
        if target.is_reduced:
            files, in_floats = save_reduced(kernel, target, workspace)
        else:
            files = save_kernel(kernel, workspace)
        options = _session_options(target, LoadOptions(threads=1))
        options.graph_optimization_level = _level("0")
        options.add_session_config_entry("session.disable_prepacking", "1")
        _session(workspace / files[0], target, options)
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        metadata = {
            "model": files[0],
            "in_place": _writes_in_place(kernel.graph),
            "one_thread": any(map(_loses_updates, kernel.graph.all_nodes())),
            **({IN_FLOATS: in_floats} if in_floats else {}),
        }
        return Compiled(self.name, str(target), files, inputs, outputs, portable=True, metadata=metadata)

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Make a session."""
        check_options(target, _OPTIONS)
        if compiled.metadata.get("one_thread"):
            target = target.with_options(threads="1")
        with started_meanwhile() as started:
            session = _shared_session(workspace, compiled.metadata["model"], target, options)
        # Those that it starts with its vendor's defaults know their places.
        helpers = HelperThreads(() if options.exclusive else started)
        types = [port.type for port in (*session.get_inputs(), *session.get_outputs())]
        if any(narrow_type(name) for name in types):
            return _NarrowSessionKernel(session, compiled, helpers)
        layouts = _layouts(session) if compiled.metadata.get("in_place") is True else None
        if layouts is None:
            return _SessionKernel(session, compiled, helpers)
        return _BoundSessionKernel(session, compiled, helpers, layouts)

    def profile(
        self, compiled: Compiled, target: Target, workspace: Path, inputs: Sequence[Tensor], repeats: int
    ) -> Mapping[tuple[int, ...], float]:
        """Seconds by node, from ONNX Runtime's own profiler."""
        check_options(target, _OPTIONS)
        with tokenised(workspace / compiled.metadata["model"]) as copy:
            events = _trace(copy.path, target, inputs, repeats + 1)
        samples: dict[int, list[float]] = defaultdict(list)
        for run in _runs(events)[1:]:
            for index, seconds in _seconds_per_node(run).items():
                samples[index].append(seconds)
        steps: dict[tuple[int, ...], float] = defaultdict(float)
        for index, values in samples.items():
            steps[copy.step([index], samples)] += statistics.median(values)
        return copy.in_kernel(steps)


class _SessionKernel:
    """A session that is called below its Python checks: they cost as much as a small kernel."""

    reuses_outputs = False

    def __init__(self, session: Any, compiled: Compiled, helpers: HelperThreads) -> None:
        self._session = session
        self._run = session._sess.run
        self._move_off = helpers.move_off
        self._inputs = compiled.inputs
        self._only_input = compiled.inputs[0] if len(compiled.inputs) == 1 else None
        self._outputs = list(compiled.outputs)
        # What ONNX Runtime would write to where it is told, it allocates where it is not.
        self.allocates_outputs = compiled.metadata.get("in_place") is True

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        name = self._only_input  # A dictionary display is the faster one, and this is the usual kernel.
        feeds = dict(zip(self._inputs, inputs, strict=True)) if name is None else {name: inputs[0]}
        self._move_off()
        outputs: Sequence[Tensor] = self._run(self._outputs, feeds, None)
        return outputs


class _BoundSessionKernel(InPlaceKernelBase):
    """A session whose inputs and outputs stay bound from one call to the next: binding costs as much as a small kernel."""

    def __init__(self, session: Any, compiled: Compiled, helpers: HelperThreads, layouts: Sequence[Layout]) -> None:
        from onnxruntime.capi import _pybind_state as binding

        super().__init__(layouts)
        self._session = session
        self._move_off = helpers.move_off
        self._binding = binding.SessionIOBinding(session._sess)
        self._run = functools.partial(session._sess.run_with_iobinding, self._binding, None)
        self._value = binding.OrtValue.ortvalue_from_numpy
        self._device = binding.OrtDevice(binding.OrtDevice.cpu(), binding.OrtDevice.default_memory(), 0)
        self._outputs = compiled.outputs
        shapes = {port.name: port.shape for port in session.get_inputs()}
        self._inputs = [(name, all(isinstance(axis, int) for axis in shapes[name])) for name in compiled.inputs]
        self._read: list[Tensor | None] = [None] * len(self._inputs)
        self._alive: list[Tensor | None] = [None] * len(self._inputs)

    def run_into(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        for i, (x, read) in enumerate(zip(inputs, self._read, strict=True)):
            if x is not read:
                self._bind_input(i, x)
        self._write_to(outputs)
        self._move_off()
        self._run()

    def _bind_input(self, i: int, x: Tensor) -> None:
        name, is_static = self._inputs[i]
        row_major = np.ascontiguousarray(x) if x.ndim else x
        self._binding.bind_ortvalue_input(name, self._value(row_major, self._device))
        self._alive[i] = row_major
        # What was copied must be copied again, and an array of no fixed shape may be given another.
        self._read[i] = x if row_major is x and is_static else None

    def _handle(self, y: Tensor) -> object:
        return self._value(y, self._device)

    def _bind_output(self, i: int, handle: object) -> None:
        self._binding.bind_ortvalue_output(self._outputs[i], handle)


class _NarrowSessionKernel:
    """A session with inputs or outputs of types that NumPy lacks (bfloat16, float8, int4).

    ONNX Runtime's Python API takes these as bytes with a type, and gives them back as an address.
    """

    reuses_outputs = False

    def __init__(self, session: Any, compiled: Compiled, helpers: HelperThreads) -> None:
        self._session = session
        self._move_off = helpers.move_off
        self._run = session._sess.run_with_ort_values
        inputs, outputs = session.get_inputs(), session.get_outputs()
        for port in (*inputs, *outputs):
            if not port.type.startswith("tensor("):
                raise Unsupported(f"{port.name}: onnxruntime cannot mix {port.type} with types that NumPy lacks")
        self._inputs = [(name, narrow_type(port.type)) for name, port in zip(compiled.inputs, inputs, strict=True)]
        self._outputs = list(compiled.outputs)
        self._output_types = [narrow_type(port.type) for port in outputs]
        self._passed_on = [name in compiled.inputs for name in compiled.outputs]

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        feeds = {name: to_ort(x, narrow) for (name, narrow), x in zip(self._inputs, inputs, strict=True)}
        self._move_off()
        results = self._run(feeds, self._outputs, None)
        arrays = [from_ort(value, narrow) for value, narrow in zip(results, self._output_types, strict=True)]
        # An input that is an output too comes back in the caller's own memory.
        return [y.copy() if passed_on else y for y, passed_on in zip(arrays, self._passed_on, strict=True)]


def to_ort(x: Tensor, narrow: ir.DataType | None) -> Any:
    """Return an array as an ``OrtValue`` in memory of its own; ``narrow`` is its type if NumPy lacks that."""
    from onnxruntime.capi import _pybind_state as binding

    x = np.asarray(x, order="C")
    if x.dtype.hasobject:
        return _text_value(x)
    if narrow is not None and x.dtype != narrow.numpy():
        raise Unsupported(f"onnxruntime was given {x.dtype} where its kernel takes {narrow}")
    device = binding.OrtDevice(binding.OrtDevice.cpu(), binding.OrtDevice.default_memory(), 0)
    # An OrtValue over an array's memory does not keep the array alive.
    if narrow is None:
        made = binding.OrtValue.ortvalue_from_shape_and_type(list(x.shape), x.dtype.type, device)
    else:
        made = binding.OrtValue.ortvalue_from_shape_and_onnx_type(list(x.shape), int(narrow), device)
    data = x if narrow is None or narrow.bitwidth >= 8 else _packed(x.view(np.uint8), narrow.bitwidth)
    if data.size:
        ctypes.memmove(made.data_ptr(), data.ctypes.data, data.nbytes)
    return made


def _text_value(x: Tensor) -> Any:
    """Return texts as an ``OrtValue``. ONNX Runtime makes none of an array; so a session returns one, whose model holds them."""
    import onnx
    import onnxruntime as ort

    texts = onnx.TensorProto(name="x", data_type=onnx.TensorProto.STRING, dims=x.shape)
    texts.string_data.extend(str(text).encode() for text in x.reshape(-1))
    graph = onnx.GraphProto(name="texts", initializer=[texts], output=[onnx.ValueInfoProto(name="y")])
    graph.node.add(op_type="Identity", input=["x"], output=["y"])
    model = onnx.ModelProto(ir_version=8, graph=graph, opset_import=[onnx.OperatorSetIdProto(version=17)])
    options = ort.SessionOptions()
    options.log_severity_level = _SILENT
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session._sess.run_with_ort_values({}, ["y"], None)[0]


def from_ort(value: Any, narrow: ir.DataType | None) -> Tensor:
    """Return an ``OrtValue`` as an array; ``narrow`` is its type if NumPy lacks that."""
    if narrow is None:
        array: Tensor = value.numpy()
        return array
    shape = value.shape()
    count = int(np.prod(shape))
    size = -(-count * narrow.bitwidth // 8)
    data = np.frombuffer(ctypes.string_at(value.data_ptr(), size), np.uint8) if size else np.empty(0, np.uint8)
    if narrow.bitwidth < 8:
        data = _unpacked(data, narrow.bitwidth, count)
    return data.view(narrow.numpy()).reshape(shape).copy()


def _packed(data: Tensor, bits: int) -> Tensor:
    """Pack small integers, lowest bits first."""
    flat, per_byte = data.reshape(-1) & ((1 << bits) - 1), 8 // bits
    packed = np.zeros(-(-flat.size // per_byte), np.uint8)
    for place in range(per_byte):
        part = flat[place::per_byte] << (bits * place)
        packed[: part.size] |= part
    return packed


def _unpacked(data: Tensor, bits: int, count: int) -> Tensor:
    per_byte = 8 // bits
    parts = [(data >> (bits * place)) & ((1 << bits) - 1) for place in range(per_byte)]
    return np.ascontiguousarray(np.stack(parts, axis=-1).reshape(-1)[:count])


@functools.cache
def narrow_type(name: str) -> ir.DataType | None:
    """Return the type behind ONNX Runtime's name for it if NumPy has no such type, else None."""
    if not name.startswith("tensor(") or name == "tensor(string)" or _numpy_name(name) is not None:
        return None
    import onnx_ir as ir  # Late: it takes 70 MB, which most kernels do not need.

    inner = name.removeprefix("tensor(").removesuffix(")").upper()
    dtype = ir.DataType.__members__.get(inner)
    return dtype if dtype is not None and dtype.numpy().isbuiltin != 1 else None


def _loses_updates(node: ir.Node) -> bool:
    """True if several threads of ONNX Runtime add to one element at once, where points are equal."""
    return node.op_type == "ScatterND" and node.attributes.get_string("reduction", "none") != "none"


def _writes_in_place(graph: ir.Graph) -> bool:
    """Return True if ONNX Runtime writes to the buffers that it is given for a kernel's outputs.

    It does not if an output is an input, or if operators with bodies, sequences or optionals bring outputs of their own. An
    unknown rank counts as a no, since ONNX Runtime describes it like a scalar.
    """
    import onnx_ir as ir

    ranked = all(value.shape is not None for value in graph.outputs)
    tensors = all(isinstance(value.type, ir.TensorType) for node in graph for value in node.outputs if value.name)
    bodies = any(node.graph is not graph for node in graph.all_nodes())
    return ranked and tensors and not bodies and not set(graph.inputs) & set(graph.outputs)


def _layouts(session: Any) -> tuple[Layout, ...] | None:
    """Layouts of the outputs, if these and the inputs are tensors of types that NumPy has."""
    outputs = session.get_outputs()
    dtypes = [_numpy_name(port.type) for port in (*outputs, *session.get_inputs())]
    return None if None in dtypes else layouts_of(dtypes[: len(outputs)], [port.shape for port in outputs])


def _numpy_name(name: str) -> str | None:
    """NumPy's name of the type behind ONNX Runtime's, None if it has none."""
    inner = name.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(inner, inner if inner in _NUMPY_TYPES else None)


def _level(number: str) -> Any:
    import onnxruntime as ort

    return getattr(ort.GraphOptimizationLevel, _LEVELS[number])


def _session_options(target: Target, options: LoadOptions) -> Any:
    import onnxruntime as ort

    threads = load_threads(target, options)
    result = ort.SessionOptions()
    result.log_severity_level = _SILENT
    result.graph_optimization_level = _level(target.option("opt-level") or "3")
    # By default, products with weights stored in 8 or 4 bits round the activations to 8 bits too: off by up to 1 %.
    result.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", _IN_FLOAT32)
    if not options.exclusive:
        # With a number of threads given, ONNX Runtime leaves affinities alone; it spins, but not between two runs.
        threads = threads or usable_cores()
        result.add_session_config_entry("session.force_spinning_stop", "1")
    result.intra_op_num_threads = threads
    return result


def _shared_session(workspace: Path, file: str, target: Target, options: LoadOptions) -> Any:
    """Return a session: of one thread, the one that all contexts use, each in its caller's thread."""

    def make() -> Any:
        return _session(workspace / file, target, _session_options(target, options))

    return options.once(("onnxruntime", file, target), make) if load_threads(target, options) == 1 else make()


def _session(path: Path, target: Target, options: Any) -> Any:
    import onnxruntime as ort
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    refusals = (errors.NotImplemented, errors.InvalidGraph, errors.InvalidArgument, errors.Fail)
    try:
        unwanted = UNWANTED_OPTIMISERS if target.option("precision") == "int8" else []
        session = ort.InferenceSession(path, options, providers=[_PROVIDER], disabled_optimizers=unwanted)
    except refusals as error:
        raise Unsupported(f"onnxruntime: {one_line(error)}") from error
    except Exception as error:
        raise CompileError(f"onnxruntime: {one_line(error)}") from error
    session.disable_fallback()
    return session


def _trace(path: Path, target: Target, inputs: Sequence[Tensor], repeats: int) -> Sequence[Mapping[str, Any]]:
    """Events of ONNX Runtime's profiler for some runs; the file that it writes them to is removed."""
    options = _session_options(target, LoadOptions(exclusive=True))
    options.enable_profiling = True
    options.profile_file_prefix = str(path.with_suffix(""))
    session = _session(path, target, options)
    feeds = dict(zip((port.name for port in session.get_inputs()), inputs, strict=True))
    try:
        for _ in range(repeats):
            session.run(None, feeds)
    finally:
        trace = Path(session.end_profiling())
        events: list[Mapping[str, Any]] = json.loads(trace.read_text())
        trace.unlink()
    return events


def _runs(events: Sequence[Mapping[str, Any]]) -> Sequence[Sequence[Mapping[str, Any]]]:
    """Node events of each run, in the order in which they began."""
    ends = sorted(event["ts"] + event["dur"] for event in events if event.get("name") == "model_run")
    runs: list[list[Mapping[str, Any]]] = [[] for _ in ends]
    nodes = (e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time"))
    for event in sorted(nodes, key=lambda event: event["ts"]):
        place = bisect.bisect_left(ends, event["ts"])
        if place < len(runs) and BODY not in event["name"]:
            runs[place].append(event)
    return runs


def _seconds_per_node(run: Sequence[Mapping[str, Any]]) -> Mapping[int, float]:
    """Add up a run's events by node; an event of the runtime's own (a reorder) counts with the node before it."""
    found = [tokens_in(event["name"]) for event in run]
    current = next((tokens[-1] for tokens in found if tokens), None)
    sums: dict[int, float] = defaultdict(float)
    for event, tokens in zip(run, found, strict=True):
        current = tokens[-1] if tokens else current
        if current is not None:
            sums[current] += event["dur"] * 1e-6
    return sums
