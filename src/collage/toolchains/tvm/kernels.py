"""Kernels on TVM for the processor: from ONNX to Relax, to a shared library, to something that can be called."""

from __future__ import annotations

import functools
import logging
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import CompileError, Unsupported
from collage.toolchains._contract import Availability, Compiled
from collage.toolchains.sdk.aligned_memory import ALIGNMENT_BYTES
from collage.toolchains.sdk.import_probe import NOT_INSTALLED, import_failure, install_command, is_alone
from collage.toolchains.sdk.model_files import one_line, refuse_operators, usable_cores, values_of
from collage.toolchains.sdk.openmp import quiet_threads
from collage.toolchains.sdk.profiler_names import node_token, places_of, with_names
from collage.toolchains.tvm.int64_lengths import compute_lengths_in_64_bits
from collage.toolchains.tvm.known_wrong import is_plain, known_wrong, misread, refuse_types, summed_up
from collage.toolchains.tvm.length_forms import Form, value_of
from collage.toolchains.tvm.runtime_library import load_main, new_tensor, runtime, tvm_build
from collage.toolchains.tvm.threads import build_threads, threads_in
from collage.toolchains.tvm.weight_files import mapped_weights

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains._contract import Tensor
    from collage.toolchains.tvm.profiler import Call

__all__ = [
    "BFLOAT16",
    "LEVELS",
    "MachineKernel",
    "add_threads",
    "build_library",
    "check_legal",
    "context",
    "import_kernel",
    "link",
    "machine_facts",
    "tvm_availability",
    "tvm_target",
]

_logger = logging.getLogger(__name__)

LEVELS = ("0", "1", "2", "3")
"""Values of the option ``opt-level``."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Channels last, and loops of our own, until TVM compiles the module: the fastest first.
_ATTEMPTS = ((True, True), (False, True), (True, False), (False, False))
# To ask NumPy where a tensor begins takes 1.6 us, to copy 32 KiB of one as long.
_COPIED_BYTES = 32 << 10
_HALVES = "avx512fp16"
BFLOAT16 = "bfloat16"
"""Key of a kernel's metadata: the places of inputs, and of outputs, of which TVM sees the bits."""
_COMPILERS = ("g++", "gcc", "clang++", "clang")


class MachineKernel:
    """The entry function of a library, called with tensors that share NumPy's memory where its alignment allows.

    With symbolic lengths it refuses empty inputs where TVM's code is wrong for them: see ``machine_facts``.

    Args:
        folder: The folder of its files.
        compiled: The record of the compiled kernel. Its first file is the library.
        threads: Number of threads to compute with.
        exclusive: True if its threads may wait awake for the next run. False if another runtime needs their processors.
        instrument: See ``load_main``.
    """

    reuses_outputs = False
    # Outputs that TVM does not allocate in each call are known, and copied: see ``noting_lent_outputs``.
    allocates_outputs = True

    def __init__(
        self,
        folder: Path,
        compiled: Compiled,
        threads: int,
        exclusive: bool,
        instrument: Callable[..., int] | None = None,
    ) -> None:
        self._count = threads
        self._exclusive = exclusive
        library = folder / compiled.files[0]
        ffi = runtime()
        self._from_dlpack = functools.partial(
            ffi.from_dlpack, require_alignment=ALIGNMENT_BYTES, require_contiguous=True
        )
        self._main = load_main(library, instrument)
        self._threads = threads_in(folder, compiled.files)
        self._threads.drive(library)
        self._weights = mapped_weights(folder, compiled.files, compiled.metadata.get("weights", ()))
        self._lent = compiled.metadata["lent"]
        self._refuses_empty = compiled.metadata.get("refuses_empty", True)
        self.takes_empty = compiled.metadata.get("takes_empty") is True
        self._has_empty = False
        self._may_be_0, self._may_be_0_if_empty = compiled.metadata.get("sums", ((), ()))
        self._multiples = compiled.metadata.get("multiples", [])
        self._words, self._results_in_words = compiled.metadata.get(BFLOAT16, ((), ()))
        self._shape = ffi.Shape
        self._is_tuple = len(compiled.outputs) > 1
        self._bound: list[tuple[Tensor, Any] | None] = [None] * len(compiled.inputs)
        self._staged: list[tuple[Tensor, Any] | None] = [None] * len(compiled.inputs)

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run the module."""
        self._has_empty = False
        given = [self._tensor(i, x) for i, x in enumerate(inputs)]
        if self._may_be_0 or self._has_empty:
            self._refuse_sums_of_nothing(inputs)
        if self._multiples:
            given.append(self._counts(inputs))
        self._threads.use(self._count)
        try:
            result = self._main(*given, *self._weights)
        finally:
            if not self._exclusive:
                self._threads.rest()
        outputs: list[Tensor] = [np.from_dlpack(y) for y in (result if self._is_tuple else (result,))]
        for i in self._lent:
            outputs[i] = outputs[i].copy()
        for i in self._results_in_words:
            outputs[i] = outputs[i].view(_bfloat16())
        return outputs

    def _refuse_sums_of_nothing(self, inputs: Sequence[Tensor]) -> None:
        shapes = [x.shape for x in inputs]
        lengths = (*self._may_be_0, *(self._may_be_0_if_empty if self._has_empty else ()))
        if (self._has_empty and self._refuses_empty) or any(value_of(length, shapes) <= 0 for length in lengths):
            raise Unsupported(
                f"tvm's code sums or divides lengths, and is wrong for no elements (its inputs are {', '.join(map(str, shapes))})"
            )

    def _counts(self, inputs: Sequence[Tensor]) -> Any:
        """Return how many times the sides of images are what they must be multiples of."""
        counts = []
        for i, axis, step in self._multiples:
            count, rest = divmod(inputs[i].shape[axis], step)
            if rest:
                raise Unsupported(
                    f"tvm's code takes lengths that are multiples of {step} (an input is {inputs[i].shape})"
                )
            counts.append(count)
        return self._shape(counts)

    def _tensor(self, i: int, x: Tensor) -> Any:
        bound = self._bound[i]
        if bound is not None and bound[0] is x:
            return bound[1]
        given, flags = x, x.flags
        if i in self._words:
            x = x.view(np.uint16)
        if x.nbytes <= _COPIED_BYTES or not (flags.c_contiguous and flags.writeable) or x.ctypes.data % ALIGNMENT_BYTES:
            return self._stage(i, x)
        tensor = self._from_dlpack(x)
        self._bound[i] = (given, tensor)
        return tensor

    def _stage(self, i: int, x: Tensor) -> Any:
        """Copy an input to where TVM takes it."""
        if not x.size:
            self._has_empty = True
        staged = self._staged[i]
        if staged is None or staged[0].shape != x.shape or staged[0].dtype != x.dtype:
            tensor = new_tensor(x.shape, x.dtype.name)
            staged = self._staged[i] = (np.from_dlpack(tensor), tensor)
        np.copyto(staged[0], x)
        return staged[1]


def _bfloat16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16


def tvm_availability(*, with_torch: bool = False) -> Availability:
    """Version of the wheel, whether there is a linker, and whether TVM can be imported, without importing it here.

    Args:
        with_torch: True if the calling toolchain also uses torch.
    """
    if (installed := tvm_build()) is None:
        return Availability(False, reason=NOT_INSTALLED, remedy=install_command("tvm"))
    version, build = installed
    if not any(map(shutil.which, _COMPILERS)):
        reason = "no C++ compiler, which links TVM's kernels"
        return Availability(False, version, build, reason=reason, remedy="install g++ or clang")
    if (broken := import_failure("tvm", _tvm_alone if is_alone() and not with_torch else _tvm)) is not None:
        remedy = install_command("tvm", again=True)
        return Availability(False, version, build, reason=broken, remedy=remedy)
    return Availability(True, version, build, ("CPU",))


def _tvm() -> Any:
    """TVM, with Relax; takes seconds the first time."""
    # It imports torch where there is one, which later kernels may be torch's own.
    with quiet_threads():
        import tvm
        import tvm.relax

    return tvm


def _tvm_alone() -> Any:
    """TVM in a process that has no other use for torch, whose import takes longer than its own."""
    if "torch" in sys.modules:
        return _tvm()
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        return _tvm()
    finally:
        del sys.modules["torch"]


def machine_facts(
    graph: ir.Graph,
    lent: Sequence[int],
    multiples: Sequence[Sequence[int]] = (),
    sums: Sequence[Sequence[Form]] | None = None,
) -> dict[str, Any]:
    """Return the metadata of a kernel that ``MachineKernel`` needs.

    Empty inputs are refused where TVM never writes sums over no elements, and where it may round quotients of lengths down, and
    ONNX towards 0: the two differ if a length is 0.

    Args:
        graph: The graph of the kernel.
        lent: See ``build_library``.
        multiples: See ``multiples_of``.
        sums: See ``lengths_of_sums``.
    """
    import onnx_ir as ir

    summed = [x for node in graph for x in summed_up(node.op_type, node.inputs)]
    is_open = any(x.shape is None or not all(isinstance(length, int) for length in x.shape) for x in summed)
    divides = any(
        node.op_type == "Div" and node.outputs[0].dtype in (None, ir.DataType.INT64) for node in graph.all_nodes()
    )
    refuses = divides or (is_open and sums is None)
    facts: dict[str, Any] = {"lent": lent, "refuses_empty": refuses}
    if not refuses and all(map(is_plain, graph.all_nodes())):
        facts["takes_empty"] = True
    if sums is not None and any(sums):
        facts["sums"] = sums
    return {**facts, "multiples": multiples} if multiples else facts


def import_kernel(kernel: ir.Model, workspace: Path, goal: Any, read: Callable[[Any], Any] | None = None) -> Any:
    """The kernel as a Relax module, weights bound as constants.

    Args:
        kernel: The kernel.
        workspace: The folder of its weights.
        goal: TVM's target, which is the current one while the kernel is imported.
        read: Makes a module of an ONNX proto; the importer of native kernels unless given.

    Raises:
        Unsupported: TVM does not take it, or takes it and computes something else.
    """
    refuse_types(values_of(kernel.graph))
    refuse_operators(known_wrong, kernel.graph)
    refuse_operators(misread, kernel.graph)
    import onnx_ir as ir
    from onnx.external_data_helper import load_external_data_for_model

    _tvm()
    from collage.graph import bodies, copy_model
    from collage.toolchains.tvm.importer import import_onnx

    copy = copy_model(kernel)
    places = places_of([*copy.graph])
    for place, node in zip(places, copy.graph, strict=True):
        for named in (node, *(inner for body in bodies(node) for inner in body.all_nodes())):
            named.name = node_token(place)
    compute_lengths_in_64_bits(copy.graph)
    _give_plain_names(copy.graph)
    proto = ir.to_proto(copy)
    load_external_data_for_model(proto, str(workspace))
    try:
        with warnings.catch_warnings(action="ignore"), goal:
            return (read or import_onnx)(proto)
    except Exception as error:
        told = with_names(
            one_line(error), {place: str(node.name) for place, node in zip(places, kernel.graph, strict=True)}
        )
        raise Unsupported(f"tvm cannot import the kernel: {told}") from error


def _give_plain_names(graph: ir.Graph) -> None:
    """Give inputs and symbolic lengths names that generated code can have.

    Each length of an input that has no symbol gets one, since TVM takes all such lengths for the same.
    """
    import onnx_ir as ir

    graphs = [graph, *graph.subgraphs()]
    values = [value for each in graphs for value in (*each.inputs, *each.initializers.values())]
    values += [output for node in graph.all_nodes() for output in node.outputs]
    taken = {str(value.name) for value in values}
    taken |= {str(length) for value in values if value.shape is not None for length in value.shape}
    symbols: dict[object, str] = {}

    def plain(length: int | ir.SymbolicDim, owner: tuple[ir.Value, int] | None) -> int | str | None:
        if isinstance(length, int):
            return length
        key = owner if length.value is None else str(length.value)
        if key is None or (isinstance(key, str) and _IDENTIFIER.fullmatch(key)):
            return key
        if key not in symbols:
            symbols[key] = unused(f"n{len(symbols)}")
        return symbols[key]

    def unused(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    for value in values:
        if value.shape is not None:
            is_input = value in graph.inputs
            value.shape = ir.Shape(
                [plain(length, (value, axis) if is_input else None) for axis, length in enumerate(value.shape)]
            )
    for i, value in enumerate(graph.inputs):
        if not _IDENTIFIER.fullmatch(str(value.name)):
            value.name = unused(f"in_{i}")


def tvm_target(target: Target) -> Any:
    """TVM's own target for this machine's processor.

    Without its arithmetic of half precision, in which LLVM makes one rounding of a product and a sum.
    """
    tvm = _tvm()
    facts: dict[str, Any] = {
        "kind": "llvm",
        "mcpu": tvm.target.codegen.llvm_get_system_cpu(),
        "num-cores": int(target.option("threads") or usable_cores()),
    }
    made = tvm.target.Target(facts)
    if tvm.target.codegen.target_has_features(_HALVES, made):
        made = tvm.target.Target({**facts, "mattr": [f"-{_HALVES}"]})
    return made


def context(target: Target) -> Any:
    """TVM's settings while it compiles."""
    return _tvm().transform.PassContext(opt_level=int(target.option("opt-level") or "3"))


def build_library(
    module: Any,
    target: Target,
    library: Path,
    records: Mapping[str, str] | None = None,
    calls: list[Call] | None = None,
    weights: list[np.ndarray[Any, Any]] | None = None,
) -> Sequence[int]:
    """Schedules a Relax module, generates its code and links a shared library; which outputs lie in memory not theirs alone.

    Args:
        module: The module.
        target: Whose options count.
        library: The file to write.
        records: Tuning results by workload.
        calls: Becomes the calls of loops: see ``profiler.noting_calls``.
        weights: Becomes the large weights, which are further arguments of the library's entry function then. None leaves all
            of them in the library.

    Raises:
        CompileError: TVM, or the compiler that links, failed.
    """
    tvm = _tvm()
    from collage.toolchains.tvm.loop_objects import objects_pipeline
    from collage.toolchains.tvm.pipeline import loops_pipeline, pipeline

    goal = tvm_target(target)
    lent: list[int] = []
    objects: list[bytes] = []
    loops = objects_pipeline(loops_pipeline(), objects, library.parent)
    noted = [] if calls is None else calls
    tuned = []
    if records:
        from collage.toolchains.tvm.metaschedule import apply_records

        tuned = [apply_records(records, goal)]
    try:
        with goal, context(target):
            failures: list[Exception] = []
            for channels_last, own_loops in _ATTEMPTS:
                passes = pipeline(
                    goal, lent, noted, weights, channels_last=channels_last, own_loops=own_loops, tuned=tuned
                )
                try:
                    built = tvm.compile(module, target=goal, relax_pipeline=passes, tir_pipeline=loops)
                    break
                except Exception as error:
                    failures.append(error)
                    if len(failures) == len(_ATTEMPTS):
                        raise
    except Exception as error:
        raise CompileError(f"tvm: {one_line(error)}") from error
    for failure in failures:
        _logger.warning("slower loops are used: %s: %s", type(failure).__name__, one_line(failure))
    link(built, library, objects)
    return lent


def check_legal(module: Any, target: Target) -> None:
    """Legalise a Relax module, without generating code. No operator must be left: TVM leaves those of unknown shape.

    Raises:
        CompileError: One is left, or TVM failed.
    """
    tvm = _tvm()
    from collage.toolchains.tvm.pipeline import front

    goal = tvm_target(target)
    left: list[str] = []

    def note(call: Any) -> None:
        is_operator = isinstance(call, tvm.relax.Call) and isinstance(call.op, tvm.ir.Op)
        if is_operator and call.op.name != "relax.call_tir" and call.op.has_attr("FLegalize"):
            left.append(str(call))

    try:
        with goal, context(target):
            lowered = front(goal, channels_last=False)(module)
        for function in lowered.functions.values():
            if isinstance(function, tvm.relax.Function):
                tvm.relax.analysis.post_order_visit(function, note)
    except Exception as error:
        raise CompileError(f"tvm: {one_line(error)}") from error
    if left:
        raise CompileError(f"tvm: {left[0]}")


def add_threads(library: Path) -> str:
    """Write the library of threads that a kernel for the processor needs beside its library. Return the name of its file.

    Raises:
        CompileError: The compiler failed, or there is none.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise CompileError("tvm: there is no C++ compiler")
    return build_threads(library, compiler)


def link(built: Any, library: Path, objects: Sequence[bytes] = ()) -> None:
    """Write TVM's build as a shared library. The file appears complete or not at all.

    Args:
        built: TVM's build.
        library: The file to write.
        objects: Object files that become part of it.

    Raises:
        CompileError: The compiler that links failed.
    """
    draft = library.with_name(f"{library.stem}.{os.getpid()}.draft.so")
    try:
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            files = [Path(folder, f"{i}.o") for i in range(len(objects))]
            for file, content in zip(files, objects, strict=True):
                file.write_bytes(content)
            built.export_library(str(draft), addons=[str(file) for file in files])
        draft.replace(library)
    except Exception as error:
        raise CompileError(f"tvm: {one_line(error)}") from error
    finally:
        draft.unlink(missing_ok=True)
