"""ONNX's backend test suite: its cases, and the comparison that it prescribes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

__all__ = ["KINDS", "Case", "Runner", "cases", "difference", "failure", "same", "with_onnxruntime"]

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")

Runner = Callable[[Sequence[Any]], Sequence[Any]]
"""Outputs of a model from its inputs, both in the order of the graph."""


@dataclass(frozen=True)
class Case:
    """One model with inputs and the outputs that the suite expects.

    Attributes:
        name: Name in the suite.
        model: The model.
        data: Pairs of inputs and expected outputs.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
    """

    name: str
    model: onnx.ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float


def cases(kinds: Sequence[str] = KINDS) -> Iterator[Case]:
    """Yield all cases of some kinds that come with the onnx package.

    The package makes cases of the kind ``node`` once in a process, so their models are copied here. A caller may change a model.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [case for kind in kinds for case in load_model_tests(kind=kind)]
    for case in found:
        if case.model is not None:
            data = [([_plain(x) for x in inputs], [_plain(y) for y in outputs]) for inputs, outputs in case.data_sets]
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            yield Case(case.name, model, data, case.rtol, case.atol)
        elif case.model_dir is not None:
            model = onnx.load(Path(case.model_dir) / "model.onnx")
            folders = sorted(Path(case.model_dir).glob("test_data_set_*"))
            data = [
                (_read(folder, "input", model.graph.input), _read(folder, "output", model.graph.output))
                for folder in folders
            ]
            yield Case(case.name, model, data, case.rtol, case.atol)


def _plain(value: Any) -> Any:
    """Return a value of the suite as NumPy."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _read(folder: Path, what: str, infos: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    """Return stored inputs or outputs, in order."""
    values: list[Any] = []
    for i in range(len(list(folder.glob(f"{what}_*.pb")))):
        raw = (folder / f"{what}_{i}.pb").read_bytes()
        kind = infos[i].type.WhichOneof("value")
        if kind == "sequence_type":
            values.append(numpy_helper.to_list(onnx.SequenceProto.FromString(raw)))
        elif kind == "optional_type":
            values.append(numpy_helper.to_optional(onnx.OptionalProto.FromString(raw)))
        else:
            values.append(numpy_helper.to_array(onnx.TensorProto.FromString(raw)))
    return values


def same(actual: Any, expected: Any, rtol: float, atol: float) -> bool:
    """Return True if the suite's own comparison takes two values, or lists of values, for equal."""
    if isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(
            same(a, e, rtol, atol) for a, e in zip(actual, expected, strict=True)
        )
    if expected is None or actual is None:
        return expected is None and actual is None
    left, right = np.asarray(actual), np.asarray(expected)
    if right.dtype.kind in "OSUT":
        return bool(np.array_equal(left.astype(str), right.astype(str)))
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if right.dtype.kind != "c":
        left, right = left.astype(np.float64), right.astype(np.float64)
    return bool(np.allclose(left, right, rtol=rtol, atol=atol, equal_nan=True))


def difference(actual: Sequence[Any], expected: Sequence[Any]) -> str:
    """Return a few words on the first outputs that differ."""
    for y, wanted in zip(actual, expected, strict=False):
        if not (isinstance(y, np.ndarray) and isinstance(wanted, np.ndarray)):
            continue
        if (y.dtype, y.shape) != (wanted.dtype, wanted.shape):
            return f"{y.dtype}{list(y.shape)} for {wanted.dtype}{list(wanted.shape)}"
        if not np.array_equal(y, wanted):
            return f"{y.reshape(-1)[:4]} for {wanted.reshape(-1)[:4]}"
    return f"{len(actual)} outputs for {len(expected)}"


def failure(case: Case, build: Callable[[onnx.ModelProto], Runner]) -> str | None:
    """Return the reason why a case fails, or None if it passes.

    Args:
        case: The case.
        build: Turns its model into something that runs. Any exception is a failure of the case.
    """
    try:
        run = build(case.model)
        for inputs, outputs in case.data:
            made = list(run(list(inputs)))
            if not same(made, list(outputs), case.rtol, case.atol):
                return f"wrong outputs: {difference(made, outputs)}"
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return None


def with_onnxruntime(model: onnx.ModelProto) -> Runner:
    """Return a runner by ONNX Runtime itself, with its defaults on a CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    return lambda inputs: list(session.run(None, dict(zip(names, inputs, strict=True))))
