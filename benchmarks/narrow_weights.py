"""Time and error of products of one row with narrow weights: each toolchain's w8 and w4, and NNCF's weights on OpenVINO.

::

    python -m benchmarks.narrow_weights [--layers 4] [--width 3072] [--rounds 15]

Weights are random: errors show how coarse they are, and say nothing about the answers of a trained model. Each row is the CPU
time of one thread, the best of all rounds, so that other processes count little. NNCF's rows need ``pip install nncf``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from collage._errors import CollageError
from collage.testing import executable_of
from collage.testing._toolchain_kernels import kernel

TARGETS = [
    f"{name}{option}"
    for name in ("onnxruntime", "openvino", "llvm")
    for option in ("", " -precision=w8", " -precision=w4")
]
MODES = {
    "int8 columns": ("INT8_SYM", None),
    "int4 groups of 64": ("INT4_SYM", 64),
    "int4 groups of 32": ("INT4_SYM", 32),
}

Array = np.ndarray[Any, Any]
Run = Callable[[], Array]


def layers(count: int, width: int) -> ir.Model:
    """Return a model of products one after the other, whose values keep their size."""
    rng = np.random.default_rng(0)
    names = ["x", *(f"h{i}" for i in range(1, count)), "y"]
    body = " ".join(f"{names[i + 1]} = MatMul ({names[i]}, w{i})" for i in range(count))
    weights = {f"w{i}": (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32) for i in range(count)}
    model = kernel("layers", f"(float[1,{width}] x) => (float[1,{width}] y) {{{body}}}", weights)
    for value in (node.outputs[0] for node in model.graph):
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([1, width])
    return model


def with_nncf(model: ir.Model, mode: str, group: int | None, x: Array) -> Run:
    """Return a run of OpenVINO with weights that NNCF rounded without data."""
    import openvino as ov

    nncf = importlib.import_module("nncf")
    core = ov.Core()
    read = core.read_model(ir.to_proto(model).SerializeToString())
    more = {} if group is None else {"group_size": group, "ratio": 1.0, "all_layers": True}
    rounded = nncf.compress_weights(read, mode=nncf.CompressWeightsMode[mode], **more)
    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    request = core.compile_model(rounded, "CPU", config).create_infer_request()
    return lambda: np.array(next(iter(request.infer({0: x}).values())))


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=3072)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(words)
    model = layers(options.layers, options.width)
    x = np.random.default_rng(1).standard_normal((1, options.width)).astype(np.float32)
    runs: dict[str, Run] = {}
    for target in TARGETS:
        try:
            executable = executable_of(model, f"{target} -threads=1", threads=1)
            runs[target] = lambda executable=executable: executable.run({"x": x})["y"]  # type: ignore[misc]
        except CollageError as error:
            print(f"{target}: {error}")
    for name, (mode, group) in MODES.items():
        try:
            runs[f"OpenVINO, NNCF {name}"] = with_nncf(model, mode, group, x)
        except ImportError as error:
            print(f"NNCF {name}: {error}")
    times: dict[str, list[float]] = {name: [] for name in runs}
    outputs = {name: run() for name, run in runs.items()}
    for _ in range(options.rounds):
        for name, run in runs.items():
            run()
            before = time.process_time()
            run()
            times[name].append(time.process_time() - before)
    right, base = outputs[TARGETS[0]], min(times[TARGETS[0]])
    print(f"{'':<32}{'ms':>8}{'factor':>8}{'error':>10}")
    for name, found in times.items():
        off = np.abs(outputs[name] - right).max() / np.abs(right).max()
        print(f"{name:<32}{1e3 * min(found):>8.2f}{base / min(found):>8.1f}{off:>10.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
