"""TVM's native code generator: Relax from the ONNX importer, operators fused by rule, scheduled without tuning.

Its compiled form is a shared library for this machine's processor, weights included.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import CompileError, Unsupported
from collage.toolchains import _cuda, _tvm_cuda
from collage.toolchains._base import ToolchainBase
from collage.toolchains._contract import TUNED, Availability, Compiled, LoadOptions, Support, TuningSession
from collage.toolchains._model_files import (
    check_options,
    elem_type,
    kernel_name,
    load_threads,
    one_line,
    support_of,
    usable_cores,
    values_of,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target
    from collage.toolchains._contract import Kernel, Tensor

__all__ = ["TvmToolchain"]

_LEVELS = ("0", "1", "2", "3")
_OPTIONS: Mapping[str, tuple[str, ...] | None] = {"threads": None, "opt-level": _LEVELS, "trials": None, "seed": None}
_COMPILERS = ("g++", "gcc", "clang++", "clang")
_TYPES = frozenset(
    ("FLOAT", "DOUBLE", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
)
"""Not float16: generated code accumulates in it, and differs in the third digit."""

_PASS_ON = frozenset(("Cast", "Dropout", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
"""Operators whose output TVM may place where their input is."""

_ALIGNMENT = 64
"""Bytes; TVM refuses tensors that begin elsewhere."""

_SHARE_ALL_CORES = -3
"""TVM's affinity mode in which any of its threads may run on any core."""


class TvmToolchain(ToolchainBase):
    """Compiles kernels with TVM's own code generators for the CPU and for CUDA."""

    name = "tvm"
    targets = ("llvm", "cuda")
    options = {
        "threads": "number of threads (default: one for each physical core); one number for the whole process",
        "opt-level": "0 to 3: TVM's own optimisation level (default 3)",
        "trials": "schedules that tuning measures for each loop nest; such targets come from --tune",
        "seed": "decides which schedules tuning tries",
        "arch": "on CUDA: the architecture to compile for, such as sm_90 (default: the device's)",
    }
    optimises_whole_graphs = False

    def availability(self) -> Availability:
        """Version of the wheel, and whether there is a linker; TVM itself takes seconds to import."""
        try:
            version = importlib.metadata.version("apache-tvm")
        except importlib.metadata.PackageNotFoundError:
            return Availability(False, reason="not installed", remedy="pip install 'collage[tvm]'")
        build = f"apache-tvm {version}, apache-tvm-ffi {importlib.metadata.version('apache-tvm-ffi')}"
        if not any(map(shutil.which, _COMPILERS)):
            reason = "no C++ compiler, which links TVM's kernels"
            return Availability(False, version, build, reason=reason, remedy="install g++ or clang")
        return Availability(True, version, build, ("CPU",))

    def availability_of(self, target: Target) -> Availability:
        """For CUDA, also the device and a compiler for it."""
        found = self.availability()
        return _tvm_cuda.availability(found) if target.kind == "cuda" else found

    def ran_on(self, target: Target) -> str | None:
        """Where its tests have passed."""
        return _cuda.ran_on(target.kind) if target.kind == "cuda" else super().ran_on(target)

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Worth trying, unless a type speaks against it."""
        if (reason := _known_wrong(node)) is not None:
            return Support(False, reason)
        return support_of(_refuse_types, node)

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Imports, fuses, schedules and generates code; links a shared library."""
        _check(target)
        name = kernel_name(kernel)
        records = _records(kernel, target)
        module = _import(kernel, workspace)
        # By target, since a process that has loaded a library gets the same one again under the same name.
        options = "".join(f".{option}={value}" for option, value in target.options)
        if target.kind == "cuda":
            library = workspace / f"{name}.cuda{options}.so"
            _tvm_cuda.build(module, target, library)
        else:
            library = workspace / f"{name}{options}.so"
            _build(module, target, library, records)
        inputs = tuple(str(value.name) for value in kernel.graph.inputs)
        outputs = tuple(str(value.name) for value in kernel.graph.outputs)
        lent = [i for i, value in enumerate(kernel.graph.outputs) if _is_lent(value)]
        return Compiled(self.name, str(target), (library.name,), inputs, outputs, metadata={"lent": lent})

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Loads the library into a virtual machine of Relax.

        TVM has one thread pool for a process: the kernel that is loaded last decides on its size.
        """
        _check(target)
        if target.kind == "cuda":
            return _tvm_cuda.load(workspace / compiled.files[0], compiled)
        _set_threads(load_threads(target, options) or usable_cores(), options.exclusive)
        return _MachineKernel(workspace / compiled.files[0], compiled)

    def tuning_workloads(self, kernel: ir.Model, target: Target, workspace: Path) -> Sequence[str]:
        """Its loop nests that reduce something: those whose tiles are guessed otherwise."""
        return tuple(_tunable(kernel, target, workspace))

    def tune(self, kernel: ir.Model, target: Target, workspace: Path, session: TuningSession) -> Mapping[str, str]:
        """Measures schedules of every loop nest that is not known, within equal parts of the time."""
        check_options(target, _OPTIONS)
        from collage.toolchains._tvm_tuning import tune_all

        with session.building():
            tunable = _tunable(kernel, target, workspace)
        _set_threads(load_threads(target, LoadOptions(session.threads)) or usable_cores(), exclusive=False)
        trials, seed = int(target.option("trials") or "1"), int(target.option("seed") or "0")
        return tune_all(tunable, _machine(target), trials, seed, session)


class _MachineKernel:
    """The entry function of a library, called with tensors that share NumPy's memory where its alignment allows."""

    reuses_outputs = False

    def __init__(self, library: Path, compiled: Compiled) -> None:
        tvm = _tvm()
        self._from_dlpack = tvm.runtime.from_dlpack
        self._empty = tvm.runtime.empty
        self._machine = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
        self._main = self._machine["main"]
        self._lent = compiled.metadata["lent"]
        self._is_tuple = len(compiled.outputs) > 1
        self._bound: list[tuple[Tensor, Any] | None] = [None] * len(compiled.inputs)
        self._staged: list[tuple[Tensor, Any] | None] = [None] * len(compiled.inputs)

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
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
        if not (flags.c_contiguous and flags.writeable) or not x.size or x.ctypes.data % _ALIGNMENT:
            return self._stage(i, x)
        tensor = self._from_dlpack(x)
        self._bound[i] = (x, tensor)
        return tensor

    def _stage(self, i: int, x: Tensor) -> Any:
        """Copies an input to where TVM takes it."""
        staged = self._staged[i]
        if staged is None or staged[0].shape != x.shape or staged[0].dtype != x.dtype:
            tensor = self._empty(x.shape, x.dtype.name)
            staged = self._staged[i] = (np.from_dlpack(tensor), tensor)
        np.copyto(staged[0], x)
        return staged[1]


def _check(target: Target) -> None:
    if target.kind != "cuda":
        check_options(target, _OPTIONS)
        return
    _tvm_cuda.check_arch(target)
    arch = target.option("arch")
    check_options(target, {"opt-level": _LEVELS, **({"arch": (arch,)} if arch else {})})


def _tvm() -> Any:
    """TVM, with Relax; takes seconds the first time."""
    import tvm
    import tvm.relax

    return tvm


def _known_wrong(node: ir.Node) -> str | None:
    """Operators that TVM 0.27 imports without complaint and computes wrongly, found with ONNX's own test cases."""
    one_sided = {node.attributes.get_int(f"detect_{side}", 1) for side in ("positive", "negative")}
    if node.op_type == "IsInf" and one_sided != {1}:
        return "tvm's IsInf detects both signs, whatever its attributes say"
    values = (*node.inputs, *node.outputs)
    if node.op_type in ("Concat", "Split") and any(value is not None and 0 in (value.shape or ()) for value in values):
        return f"tvm's {node.op_type} loses its place at parts that have no elements"
    return None


def _set_threads(count: int, exclusive: bool) -> None:
    """Sizes TVM's thread pool, and has it leave affinities alone: it would pin the caller to one core for good.

    What it reads from the environment it reads when the pool is made.
    """
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    if not exclusive:
        os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    _tvm().get_global_func("runtime.config_threadpool")(_SHARE_ALL_CORES, count)


def _refuse_types(values: Iterable[ir.Value]) -> None:
    import onnx_ir as ir

    for value in values:
        if isinstance(value.type, ir.SequenceType | ir.OptionalType):
            raise Unsupported(f"tvm: the importer takes tensors only ({value.name!r} is {value.type})")
        dtype = elem_type(value)
        if dtype is not None and dtype.name not in _TYPES:
            raise Unsupported(f"tvm: the importer does not take {dtype.name.lower()} ({value.name!r})")


def _is_lent(value: ir.Value) -> bool:
    """Whether an output may lie in the memory of an input or a constant."""
    node = value.producer()
    while node is not None and node.domain == "" and node.op_type in _PASS_ON and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return node is None


def _records(kernel: ir.Model, target: Target) -> Mapping[str, str]:
    """What tuning found for a kernel, where the target is one of tuned code.

    Raises:
        Unsupported: It was not tuned.
        CompileError: What the kernel says is no set of records.
    """
    if target.option("trials") is None:
        return {}
    if TUNED not in kernel.metadata_props:
        raise Unsupported("tvm: the kernel was not tuned; let --tune choose what is")
    try:
        told = json.loads(kernel.metadata_props[TUNED])
    except ValueError as error:
        raise CompileError(f"tvm: tuning records that cannot be read: {error}") from None
    if not isinstance(told, dict) or not all(isinstance(text, str) for text in told.values()):
        raise CompileError("tvm: tuning records must be texts by workload")
    return told


def _import(kernel: ir.Model, workspace: Path) -> Any:
    """The kernel as a Relax module, weights bound as constants.

    Raises:
        Unsupported: TVM does not take it, or takes it and computes something else.
    """
    _refuse_types(values_of(kernel.graph))
    for node in kernel.graph.all_nodes():
        if (reason := _known_wrong(node)) is not None:
            raise Unsupported(reason)
    import onnx_ir as ir
    from onnx.external_data_helper import load_external_data_for_model

    _tvm()
    from tvm.relax.frontend.onnx import from_onnx

    proto = ir.to_proto(kernel)
    load_external_data_for_model(proto, str(workspace))
    try:
        with warnings.catch_warnings(action="ignore"):
            return from_onnx(proto)
    except Exception as error:
        raise Unsupported(f"tvm cannot import the kernel: {one_line(error)}") from error


def _machine(target: Target) -> Any:
    """TVM's own target for this machine's processor."""
    tvm = _tvm()
    return tvm.target.Target(
        {
            "kind": "llvm",
            "mcpu": tvm.target.codegen.llvm_get_system_cpu(),
            "num-cores": int(target.option("threads") or usable_cores()),
        }
    )


def _context(target: Target) -> Any:
    return _tvm().transform.PassContext(opt_level=int(target.option("opt-level") or "3"))


def _tunable(kernel: ir.Model, target: Target, workspace: Path) -> Mapping[str, Any]:
    """The loop nests of a kernel that can be tuned, by name."""
    module, machine = _import(kernel, workspace), _machine(target)
    from collage.toolchains._tvm_pipeline import front
    from collage.toolchains._tvm_tuning import workloads

    try:
        with machine, _context(target):
            try:
                lowered = front(machine, channels_last=True)(module)
            except Exception:
                lowered = front(machine, channels_last=False)(module)
            return workloads(lowered, machine)
    except Exception as error:
        raise CompileError(f"tvm: {one_line(error)}") from error


def _build(module: Any, target: Target, library: Path, records: Mapping[str, str]) -> None:
    tvm = _tvm()
    from collage.toolchains._tvm_pipeline import pipeline

    machine = _machine(target)
    tuned = []
    if records:
        from collage.toolchains._tvm_tuning import apply_records

        tuned = [apply_records(records, machine)]
    draft = library.with_name(f"{library.stem}.{os.getpid()}.draft.so")
    try:
        with machine, _context(target):
            try:
                passes = pipeline(machine, channels_last=True, tuned=tuned)
                built = tvm.compile(module, target=machine, relax_pipeline=passes)
            except Exception:
                passes = pipeline(machine, channels_last=False, tuned=tuned)
                built = tvm.compile(module, target=machine, relax_pipeline=passes)
        built.export_library(str(draft))
        draft.replace(library)
    except Exception as error:
        raise CompileError(f"tvm: {one_line(error)}") from error
    finally:
        draft.unlink(missing_ok=True)
