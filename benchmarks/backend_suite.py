"""ONNX's backend test suite through ``collage.backend``, case by case against ONNX Runtime alone.

::

    python benchmarks/backend_suite.py --sample 100 --seed 1

A regression is a case that ONNX Runtime passes and we do not; there must be none. Prints each, and the counts.
"""

from __future__ import annotations

import argparse
import os
import random
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class Case:
    """One model with inputs and the outputs that the suite expects."""

    name: str
    model: onnx.ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float


def cases(kinds: Sequence[str] = KINDS) -> Iterator[Case]:
    """All cases that come with the onnx package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [case for kind in kinds for case in load_model_tests(kind=kind)]
    for case in found:
        if case.model is not None:
            data = [([plain(x) for x in inputs], [plain(y) for y in outputs]) for inputs, outputs in case.data_sets]
            yield Case(case.name, case.model, data, case.rtol, case.atol)
        elif case.model_dir is not None:
            model = onnx.load(Path(case.model_dir) / "model.onnx")
            folders = sorted(Path(case.model_dir).glob("test_data_set_*"))
            data = [
                (read(folder, "input", model.graph.input), read(folder, "output", model.graph.output))
                for folder in folders
            ]
            yield Case(case.name, model, data, case.rtol, case.atol)


def plain(value: Any) -> Any:
    """A value of the suite as NumPy."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def read(folder: Path, what: str, infos: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    """Stored inputs or outputs, in order."""
    values = []
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
    """The suite's own comparison."""
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


def passes_alone(case: Case) -> bool:
    """Whether ONNX Runtime passes the case."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [port.name for port in session.get_inputs()]
        return all(
            same(session.run(None, dict(zip(names, inputs, strict=True))), list(outputs), case.rtol, case.atol)
            for inputs, outputs in case.data
        )
    except Exception:
        return False


def verdict(case: Case) -> str | None:
    """Why we fail the case, or None."""
    from collage import backend

    try:
        prepared = backend.prepare(case.model)
        for inputs, outputs in case.data:
            if not same(list(prepared.run(list(inputs))), list(outputs), case.rtol, case.atol):
                kernels = ", ".join(kernel.target for kernel in prepared.executable.recipe.kernels)
                return f"wrong outputs from {kernels}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return None


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description="ONNX's backend suite, against ONNX Runtime alone.")
    parser.add_argument("--sample", type=int, help="so many cases drawn at random; all without it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    chosen = [case for case in cases() if options.only in case.name]
    if options.sample:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    alone = ours = 0
    started = time.monotonic()
    for case in chosen:
        if not passes_alone(case):
            continue
        alone += 1
        reason = verdict(case)
        ours += reason is None
        if reason is not None:
            print(f"REGRESSION {case.name}: {reason}", flush=True)
    seconds = time.monotonic() - started
    print(f"{len(chosen)} cases; ONNX Runtime passes {alone}, Collage {ours} of them; {seconds:.0f} s")


if __name__ == "__main__":
    main()
