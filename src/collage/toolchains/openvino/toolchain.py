"""OpenVINO: whole sub-graphs on its CPU plugin, in one stream.

Its compiled form is the kernel's ONNX file, which the plugin compiles when the kernel is loaded, for the machine and
the number of threads found there.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage._errors import CompileError, TargetError, Unsupported
from collage.system.machine import this_machine
from collage.toolchains._base import ToolchainBase
from collage.toolchains._contract import IN_FLOATS, Availability, Compiled, LoadOptions, OptionValues, Support
from collage.toolchains.openvino.forks import note_model
from collage.toolchains.openvino.integers import LIMITS, computes_beyond, has_32_bits, is_place
from collage.toolchains.openvino.request import AS_INT32, THREADS, SharedModel, fits, kernel_of, port_of_name
from collage.toolchains.sdk.import_probe import NOT_INSTALLED, import_failure, install_command
from collage.toolchains.sdk.model_files import (
    check_options,
    elem_type,
    load_threads,
    one_line,
    refuse_operators,
    support_of,
    values_of,
)
from collage.toolchains.sdk.precisions import NARROW_BITS
from collage.toolchains.sdk.profiler_names import BODY, TokenisedKernel, input_token, tokenised, tokens_in

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains._contract import Kernel, Tensor

__all__ = ["OpenVinoToolchain"]

_FLOATS = ("f32", "bf16")
_OPTIONS: OptionValues = {
    "threads": None,
    "precision": ("f32", "bf16", "f16", "int8", *NARROW_BITS, "default"),
    "exempt": None,
    "floats": tuple(_FLOATS),
}
_NATIVE = {"bf16": ("avx512_bf16", "amx_bf16"), "f16": ("avx512_fp16", "amx_fp16")}
"""Instruction sets, by /proc/cpuinfo's names, without which a precision is emulated, and slower than f32."""
_LEAST_BITS = 32
"""Bits of integers that may be lengths."""
_OF_NO_PARTS = ("Concat", "ConstantOfShape")
_TOLD_NOTHING = ("Expand", "Reduce", "Reshape", "Resize")
"""Beginnings of operators that do the right thing where an input after the first has no elements."""

_RECURRENT = frozenset(("GRU", "LSTM", "RNN"))
_RECURRENT_LAYER = "RNNSeq"
"""Their type in the plugin's graph."""

_TELEMETRY = "openvino_telemetry"
"""The package with which OpenVINO reports on its use. If it cannot be imported, a stub of OpenVINO's own takes its place."""
_ALLOWED = "COLLAGE_OPENVINO_TELEMETRY"
"""An environment variable: with the value 1, OpenVINO may report."""

_WITHOUT = () if os.environ.get(_ALLOWED) == "1" else (_TELEMETRY,)
for _package in _WITHOUT:
    sys.modules.setdefault(_package, None)  # type: ignore[arg-type]  # So Python refuses to import it.


class OpenVinoToolchain(ToolchainBase):
    """Compiles and runs kernels with OpenVINO's CPU plugin."""

    name = "openvino"
    targets = ("llvm -compiler=openvino",)
    # Not TopK: two runs that it refuses, for a number of 0, corrupt the memory of the process. Not OneHot: it takes a depth of 0.
    # Not CumSum: kernels of fixed shapes must not fail, see ``request``.
    checks_sizes_of = ("ConstantOfShape", "GatherElements", "Pad", "Slice", "Trilu")
    reads_contributed = True
    options = {
        "threads": "number of threads (default: one for each physical core)",
        "precision": "f32, bf16 or f16: the type that floating-point operators may compute in; int8: calibrated 8-bit "
        "integers in convolutions, matrix products and operators between them; w8 or w4: weights of matrix products of few rows "
        "in 8 or 4 bits (default f32); default: what OpenVINO takes by itself on this machine",
        "exempt": "with int8: number of the model's most sensitive parts that stay in float32; set by the search",
        "floats": "with int8: f32 or bf16, the type that parts in floats may compute in (default f32); with bf16: f32 keeps "
        "residual sums and normalisations in float32",
    }

    def availability(self) -> Availability:
        """Version and build number, without importing it in this process."""
        try:
            distribution = importlib.metadata.distribution("openvino")
        except importlib.metadata.PackageNotFoundError:
            return Availability(False, reason=NOT_INSTALLED, remedy=install_command("openvino"))
        if (reason := import_failure("openvino", without=_WITHOUT)) is not None:
            return Availability(False, reason=reason, remedy=install_command("openvino", again=True))
        number = re.search(r"^Build: (\S+)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
        build = f"openvino {distribution.version}" + (f"-{number[1]}" if number else "")
        flags = this_machine().flags
        faster = [precision for precision, needed in _NATIVE.items() if any(flag in flags for flag in needed)]
        # Elsewhere 8-bit products are no faster than f32 ones.
        faster += ["int8", *NARROW_BITS] if this_machine().multiplies_bytes_at_once else []
        return Availability(
            True, distribution.version, build, ("CPU",), precisions=tuple(faster), compact=("int8", *NARROW_BITS)
        )

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes."""
        return _OPTIONS

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Worth trying, unless a type speaks against it."""
        from collage.toolchains.openvino.known_wrong import known_wrong

        return support_of(_refuse_misread, node, lambda node: known_wrong(node) or computes_beyond(node, LIMITS[-1]))

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Write the kernel, convert it once, and ask the plugin whether it takes every operator."""
        # Late: they import onnx_ir, which loading does not need.
        from collage.toolchains.openvino.known_wrong import known_wrong
        from collage.toolchains.openvino.reduced import save_as

        _check(target)
        _refuse_misread(values_of(kernel.graph))
        refuse_operators(known_wrong, kernel.graph)
        limits = _limits(kernel.graph)
        files, in_floats = save_as(target.option("precision"), kernel, workspace)
        model = _read(workspace / files[0])
        _refuse_changed(model, kernel.graph)
        _refuse_handed_through(model, kernel.graph)
        with THREADS.noticed():
            _query(model)
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        indices = [i for i, v in enumerate(kernel.graph.inputs) if is_place(v)]
        by_values = any(_decides_by_values(node) for node in kernel.graph.all_nodes())
        metadata = {"model": files[0], "indices": indices, "limits": limits} | (
            ({IN_FLOATS: in_floats} if in_floats else {})
            | ({"by_values": True} if by_values else {})
            | ({} if model.is_dynamic() else {"fixed": True})
        )
        return Compiled(self.name, str(target), files, inputs, outputs, portable=True, metadata=metadata)

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Compile the kernel with the plugin, and make one request."""
        _check(target)
        config, keeps = _config(target, options), _keeps_sums(target)

        def compiler() -> Any:
            with THREADS.noticed():
                return _compile(workspace / compiled.metadata["model"], config, keeps)

        key = self.name, compiled.metadata["model"], keeps, tuple(config.items())
        model = options.once(key, lambda: SharedModel(compiler))
        # Threads that the plugin pins itself stay on their processors.
        return kernel_of(model, compiled, None if options.exclusive else THREADS)

    def profile(
        self, compiled: Compiled, target: Target, workspace: Path, inputs: Sequence[Tensor], repeats: int
    ) -> Mapping[tuple[int, ...], float]:
        """Seconds by node, from OpenVINO's performance counters."""
        _check(target)
        with tokenised(workspace / compiled.metadata["model"]) as copy:
            config = _config(target, LoadOptions(exclusive=True)) | {"PERF_COUNT": True}
            model = _compile(copy.path, config, _keeps_sums(target))
            request = model.create_infer_request()
            ports = port_of_name(model)
            feeds = {ports[input_token(i)]: x for i, x in enumerate(inputs) if input_token(i) in ports}
            request.infer(feeds)
            origins = _origins(model, copy, {entry.node_name for entry in _executed(request)})
            samples: list[Mapping[tuple[int, ...], float]] = []
            for _ in range(repeats):
                request.infer(feeds)
                samples.append(_seconds_per_step(request, origins))
        return copy.in_kernel({step: statistics.median(run.get(step, 0.0) for run in samples) for step in samples[0]})


def _check(target: Target) -> None:
    check_options(target, _OPTIONS)
    precision, floats = target.option("precision"), target.option("floats")
    if floats is not None and precision != "int8" and (precision, floats) != ("bf16", "f32"):
        raise TargetError(
            f"target {str(target)!r}: -floats sets the type of operators that -precision=int8 leaves in floats, and "
            "-floats=f32 that of sums and normalisations beside -precision=bf16; name both"
        )


def _keeps_sums(target: Target) -> bool:
    """Return True if residual sums and normalisations stay in float32."""
    return target.option("precision") == "bf16" and target.option("floats") == "f32"


def _config(target: Target, options: LoadOptions) -> dict[str, Any]:
    """Properties for the plugin: its best settings for latency, in the target's precision."""
    precision = target.option("precision") or "f32"
    floats = precision if precision in _NATIVE else target.option("floats") or "f32"
    config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if precision != "default":
        config["INFERENCE_PRECISION_HINT"] = floats
    if floats == "f32" and precision != "default":
        config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    threads = load_threads(target, options)
    if threads and options.streams > 1:
        # One model serves all streams: its weights are in memory, and in the caches, once.
        config |= {"NUM_STREAMS": options.streams, "INFERENCE_NUM_THREADS": options.streams * threads}
        del config["PERFORMANCE_HINT"]
    elif threads:
        config["INFERENCE_NUM_THREADS"] = threads
    if not options.exclusive:
        config["ENABLE_CPU_PINNING"] = False
    return config


@functools.cache
def _core() -> Any:
    import openvino as ov

    core = ov.Core()
    core.set_property("CPU", {"LOG_LEVEL": "LOG_NONE"})
    return core


def _read(path: Path) -> Any:
    try:
        return _core().read_model(path)
    except Exception as error:
        refusal = Unsupported(f"openvino cannot convert the kernel: {one_line(error)}")
    try:
        # Operators that it knows only by their definition, it converts from memory and not from files.
        return _core().read_model(path.read_bytes())
    except Exception as error:
        raise refusal from error


def _query(model: Any) -> None:
    try:
        taken = _core().query_model(model, "CPU")
    except Exception as error:
        raise Unsupported(f"openvino: {one_line(error)}") from error
    refused = {op.get_type_name() for op in model.get_ops() if op.get_friendly_name() not in taken}
    if refused:
        raise Unsupported(f"openvino's CPU plugin does not take {', '.join(sorted(refused))}")


def _compile(path: Path, config: Mapping[str, Any], keeps_sums: bool = False) -> Any:
    model = _read(path)
    try:
        if keeps_sums:
            from collage.toolchains.openvino.kept_floats import marked

            model = marked(_core(), model)
        compiled = _core().compile_model(model, "CPU", config)
    except Exception as error:
        raise CompileError(f"openvino: {one_line(error)}") from error
    note_model(_core(), compiled, config)
    return compiled


def _refuse_misread(values: Iterable[ir.Value]) -> None:
    """Refuse operators that OpenVINO would compute wrongly without an error.

    It computes float64 in float32, 64-bit integers in 32 bits (end markers of Slice excepted: these it clamps), has no
    strings, and reads a constant of no elements as a scalar.
    """
    for value in values:
        dtype = elem_type(value)
        if dtype is not None and dtype.name in ("DOUBLE", "STRING", "COMPLEX64", "COMPLEX128"):
            raise Unsupported(f"openvino's CPU plugin does not compute in {dtype.name.lower()} ({value.name!r})")
        tensor = value.const_value
        if tensor is None or dtype is None:
            continue
        if tensor.size == 0 and not _is_read_as_nothing(value):
            raise Unsupported(f"openvino reads a constant of no elements as a scalar ({value.name!r})")
        if dtype.name.lower() not in AS_INT32:
            continue
        if not fits(tensor.numpy()) and any(user.op_type != "Slice" for user, _ in value.uses()):
            raise Unsupported(f"openvino's CPU plugin computes {dtype.name.lower()} in 32 bits ({value.name!r})")


def _decides_by_values(node: ir.Node) -> bool:
    """Return True if lengths of results may depend on the values that an operator makes, or on those that it reads."""
    from collage.graph import follows_from_lengths

    types = [(value, elem_type(value)) for value in node.outputs]
    # The positions that Unique returns may be left out. All other lengths follow from integers, or from conditions.
    return node.op_type == "Unique" or any(
        (dtype is None or dtype == dtype.BOOL or (dtype.is_integer() and dtype.bitwidth >= _LEAST_BITS))
        and not follows_from_lengths(value)
        for value, dtype in types
    )


def _is_read_as_nothing(constant: ir.Value) -> bool:
    """Return True if an empty constant is only used as a list of parts, lengths, axes or regions."""
    return not constant.is_graph_output() and all(
        user.op_type in _OF_NO_PARTS or (place > 0 and user.op_type.startswith(_TOLD_NOTHING))
        for user, place in constant.uses()
    )


def _refuse_changed(model: Any, graph: ir.Graph) -> None:
    """Refuse a converted model whose inputs or outputs have other types or shapes than the kernel's."""
    import onnx_ir as ir

    names = {name: port for port in model.inputs for name in port.get_names()}
    pairs = [(value, names[value.name]) for value in graph.inputs if value.name in names]
    pairs += zip(graph.outputs, model.outputs, strict=True)
    for value, _ in pairs:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            raise Unsupported(f"openvino's Python interface takes tensors, not {value.type} ({value.name!r})")
    for value, port in pairs:
        expected, got = elem_type(value), port.get_element_type()
        if expected is None:
            continue
        if expected.numpy().isbuiltin != 1:
            raise Unsupported(f"openvino's Python interface does not take {expected.short_name()} ({value.name!r})")
        if expected.numpy() != got.to_dtype():
            raise Unsupported(f"openvino converts {value.name!r} from {expected.short_name()} to {got.get_type_name()}")
        if value.shape is not None and not _agree(value.shape, port.partial_shape):
            raise Unsupported(
                f"openvino changes the shape of {value.name!r} from {value.shape} to {port.partial_shape}"
            )


def _agree(shape: ir.Shape, got: Any) -> bool:
    """Return True if the rank is the same, and every size that both know."""
    if got.rank.is_dynamic:
        return True
    pairs = zip(shape, got, strict=False)
    return len(shape) == len(got) and all(
        size == axis.get_length() for size, axis in pairs if isinstance(size, int) and axis.is_static
    )


def _refuse_handed_through(model: Any, graph: ir.Graph) -> None:
    """Refuse inputs that are outputs under another name, as a ``Sum`` of one input is: the plugin takes one for the other."""
    given, made = ({str(value.name) for value in values} for values in (graph.inputs, graph.outputs))
    for port in model.inputs:
        names = port.get_names()
        if names & (made - given) or not names & given:
            raise Unsupported(f"openvino confuses inputs with the outputs that they are handed through as ({names})")


def _limits(graph: ir.Graph) -> list[int]:
    """The largest magnitude of each input with which no operator of a kernel exceeds the range of its type.

    Raises:
        Unsupported: No limit of inputs is small enough.
    """
    nodes = list(graph.all_nodes())
    limit = next((each for each in LIMITS if not any(computes_beyond(node, each) for node in nodes)), None)
    if limit is None:
        refuse_operators(lambda node: computes_beyond(node, LIMITS[-1]), graph)
        raise AssertionError("what is refused at a limit is refused")
    limits = dict.fromkeys(graph.inputs, limit)
    for value in filter(has_32_bits, graph.inputs):
        for wider in LIMITS[: LIMITS.index(limit)]:
            given = limits | {value: wider}
            if not any(computes_beyond(node, limit, given) for node in nodes):
                limits = given
                break
    return list(limits.values())


def _origins(model: Any, copy: TokenisedKernel, executed: Collection[str]) -> Mapping[str, tuple[int, ...]]:
    """Name of a layer that is executed to the kernel's nodes that it computes. Layers of constants alone are not executed."""
    found: dict[str, Sequence[int]] = {}
    recurrent = []
    for op in model.get_runtime_model().get_ordered_ops():
        info, name = op.get_rt_info(), op.get_friendly_name()
        text = info["originalLayersNames"].astype(str) if "originalLayersNames" in info else ""
        if name not in executed:
            continue
        if tokens := tokens_in(text) or tokens_in(name):
            found[name] = tokens
        elif "layerType" in info and info["layerType"].astype(str) == _RECURRENT_LAYER:
            recurrent.append(name)
    # A convolution whose result is scaled is known by what scales it; it is nowhere else in the graph.
    told = {index for tokens in found.values() for index in tokens}
    # Recurrent layers have names of the plugin's own.
    layers = [index for index, op_type in enumerate(copy.op_types) if op_type in _RECURRENT and index not in told]
    if len(layers) == len(recurrent):
        found |= {name: [index] for name, index in zip(recurrent, layers, strict=True)}
        told |= {*layers}
    return {name: copy.step(tokens, told) for name, tokens in found.items()}


def _executed(request: Any) -> list[Any]:
    """The layers that the last run executed, with their times."""
    return [entry for entry in request.get_profiling_info() if entry.status == entry.Status.EXECUTED]


def _seconds_per_step(request: Any, origins: Mapping[str, tuple[int, ...]]) -> Mapping[tuple[int, ...], float]:
    """One run's times by step; a node of the plugin's own (a reorder) counts with the step before it."""
    sums: dict[tuple[int, ...], float] = defaultdict(float)
    current = min(origins.values(), default=None)
    for entry in _executed(request):
        if BODY in entry.node_name:
            continue
        current = origins.get(entry.node_name, current)
        if current is not None:
            sums[current] += entry.real_time.total_seconds()
    return sums
