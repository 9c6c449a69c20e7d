"""Options of ONNX Runtime's sessions: threads and fixed lengths are kept to, and one warning names all others."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collage._errors import UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["CPU", "check_run_options", "check_session_options", "fixed_lengths", "free_dims"]

CPU = "CPUExecutionProvider"
_KEPT = ("intra_op_num_threads",)
_THEIRS = "use onnxruntime.InferenceSession where you need them"


def check_session_options(options: Any, providers: Sequence[Any] | None, others: Iterable[str]) -> None:
    """Warn once of everything that has no effect here.

    Args:
        options: An ``onnxruntime.SessionOptions``, an object with some of its attributes, or None.
        providers: Execution providers, as ONNX Runtime takes them.
        others: Further keywords that were given.

    Raises:
        UsageError: An argument is not of ONNX Runtime's form.
    """
    try:
        names = [each if isinstance(each, str) else str(each[0]) for each in providers or ()]
    except (TypeError, IndexError) as error:
        raise UsageError(f"providers are names, or pairs of a name and options: {error}") from None
    idle = [name for name in names if name != CPU]
    idle += [f"SessionOptions.{name}" for name in _changed(options, "SessionOptions") if name not in _KEPT]
    idle += others
    if idle:
        hint = "; targets=['cuda'] names a device" if any(name.endswith("ExecutionProvider") for name in idle) else ""
        warnings.warn(f"no effect on collage's session: {', '.join(idle)}; {_THEIRS}{hint}", stacklevel=3)


def check_run_options(options: Any) -> None:
    """Warn of options of a run: none has an effect here.

    Raises:
        UsageError: They are not of ONNX Runtime's form.
    """
    if idle := [f"RunOptions.{name}" for name in _changed(options, "RunOptions")]:
        warnings.warn(f"no effect on collage's session: {', '.join(idle)}; {_THEIRS}", stacklevel=3)


def _changed(options: Any, kind: str) -> list[str]:
    """Return names of options that differ from ONNX Runtime's defaults."""
    if options is None:
        return []
    if isinstance(options, Iterable | int | float):
        raise UsageError(f"options are an onnxruntime.{kind}, not {options!r:.80}")
    import onnxruntime

    default = getattr(onnxruntime, kind)()
    plain = [name for name in dir(default) if not name.startswith("_") and not callable(getattr(default, name))]
    return [name for name in plain if getattr(options, name, getattr(default, name)) != getattr(default, name)]


def fixed_lengths(options: Any, dims: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    """Return the lengths of dimensions that options fix, as ``CompileOptions.fixed`` takes them.

    ONNX Runtime's options do not list them. A session of a model of one input with all free dimensions shows them.

    Args:
        options: An ``onnxruntime.SessionOptions``, an object with some of its attributes, or None.
        dims: Symbol and denotation of each free dimension, either of which may be empty, by Collage's name of it.

    Raises:
        UsageError: ONNX Runtime makes no session with these options.
    """
    if not dims or not hasattr(options, "add_free_dimension_override_by_name"):
        return {}
    try:
        import onnxruntime
        from onnx import TensorProto, helper
    except ImportError:  # A machine that only runs artefacts, whose lengths are fixed where they are compiled.
        return {}
    shape = [symbol or f"collage_{i}" for i, (symbol, _) in enumerate(dims.values())]
    denotations = [denotation for _, denotation in dims.values()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape, shape_denotation=denotations)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "lengths", [x], [y])
    probe = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    writes, options.enable_profiling = options.enable_profiling, False  # That session would write a file.
    try:
        session = onnxruntime.InferenceSession(probe.SerializeToString(), options, providers=[CPU])
    except Exception as error:
        raise UsageError(f"ONNX Runtime makes no session with these SessionOptions: {error}") from None
    finally:
        options.enable_profiling = writes
    lengths = session.get_inputs()[0].shape
    return {name: length for name, length in zip(dims, lengths, strict=True) if isinstance(length, int)}


def free_dims(model: ir.Model) -> dict[str, tuple[str, str]]:
    """Return symbol and denotation of each free dimension of a model's inputs, by Collage's name of it."""
    dims = {}
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int) and value.shape is not None:
                name = f"{value.name}[{axis}]" if dim.value is None else str(dim.value)
                dims[name] = (dim.value or "", value.shape.get_denotation(axis) or "")
    return dims
