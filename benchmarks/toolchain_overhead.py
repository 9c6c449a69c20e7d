"""What the toolchain contract costs on top of each vendor's own Python API.

Runs one model as a whole-model kernel through Collage's contract and directly, taking turns in one process, and prints
the ratio of the medians; beside it, as a measure of noise, the same ratio of the vendor's API against itself.

Usage: ``python benchmarks/toolchain_overhead.py [MODEL.onnx] [--rounds N]``; without a model, a small convolutional
network and a single Relu are used.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir

from collage.target import Target
from collage.testing._toolchain_kernels import kernel
from collage.toolchains import LoadOptions, Toolchain
from collage.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
from collage.toolchains.openvino.toolchain import OpenVinoToolchain


def onnxruntime_itself(path: Path, inputs: list[np.ndarray]) -> Callable[[], object]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options)
    feeds = dict(zip((port.name for port in session.get_inputs()), inputs, strict=True))
    return lambda: session.run(None, feeds)


def openvino_itself(path: Path, inputs: list[np.ndarray]) -> Callable[[], object]:
    import openvino as ov

    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(path, "CPU", config).create_infer_request()
    feeds = dict(enumerate(inputs))
    return lambda: request.infer(feeds, share_inputs=True, share_outputs=True)


VENDORS: dict[Toolchain, Callable[[Path, list[np.ndarray]], Callable[[], object]]] = {
    OnnxRuntimeToolchain(): onnxruntime_itself,
    OpenVinoToolchain(): openvino_itself,
}


def small_models() -> list[ir.Model]:
    random = np.random.default_rng(0)
    body, weights, last = "", {}, "x"
    for layer, (inner, outer) in enumerate(((3, 32), (32, 64), (64, 64), (64, 64))):
        weights[f"w{layer}"] = random.standard_normal((outer, inner, 3, 3)).astype(np.float32) / 10
        body += f"c{layer} = Conv <pads = [1,1,1,1]> ({last}, w{layer}) r{layer} = Relu (c{layer})\n"
        last = f"r{layer}"
    network = f"(float[1,3,56,56] x) => (float[1,64,56,56] {last}) {{{body}}}"
    return [kernel("relu", "(float[1,16] x) => (float[1,16] y) {y = Relu (x)}"), kernel("convs", network, weights)]


def inputs_of(model: ir.Model) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    shapes = ([size if isinstance(size, int) else 1 for size in value.shape or ()] for value in model.graph.inputs)
    types = (value.dtype.numpy() for value in model.graph.inputs)
    return [random.random(shape).astype(dtype) for shape, dtype in zip(shapes, types, strict=True)]


def medians(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Median seconds of each call; the calls take turns in a random order, as each leaves its threads spinning."""
    random = np.random.default_rng(0)
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(10):
        for call in calls:
            call()
    for _ in range(rounds):
        for i in random.permutation(len(calls)):
            began = time.perf_counter()
            calls[i]()
            seconds[i].append(time.perf_counter() - began)
    return [statistics.median(each) for each in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    models = [ir.load(arguments.model)] if arguments.model else small_models()
    print(f"{'toolchain':<14}{'model':<20}{'vendor API us':>14}{'kernel us':>12}{'ratio':>8}{'noise':>8}")
    for toolchain, itself in VENDORS.items():
        for model in models:
            model.graph.name = model.graph.name or "model"
            with tempfile.TemporaryDirectory() as folder:
                workspace, target = Path(folder), Target.parse(toolchain.targets[0])
                compiled = toolchain.compile(model, target, workspace)
                loaded = toolchain.load(compiled, target, workspace, LoadOptions(exclusive=True))
                inputs = inputs_of(model)
                direct_calls = [itself(workspace / compiled.files[0], inputs) for _ in range(2)]
                direct, again, ours = medians([*direct_calls, lambda k=loaded, x=inputs: k(x)], arguments.rounds)
            figures = f"{direct * 1e6:>14.1f}{ours * 1e6:>12.1f}{ours / direct:>8.3f}{again / direct:>8.3f}"
            print(f"{toolchain.name:<14}{model.graph.name[:18]:<20}{figures}")


if __name__ == "__main__":
    main()
