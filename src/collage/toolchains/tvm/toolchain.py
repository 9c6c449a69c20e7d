"""TVM's native code generator: Relax from the ONNX importer, operators fused by rule, scheduled without tuning.

Its compiled form is a shared library for this machine's processor, with large weights beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import CompileError, Unsupported
from collage.system.machine import this_machine
from collage.toolchains._base import ToolchainBase
from collage.toolchains._contract import (
    IN_FLOATS,
    READ_BYTES,
    TUNED,
    Availability,
    Compiled,
    LoadOptions,
    Support,
    TuningSession,
)
from collage.toolchains.sdk.model_files import (
    MAPPED_WEIGHTS,
    check_options,
    kernel_name,
    load_threads,
    one_line,
    usable_cores,
)
from collage.toolchains.sdk.precisions import NARROW_BITS
from collage.toolchains.sdk.profiler_names import ranks_of, step_of
from collage.toolchains.tvm.bfloat16 import is_border_cast, places_of_bfloat16, with_words
from collage.toolchains.tvm.kernels import (
    BFLOAT16,
    LEVELS,
    MachineKernel,
    add_threads,
    build_library,
    check_legal,
    context,
    import_kernel,
    machine_facts,
    tvm_availability,
    tvm_target,
)
from collage.toolchains.tvm.known_wrong import support
from collage.toolchains.tvm.runtime_library import loading_availability
from collage.toolchains.tvm.weight_files import write_weights

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains._contract import Kernel, OptionValues, Tensor
    from collage.toolchains.tvm.profiler import Call

__all__ = ["TvmToolchain"]

_OPTIONS: OptionValues = {
    "threads": None,
    "opt-level": LEVELS,
    "precision": ("f32", *NARROW_BITS),
    "trials": None,
    "seed": None,
}


class TvmToolchain(ToolchainBase):
    """Compiles kernels with TVM's own code generator for the CPU."""

    name = "tvm"
    targets: tuple[str, ...] = ("llvm",)
    checks_sizes_of = ("Slice",)
    options = {
        "threads": "number of threads (default: one for each physical core); one number for the whole process",
        "precision": "f32; w8 or w4: matrix products of few rows read weights of 8 or 4 bits",
        "opt-level": "0 to 3: TVM's own optimisation level (default 3)",
        "trials": "schedules that tuning measures for each loop nest; such targets come from --tune",
        "seed": "decides which schedules tuning tries",
    }
    optimises_whole_graphs = False

    def availability(self) -> Availability:
        """Version of the wheel, whether there is a linker, and whether TVM can be imported."""
        found = tvm_availability()
        narrow = tuple(NARROW_BITS)
        return replace(found, precisions=narrow if "avx2" in this_machine().flags else (), compact=narrow)

    def loading_availability_of(self, target: Target) -> Availability:
        """The runtime of compiled kernels on the processor, which needs no compiler."""
        return loading_availability()

    def option_values(self, target: Target) -> OptionValues:
        """Return the values that each option takes."""
        return _OPTIONS

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Worth trying, unless a type speaks against it."""
        from collage.toolchains.tvm.stored_weights import refuse_stored

        if (reason := refuse_stored(node)) is not None:
            return Support(False, reason)
        found = support(node)
        return found if found.ok or not is_border_cast(node) else Support(True)

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Import, fuse, schedule and generate code, link a shared library, and write large weights beside it."""
        check_options(target, _OPTIONS)
        name = kernel_name(kernel)
        records = _records(kernel, target)
        module, in_floats = _imported(kernel, target, workspace)
        # By target, since a process that has loaded a library gets the same one again under the same name.
        options = "".join(f".{option}={value}" for option, value in target.options)
        library = workspace / f"{name}{options}.so"
        calls: list[Call] = []
        weights: list[np.ndarray[Any, Any]] = []
        lent = build_library(module, target, library, records, calls, weights)
        from collage.toolchains.tvm.empty_sums import known_lengths_of_sums
        from collage.toolchains.tvm.multiples import multiples_of

        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        facts = machine_facts(kernel.graph, lent, multiples_of(module), known_lengths_of_sums(module))
        facts["calls"] = _steps(calls, kernel.graph)
        facts |= {IN_FLOATS: in_floats} if in_floats else {}
        narrow = [places_of_bfloat16(values) for values in (kernel.graph.inputs, kernel.graph.outputs)]
        facts |= {BFLOAT16: narrow} if any(narrow) else {}
        files = [library.name, add_threads(library)]
        if weights:
            facts["weights"] = write_weights(weights, library.with_suffix(MAPPED_WEIGHTS))
            facts[READ_BYTES] = _read_bytes(weights, kernel.graph)
            files.append(library.with_suffix(MAPPED_WEIGHTS).name)
        return Compiled(self.name, str(target), tuple(files), inputs, outputs, metadata=facts)

    def check_import(self, kernel: ir.Model, target: Target, workspace: Path) -> None:
        """Import a kernel into Relax and legalise it, which takes a tenth of the time of generating code."""
        check_legal(_imported(kernel, target, workspace)[0], target)

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Load the library into a virtual machine of Relax."""
        check_options(target, _OPTIONS)
        return MachineKernel(workspace, compiled, load_threads(target, options) or usable_cores(), options.exclusive)

    def profile(
        self, compiled: Compiled, target: Target, workspace: Path, inputs: Sequence[Tensor], repeats: int
    ) -> Mapping[tuple[int, ...], float]:
        """Seconds by node, from an instrument of the virtual machine that calls the loops."""
        check_options(target, _OPTIONS)
        from collage.toolchains.tvm.profiler import Stopwatch, seconds_by_step

        watch = Stopwatch()
        threads = load_threads(target, LoadOptions(exclusive=True)) or usable_cores()
        kernel = MachineKernel(workspace, compiled, threads, True, watch)
        for _ in range(repeats + 1):
            watch.runs.append([])
            kernel(inputs)
        return seconds_by_step(watch.runs[1:], compiled.metadata["calls"])

    def tuning_workloads(self, kernel: ir.Model, target: Target, workspace: Path) -> Sequence[str]:
        """Its loop nests with a reduction, whose tiles are guessed unless they are tuned."""
        return tuple(_tunable(kernel, target, workspace))

    def tune(self, kernel: ir.Model, target: Target, workspace: Path, session: TuningSession) -> Mapping[str, str]:
        """Measures schedules of every loop nest that is not known, within equal parts of the time."""
        check_options(target, self.option_values(target))
        from collage.toolchains.tvm.metaschedule import tune_all, use_tvm_threads

        with session.building():
            tunable = _tunable(kernel, target, workspace)
        use_tvm_threads(load_threads(target, LoadOptions(session.threads)) or usable_cores())
        trials, seed = int(target.option("trials") or "1"), int(target.option("seed") or "0")
        return tune_all(tunable, tvm_target(target), trials, seed, session)


def _imported(kernel: ir.Model, target: Target, workspace: Path) -> tuple[Any, list[int]]:
    """Return a kernel as a Relax module in the precision of a target, and the positions of products in floats all the same."""
    bits = NARROW_BITS.get(target.option("precision") or "")
    from collage.toolchains.tvm.stored_weights import use_stored_weights

    kernel = use_stored_weights(with_words(kernel))
    if bits is None:
        return import_kernel(kernel, workspace, tvm_target(target), _read), []
    from collage.graph import copy_model
    from collage.toolchains.sdk.int8_model import products_in_floats
    from collage.toolchains.tvm.narrow_products import use_narrow_weights

    narrowed = copy_model(kernel)
    use_narrow_weights(narrowed, bits)
    return import_kernel(narrowed, workspace, tvm_target(target), _read), products_in_floats(kernel, narrowed)


def _read_bytes(weights: Sequence[np.ndarray[Any, Any]], graph: ir.Graph) -> int:
    """Return the bytes of weights that a run reads, without tables of which it reads rows."""
    values = graph.initializers.values()
    tables = [
        list(value.const_value.shape.numpy())
        for value in values
        if value.const_value is not None and all(node.op_type == "Gather" and not place for node, place in value.uses())
    ]
    return sum(weight.nbytes for weight in weights if list(weight.shape) not in tables)


def _read(proto: Any) -> Any:
    from collage.toolchains.tvm.multiples import import_in_multiples

    return import_in_multiples(proto)


def _steps(calls: Sequence[Call], graph: ir.Graph) -> list[list[str | list[int]]]:
    """Return the function of each call, and the step that it is."""
    ranks = ranks_of(graph)
    return [[name, [*step_of(places, ranks)]] for name, places in calls if places]


def _records(kernel: ir.Model, target: Target) -> Mapping[str, str]:
    """Return the tuning records of a kernel; none if the target is not one of tuned code.

    Raises:
        Unsupported: It was not tuned.
        CompileError: Its metadata is not a set of records.
    """
    if target.option("trials") is None:
        return {}
    if TUNED not in kernel.metadata_props:
        raise Unsupported("tvm: the kernel was not tuned; use --tune")
    try:
        told = json.loads(kernel.metadata_props[TUNED])
    except ValueError as error:
        raise CompileError(f"tvm: tuning records that cannot be read: {error}") from None
    if not isinstance(told, dict) or not all(isinstance(text, str) for text in told.values()):
        raise CompileError("tvm: tuning records must be texts by workload")
    return told


def _tunable(kernel: ir.Model, target: Target, workspace: Path) -> Mapping[str, Any]:
    """The loop nests of a kernel that can be tuned, by name."""
    goal = tvm_target(target)
    module = import_kernel(with_words(kernel), workspace, goal, _read)
    from collage.toolchains.tvm.metaschedule import workloads
    from collage.toolchains.tvm.pipeline import front

    try:
        with goal, context(target):
            try:
                lowered = front(goal, channels_last=True)(module)
            except Exception:
                lowered = front(goal, channels_last=False)(module)
            return workloads(lowered, goal)
    except Exception as error:
        raise CompileError(f"tvm: {one_line(error)}") from error
