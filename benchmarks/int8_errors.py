"""Errors of whole models in calibrated 8 bits, with the means of channels noted and without.

Ranges and means come from eight made-up inputs, errors from eight others. The figure is the largest difference, relative to the
largest output of ONNX Runtime in float32. Nothing is timed.

Usage: ``python -m benchmarks.int8_errors MODEL.onnx ...``.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from benchmarks._arguments import make_parser

from collage.calibration import annotate_ranges, collect_ranges, mean_axes, runs_worker
from collage.frontend import make_inputs, place_weights, read_model
from collage.graph import VALUE_MEANS, copy_model
from collage.target import Target
from collage.toolchains import LoadOptions, registry
from collage.transform import prepare

COUNT = 8
TARGETS = tuple(
    f"llvm -compiler={name}"
    for name in ("onnxruntime -precision=int8", "openvino -precision=int8", "openvino -precision=bf16")
)


def answers(model: ir.Model, target: Target, folder: Path, inputs: list[dict[str, Any]]) -> list[list[Any]]:
    """Return the outputs of a model on several inputs."""
    toolchain = registry().for_target(target)
    compiled = toolchain.compile(copy_model(model), target, folder)
    loaded = toolchain.load(compiled, target, folder, LoadOptions(1))
    return [[np.array(y) for y in loaded([fed[name] for name in compiled.inputs])] for fed in inputs]


def errors(found: list[list[Any]], exact: list[list[Any]]) -> list[float]:
    """Return the largest error of each answer, relative to the largest element."""
    return [
        max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in zip(*pair, strict=True))
        for pair in zip(found, exact, strict=True)
    ]


def table_of(path: Path, folder: Path) -> Mapping[str, list[float]]:
    """Return the errors on each judging input, by what was computed."""
    model = place_weights(prepare(read_model(path)), folder)
    inputs = [dict(make_inputs(model, 1000 + i)) for i in range(2 * COUNT)]
    ir.save(model, folder / "model.onnx")
    with runs_worker(folder / "model.onnx") as worker:
        ranges = collect_ranges(worker, inputs[:COUNT], folder / "sample", axes=mean_axes(model))
    annotate_ranges(model, ranges)
    exact = answers(model, Target.parse("llvm -compiler=onnxruntime"), folder, inputs[COUNT:])
    plain = copy_model(model)
    for value in (*plain.graph.inputs, *(value for node in plain.graph for value in node.outputs)):
        value.metadata_props.pop(VALUE_MEANS, None)
    found = {}
    for text in TARGETS:
        target = Target.parse(text)
        if target.is_calibrated:
            found[f"{text}, ranges alone"] = errors(answers(plain, target, folder, inputs[COUNT:]), exact)
        found[text] = errors(answers(model, target, folder, inputs[COUNT:]), exact)
    return found


def main() -> None:
    """Entry point of the script."""
    parser = make_parser(__doc__)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="ONNX files")
    for path in parser.parse_args().models:
        with tempfile.TemporaryDirectory() as folder:
            for name, found in table_of(path, Path(folder)).items():
                print(f"{path}: {name}: largest {max(found):.1e}, mean {statistics.fmean(found):.1e}", flush=True)


if __name__ == "__main__":
    main()
