"""References: what a model computes, by ONNX Runtime without optimisations and by ONNX's reference implementation."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.fuzz.draft import Sample

SLACK = 10.0
"""How much more than one kernel's error is allowed: errors add up along a graph, and are made larger."""


@dataclass(frozen=True)
class Case:
    """Inputs of a model, and the outputs that it should have."""

    feeds: Mapping[str, Any]
    expected: Sequence[Any]


class NoCase(Exception):
    """The references do not agree."""


class Original:
    """The original model in ONNX Runtime without optimisations, or else in ONNX's reference implementation.

    Args:
        model: The model; nothing of Collage reads it before.

    Attributes:
        outputs: Names of the outputs.
        by_onnxruntime: If ONNX Runtime takes it.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnxruntime as ort

        self.outputs = [value.name for value in model.graph.output]
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._run: Callable[[Mapping[str, Any]], list[Any]]
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception:
            self._run, self.by_onnxruntime = Plainly(model), False
        else:
            self._run, self.by_onnxruntime = lambda feeds: list(session.run(None, dict(feeds))), True

    def __call__(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Compute the outputs."""
        return self._run(feeds)


class Plainly:
    """A model in ONNX's reference implementation."""

    def __init__(self, model: onnx.ModelProto) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._evaluator = ReferenceEvaluator(model)

    def __call__(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Compute the outputs."""
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self._evaluator.run(None, dict(feeds))
        return [y if isinstance(y, list) or y is None else np.asarray(y) for y in found]


def onnxruntime_plainly(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Return what ONNX Runtime computes without optimisations.

    Raises:
        NoCase: It does not take the model.
    """
    original = Original(model)
    if not original.by_onnxruntime:
        raise NoCase("ONNX Runtime does not take the model")
    return original(feeds)


def reference(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Return what ONNX's reference implementation computes."""
    return [np.asarray(y) for y in Plainly(model)(feeds)]


def tolerance(model: onnx.ModelProto) -> float:
    """Return what outputs may differ by, relative to their largest element, given the types in a model."""
    from collage.numerics.judge import QUANTISED_TOLERANCE, tolerance_of

    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {v.type.tensor_type.elem_type for v in (*inferred.value_info, *inferred.input, *inferred.output)}
    types |= {weight.data_type for weight in inferred.initializer}
    allowed = SLACK * tolerance_of(onnx.helper.tensor_dtype_to_np_dtype(each).name for each in types if each)
    is_quantised = any("Quantize" in node.op_type for node in model.graph.node)
    return max(allowed, QUANTISED_TOLERANCE) if is_quantised else allowed


def difference(names: Sequence[str], got: Sequence[Any], wanted: Sequence[Any], allowed: float) -> str | None:
    """Return how the first output that is wrong differs, or None."""
    from collage.numerics.judge import judge

    for name, y, expected in zip(names, got, wanted, strict=True):
        found = judge(y, expected, allowed)
        if not found.ok:
            return f"{name}: {found.reason} (largest difference {found.max_abs:.3g})"
    return None


def case(model: onnx.ModelProto, feeds: Mapping[str, Any], allowed: float) -> Case:
    """Return what a model should, on which both references agree."""
    try:
        expected, others = reference(model, feeds), onnxruntime_plainly(model, feeds)
    except Exception as error:
        raise NoCase(f"a reference fails: {one_line(error)}") from error
    if differs := difference([value.name for value in model.graph.output], others, expected, allowed / SLACK):
        raise NoCase(f"the references differ in {differs}")
    return Case(feeds, expected)


def values_of(given: Sample) -> dict[str, Any]:
    """Return all tensors that a model reads and computes."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ReferenceEvaluator(given.model).run(None, dict(given.feeds), intermediate=True)
    return {
        **given.feeds,
        **{name: np.asarray(x) for name, x in found.items() if isinstance(x, np.ndarray | np.generic)},
    }


def every_value(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that a prepared model computes, by the reference implementation where NumPy lacks a type."""
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    if any(value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 for value in inferred):
        return values_of(Sample(model, feeds))
    known = {value.name for value in model.graph.output}
    made = [name for node in model.graph.node for name in node.output if name and name not in known]
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    names = [value.name for value in asked.graph.output]
    kept = {value.name for value in model.graph.input}
    feeds = {name: x for name, x in feeds.items() if name in kept}
    return {**feeds, **dict(zip(names, onnxruntime_plainly(asked, feeds), strict=True))}


def shapes_of(feeds: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}{list(np.shape(x))}" for name, x in feeds.items())


def one_line(error: Exception) -> str:
    """Return type and text of an error, and where it was raised if it is none of Collage's own."""
    import collage

    frames = [] if isinstance(error, collage.CollageError) else traceback.extract_tb(error.__traceback__)[-3:]
    place = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400] + (f" at {place}" if place else "")
