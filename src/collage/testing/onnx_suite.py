"""ONNX's backend test suite through ``collage.backend``, case by case against ONNX Runtime alone.

::

    python benchmarks/backend_suite.py --sample 100 --seed 1
    python benchmarks/backend_suite.py --state suite.jsonl    # all; the same command again continues where it stopped

A regression is a case that ONNX Runtime passes and we do not; there must be none. Prints each, and why a case is excluded:
ONNX Runtime fails it, or it has no model. Timings decide which kernels run and nothing else here, so that a busy machine is
not waited for; another tuner on the same machine is (run it alone).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
import warnings
from collections import Counter
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
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


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


def verdict_alone(case: Case) -> str | None:
    """Why ONNX Runtime fails the case, or None."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [port.name for port in session.get_inputs()]
        for inputs, outputs in case.data:
            made = session.run(None, dict(zip(names, inputs, strict=True)))
            if not same(made, list(outputs), case.rtol, case.atol):
                return "its outputs differ from those expected"
    except Exception as error:
        return " ".join(str(error).split())[:200]
    return None


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


def judge(case: Case) -> dict[str, Any]:
    """What came of one case; ours is tried only where ONNX Runtime passes."""
    started = time.monotonic()
    alone = verdict_alone(case)
    found = {"case": case.name, "alone": alone, "ours": None if alone is not None else verdict(case)}
    return {**found, "seconds": round(time.monotonic() - started, 1)}


def judged(chosen: Sequence[Case], state: Path | None) -> Iterator[dict[str, Any]]:
    """What came of each case, now or earlier."""
    lines = state.read_text().splitlines() if state is not None and state.exists() else []
    earlier = {found["case"]: found for found in map(json.loads, lines)}
    for case in chosen:
        if case.name in earlier:
            yield earlier[case.name]
            continue
        found = judge(case)
        if state is not None:
            with state.open("a") as file:
                file.write(json.dumps(found) + "\n")
        yield found


def main() -> int:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="so many cases drawn at random; all without it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--part", default="1/1", help="such as 2/4: the second of every four cases")
    parser.add_argument(
        "--state", type=Path, help="file that keeps what came of each case; those in it are not run again"
    )
    parser.add_argument("--exclusions", action="store_true", help="print every case that ONNX Runtime fails, and why")
    options = parser.parse_args()
    os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    os.environ.setdefault("COLLAGE_PATIENCE_S", "0")
    part, parts = map(int, options.part.split("/"))
    chosen = [case for case in cases() if options.only in case.name][part - 1 :: parts]
    if options.sample:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    counts: Counter[str] = Counter()
    seconds = 0.0
    for found in judged(chosen, options.state):
        seconds += found["seconds"]
        outcome = "excluded" if found["alone"] is not None else "regression" if found["ours"] is not None else "passed"
        counts[outcome] += 1
        if outcome == "regression":
            print(f"REGRESSION {found['case']}: {found['ours']}", flush=True)
        elif outcome == "excluded" and options.exclusions:
            print(f"excluded {found['case']}: ONNX Runtime alone: {found['alone']}", flush=True)
    alone = counts["passed"] + counts["regression"]
    print(f"{len(chosen)} cases; ONNX Runtime passes {alone}, Collage {counts['passed']} of them; {seconds:.0f} s")
    return 1 if counts["regression"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
