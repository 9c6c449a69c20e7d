"""Kernels on TVM for the processor: from ONNX to Relax, to a shared library, to something that can be called."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import CompileError, Unsupported
from collage.toolchains._contract import Availability, Compiled, Support
from collage.toolchains.sdk.aligned_memory import ALIGNMENT_BYTES
from collage.toolchains.sdk.import_probe import NOT_INSTALLED, import_failure, install_command, is_alone
from collage.toolchains.sdk.model_files import (
    elem_type,
    one_line,
    refuse_operators,
    support_of,
    usable_cores,
    values_of,
)
from collage.toolchains.sdk.openmp import quiet_threads
from collage.toolchains.tvm.runtime_library import load_main, new_tensor, runtime, tvm_build
from collage.toolchains.tvm.threads import use_threads

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains._contract import Tensor

__all__ = [
    "LEVELS",
    "MachineKernel",
    "build_library",
    "context",
    "import_kernel",
    "link",
    "support",
    "tvm_availability",
    "tvm_target",
]

LEVELS = ("0", "1", "2", "3")
"""Values of the option ``opt-level``."""

_COMPILERS = ("g++", "gcc", "clang++", "clang")
_TYPES = frozenset(
    ("FLOAT", "FLOAT16", "DOUBLE", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
)
"""Not bfloat16: NumPy's arrays of it do not speak DLPack."""

_EXACT_IN_HALF = frozenset(
    """
    Compress Concat DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Pad Reshape ScatterElements
    ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where
    ArgMax ArgMin Clip Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Max MaxPool Min ReduceMax ReduceMin Relu
    Sign TopK
    Abs Add Cast CastLike Ceil Cos Div Erf Exp Floor LeakyRelu Log Mod Mul Neg PRelu Pow Range Reciprocal Round Sin
    Softsign Sqrt Sub
    """.split()  # noqa: SIM905 - as a list of literals it would fill a page
)
"""Operators that yield the nearest float16. Generated code rounds between the steps of others: sums differ in the third
digit, ``Softplus`` is 0 where it should not be.
"""

_WRONG: Mapping[str, tuple[Callable[[ir.Node], bool], str]] = {
    "BatchNormalization": (
        lambda node: node.attributes.get_int("training_mode", 0) == 1,
        "ignores the training mode",
    ),
    "Dropout": (lambda node: _is_given(node, 2), "ignores the training mode"),
    "DynamicQuantizeLinear": (lambda node: True, "divides by 0 if all numbers are 0"),
    "Expand": (lambda node: _is_input(node, 1), "does not keep lengths if its shape is an input and contains 1"),
    "LayerNormalization": (lambda node: _uses_more_than_first(node), "computes only the first of its outputs"),
    "NonMaxSuppression": (lambda node: _varies(node, 2), "ignores a number of boxes that is not constant"),
    "OneHot": (lambda node: _gives_floats(node), "returns float64 instead of float32"),
    "ReduceMean": (lambda node: _is_of_integers(node), "returns wider integers than it reads"),
    "Resize": (lambda node: _scales_to_fractions(node), "recomputes its scales from lengths that were rounded"),
    "RoiAlign": (lambda node: node.attributes.get_string("mode", "avg") == "max", "computes other maxima than ONNX"),
    "ScatterElements": (
        lambda node: not _covers_other_axes(node),
        "writes to wrong positions if indices are shorter than the data",
    ),
}
"""Operators that TVM 0.27 imports and computes wrongly: the condition, and the fault. Found by ONNX's own tests."""

_NO_MERE_COPIES = frozenset(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"))
"""Reductions that change elements even if they reduce no axis."""

_MAY_WRAP = frozenset("Add CumSum Einsum Gemm MatMul Mul Neg Pow ReduceProd ReduceSum ReduceSumSquare Sub Sum".split())  # noqa: SIM905
"""Operators whose results may exceed the type of their inputs."""

_SUMS = frozenset(("Einsum", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "MatMul", "MatMulInteger", "QLinearMatMul"))

_WIDE = 32
"""Bits of the smallest integers that float32 does not hold."""


class MachineKernel:
    """The entry function of a library, called with tensors that share NumPy's memory where its alignment allows.

    With symbolic lengths and sums, it refuses empty inputs, since TVM never writes sums over no elements.

    Args:
        library: The file of the library.
        compiled: The record of the compiled kernel.
        threads: Threads to compute with.
    """

    reuses_outputs = False

    def __init__(self, library: Path, compiled: Compiled, threads: int) -> None:
        self._threads = threads
        ffi = runtime()
        self._from_dlpack = functools.partial(
            ffi.from_dlpack, require_alignment=ALIGNMENT_BYTES, require_contiguous=True
        )
        self._main = load_main(library)
        self._lent = compiled.metadata["lent"]
        self._may_sum_up_nothing = compiled.metadata.get("may_sum_up_nothing", False)
        self._is_tuple = len(compiled.outputs) > 1
        self._bound: list[tuple[Tensor, Any] | None] = [None] * len(compiled.inputs)
        self._staged: list[tuple[Tensor, Any] | None] = [None] * len(compiled.inputs)

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run the module."""
        use_threads(self._threads)
        result = self._main(*[self._tensor(i, x) for i, x in enumerate(inputs)])
        outputs: list[Tensor] = [np.from_dlpack(y) for y in (result if self._is_tuple else (result,))]
        for i in self._lent:
            outputs[i] = outputs[i].copy()
        return outputs

    def _tensor(self, i: int, x: Tensor) -> Any:
        bound = self._bound[i]
        if bound is not None and bound[0] is x:
            return bound[1]
        flags = x.flags
        if not (flags.c_contiguous and flags.writeable) or not x.size or x.ctypes.data % ALIGNMENT_BYTES:
            return self._stage(i, x)
        tensor = self._from_dlpack(x)
        self._bound[i] = (x, tensor)
        return tensor

    def _stage(self, i: int, x: Tensor) -> Any:
        """Copies an input to where TVM takes it."""
        if self._may_sum_up_nothing and not x.size:
            raise Unsupported(f"tvm returns uninitialised memory if it sums over no elements (an input is {x.shape})")
        staged = self._staged[i]
        if staged is None or staged[0].shape != x.shape or staged[0].dtype != x.dtype:
            tensor = new_tensor(x.shape, x.dtype.name)
            staged = self._staged[i] = (np.from_dlpack(tensor), tensor)
        np.copyto(staged[0], x)
        return staged[1]


def tvm_availability(*, with_torch: bool = False) -> Availability:
    """Version of the wheel, whether there is a linker, and whether TVM can be imported, without importing it here.

    Args:
        with_torch: Whether the toolchain that asks also calls torch.
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


def support(node: ir.Node) -> Support:
    """Worth trying, unless it is known to come out wrong, or a type speaks against it."""
    return support_of(_refuse_types, node, _known_wrong)


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


def _known_wrong(node: ir.Node) -> str | None:
    """Return why TVM computes an operator wrongly, or None."""
    when, what = _WRONG.get(node.op_type, (None, ""))
    if when is not None and node.domain == "" and when(node):
        return f"tvm's {node.op_type} {what}"
    one_sided = {node.attributes.get_int(f"detect_{side}", 1) for side in ("positive", "negative")}
    if node.op_type == "IsInf" and one_sided != {1}:
        return "tvm's IsInf detects both signs, whatever its attributes say"
    if node.op_type == "Resize" and node.domain == "" and (ignored := _ignored_of_resize(node)):
        return f"tvm's Resize ignores {ignored}"
    if node.op_type == "Resize" and node.inputs[0] is not None and _is_wider_than_float(node.inputs[0]):
        return "tvm's Resize makes float32 of its input, also of what has more digits or a wider range"
    if node.op_type == "Resize" and node.domain == "" and _halves_inexactly(node):
        return "tvm's Resize rounds coordinates that lie between two elements to either of them"
    values = (*node.inputs, *node.outputs)
    if node.op_type in ("Concat", "Split") and any(value is not None and 0 in (value.shape or ()) for value in values):
        return f"tvm's {node.op_type} loses its place at parts that have no elements"
    if _sums_up_nothing(node):
        return f"tvm's {node.op_type} returns uninitialised memory if it reduces a tensor without elements"
    if node.op_type in _NO_MERE_COPIES and _may_reduce_nothing(node):
        return f"tvm's {node.op_type} copies its input where it is given no axes"
    if node.op_type in _MAY_WRAP and _is_wide_unsigned(node.outputs[0]):
        return f"tvm has LLVM take it that {node.op_type} of unsigned integers never wraps around"
    if node.op_type not in _EXACT_IN_HALF and any(value is not None and _is_half(value) for value in values):
        return f"tvm's {node.op_type} rounds to float16 between its steps"
    return None


def _is_given(node: ir.Node, place: int) -> bool:
    return len(node.inputs) > place and node.inputs[place] is not None


def _varies(node: ir.Node, place: int) -> bool:
    """True if the node has an input at ``place`` that is not constant."""
    value = node.inputs[place] if len(node.inputs) > place else None
    return value is not None and value.const_value is None


def _is_input(node: ir.Node, place: int) -> bool:
    """True if the node's input at ``place`` is an input of the graph."""
    value = node.inputs[place] if len(node.inputs) > place else None
    return value is not None and value.const_value is None and value.is_graph_input()


def _covers_other_axes(node: ir.Node) -> bool:
    """True if the indices of a ScatterElements have the lengths of the data on all axes but its own."""
    data, indices = (() if value is None or value.shape is None else tuple(value.shape) for value in node.inputs[:2])
    axis = node.attributes.get_int("axis", 0) or 0
    if not data or len(data) != len(indices) or not -len(data) <= axis < len(data):
        return False
    pairs = [pair for i, pair in enumerate(zip(data, indices, strict=True)) if i != axis % len(data)]
    return all(a == b and getattr(a, "value", a) is not None for a, b in pairs)


def _gives_floats(node: ir.Node) -> bool:
    values = node.inputs[2] if len(node.inputs) > 2 else None
    dtype = elem_type(values) if values is not None else None
    return dtype is not None and dtype.name in ("FLOAT", "FLOAT16")


def _scales_to_fractions(node: ir.Node) -> bool:
    """True if constant scales give lengths that must be rounded, or may do so."""
    x, scales = (node.inputs[0], node.inputs[2]) if len(node.inputs) > 2 else (None, None)
    if x is None or x.shape is None or scales is None or scales.const_value is None:
        return False
    factors = scales.const_value.numpy().astype(np.float32).reshape(-1)
    lengths = (n * factor if isinstance(n, int) else factor for n, factor in zip(x.shape, factors, strict=False))
    return any(length % 1 != 0 for length in lengths)


def _ignored_of_resize(node: ir.Node) -> str | None:
    """Return what TVM ignores of a Resize, or None. TVM resizes only axes after batch and channels, to given lengths."""
    attributes = node.attributes
    if attributes.get_int("antialias", 0):
        return "antialias"
    if attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "keep_aspect_ratio_policy"
    if "axes" in attributes:
        return "axes"
    return "what batch and channels become" if _resizes_more_than_images(node) else None


def _resizes_more_than_images(node: ir.Node) -> bool:
    """True if constant scales or sizes change the first two lengths (batch and channels), or may do so."""
    x, *told = (node.inputs[i] if len(node.inputs) > i else None for i in (0, 2, 3))
    for value, kept in zip(told, ((1, 1), tuple(x.shape or ())[:2] if x is not None else ()), strict=True):
        if value is not None and value.const_value is not None and value.const_value.size:
            first = value.const_value.numpy().reshape(-1)[:2].tolist()
            return any(n != m for n, m in zip(kept, first, strict=False))
    return False


def _halves_inexactly(node: ir.Node) -> bool:
    """True if a coordinate may be half-way between two elements, and the ratio of lengths is not exact in binary."""
    attributes = node.attributes
    nearest = attributes.get_string("nearest_mode", "round_prefer_floor") or ""
    if attributes.get_string("mode", "nearest") != "nearest" or not nearest.startswith("round"):
        return False
    transformation = attributes.get_string("coordinate_transformation_mode", "half_pixel") or ""
    return any(_has_inexact_tie(n, m, transformation) for n, m in _resized(node))


def _resized(node: ir.Node) -> list[tuple[int, int]]:
    """Lengths that a Resize with constant sizes or scales changes, and what it makes of them; (1, scale) of unknown ones."""
    x, scales, sizes = (node.inputs[i] if len(node.inputs) > i else None for i in (0, 2, 3))
    told = sizes if scales is None or scales.const_value is None or not scales.const_value.size else scales
    if x is None or x.shape is None or told is None or told.const_value is None:
        return []
    numbers = told.const_value.numpy().reshape(-1).tolist()
    pairs = []
    for n, number in zip(x.shape, numbers, strict=False):
        known = n if isinstance(n, int) else 1
        pairs.append((known, int(number) if told is sizes else int(known * number)))
    return [(n, m) for n, m in pairs if n != m and n > 0 and m > 0]


def _has_inexact_tie(n: int, m: int, transformation: str) -> bool:
    """True if one of ``m`` coordinates in ``n`` elements is half-way between two, and its factor is not exact in binary."""
    if transformation == "align_corners":
        factor, offset = Fraction(n - 1, max(m - 1, 1)), Fraction(0)
    elif transformation == "asymmetric":
        factor, offset = Fraction(n, m), Fraction(0)
    else:
        factor = Fraction(n, m)
        offset = (factor - 1) / 2
    if factor.denominator & (factor.denominator - 1) == 0:
        return False
    places = range(min(m, 2 * factor.denominator))  # After that many, the fractions come again.
    return any((factor * i + offset) % 1 == Fraction(1, 2) for i in places)


def _uses_more_than_first(node: ir.Node) -> bool:
    return any(value.uses() or value.is_graph_output() for value in node.outputs[1:])


def _is_wide_unsigned(value: ir.Value) -> bool:
    dtype = elem_type(value)
    return dtype is not None and dtype.name in ("UINT32", "UINT64")


def _is_half(value: ir.Value) -> bool:
    dtype = elem_type(value)
    return dtype is not None and dtype.name == "FLOAT16"


def _is_of_integers(node: ir.Node) -> bool:
    dtype = elem_type(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    return dtype is not None and dtype.is_integer()


def _is_wider_than_float(value: ir.Value) -> bool:
    """True if float32 cannot hold every number of a value's type."""
    dtype = elem_type(value)
    return dtype is not None and dtype.bitwidth >= _WIDE and dtype.name != "FLOAT"


def _refuse_types(values: Iterable[ir.Value]) -> None:
    import onnx_ir as ir

    for value in values:
        if isinstance(value.type, ir.SequenceType | ir.OptionalType):
            raise Unsupported(f"tvm: the importer takes tensors only ({value.name!r} is {value.type})")
        dtype = elem_type(value)
        if dtype is not None and dtype.name not in _TYPES:
            raise Unsupported(f"tvm: the importer does not take {dtype.name.lower()} ({value.name!r})")


def _sums_up_nothing(node: ir.Node) -> bool:
    """True if outputs are sums over a length of 0. TVM's loops do not set them to zero then."""
    made = node.outputs[0].shape
    return 0 not in (made or ()) and any(0 in (x.shape or ()) for x in _summed_up(node))


def _summed_up(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node reduces: sums, multiplies, or takes the largest of."""
    reads = node.inputs if node.op_type in _SUMS else node.inputs[:1] if node.op_type.startswith("Reduce") else ()
    return [x for x in reads if x is not None]


def machine_facts(graph: ir.Graph, lent: Sequence[int]) -> dict[str, Any]:
    """Return the metadata of a kernel that ``MachineKernel`` needs.

    Args:
        graph: The graph of the kernel.
        lent: See ``build_library``.
    """
    summed = [x for node in graph for x in _summed_up(node)]
    is_open = any(x.shape is None or not all(isinstance(length, int) for length in x.shape) for x in summed)
    return {"lent": lent, "may_sum_up_nothing": is_open}


def _may_reduce_nothing(node: ir.Node) -> bool:
    """True if a node is a reduction that returns its input unchanged when it gets no axes."""
    return node.attributes.get_int("noop_with_empty_axes", 0) == 1


def import_kernel(kernel: ir.Model, workspace: Path, read: Callable[[Any], Any] | None = None) -> Any:
    """The kernel as a Relax module, weights bound as constants.

    Args:
        kernel: The kernel.
        workspace: Where its weights are.
        read: Makes a module of an ONNX proto; the importer of native kernels unless given.

    Raises:
        Unsupported: TVM does not take it, or takes it and computes something else.
    """
    _refuse_types(values_of(kernel.graph))
    refuse_operators(_known_wrong, kernel.graph)
    import onnx_ir as ir
    from onnx.external_data_helper import load_external_data_for_model

    _tvm()
    from collage.graph import copy_model
    from collage.toolchains.tvm.importer import import_onnx

    proto = ir.to_proto(copy_model(kernel))
    load_external_data_for_model(proto, str(workspace))
    try:
        with warnings.catch_warnings(action="ignore"):
            return (read or import_onnx)(proto)
    except Exception as error:
        raise Unsupported(f"tvm cannot import the kernel: {one_line(error)}") from error


def tvm_target(target: Target) -> Any:
    """TVM's own target for this machine's processor."""
    tvm = _tvm()
    return tvm.target.Target(
        {
            "kind": "llvm",
            "mcpu": tvm.target.codegen.llvm_get_system_cpu(),
            "num-cores": int(target.option("threads") or usable_cores()),
        }
    )


def context(target: Target) -> Any:
    """TVM's settings while it compiles."""
    return _tvm().transform.PassContext(opt_level=int(target.option("opt-level") or "3"))


def build_library(
    module: Any, target: Target, library: Path, records: Mapping[str, str] | None = None
) -> Sequence[int]:
    """Schedules a Relax module, generates its code and links a shared library; which outputs lie in memory not theirs alone.

    Args:
        module: The module.
        target: Whose options count.
        library: The file to write.
        records: What tuning found, by workload.

    Raises:
        CompileError: TVM, or the compiler that links, failed.
    """
    tvm = _tvm()
    from collage.toolchains.tvm.pipeline import pipeline

    goal = tvm_target(target)
    lent: list[int] = []
    tuned = []
    if records:
        from collage.toolchains.tvm.metaschedule import apply_records

        tuned = [apply_records(records, goal)]
    try:
        with goal, context(target):
            try:
                passes = pipeline(goal, lent, channels_last=True, tuned=tuned)
                built = tvm.compile(module, target=goal, relax_pipeline=passes)
            except Exception:
                passes = pipeline(goal, lent, channels_last=False, tuned=tuned)
                built = tvm.compile(module, target=goal, relax_pipeline=passes)
    except Exception as error:
        raise CompileError(f"tvm: {one_line(error)}") from error
    link(built, library)
    return lent


def link(built: Any, library: Path) -> None:
    """Writes what TVM built as a shared library, which is there whole or not at all.

    Raises:
        CompileError: The compiler that links failed.
    """
    draft = library.with_name(f"{library.stem}.{os.getpid()}.draft.so")
    try:
        built.export_library(str(draft))
        draft.replace(library)
    except Exception as error:
        raise CompileError(f"tvm: {one_line(error)}") from error
    finally:
        draft.unlink(missing_ok=True)
