"""What two core sets of one machine gain where a model has two independent branches.

The same kernels, compiled and placed twice: the branches on two core sets, and both on the first. They take turns in one
process; printed is the ratio of their times. With perfect overlap it is 0.5; more than 0.7 is a failure. Says nothing on a
machine on which anything else runs.

::

    python -m benchmarks.two_devices [--rounds N] [--targets T]
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
import onnx
from benchmarks._arguments import make_parser
from onnx import TensorProto, helper, numpy_helper

import collage
from collage.cost.statistics import ratio_of_medians
from collage.device import DeviceRequests, read_device_plan

LIMIT = 0.7
WIDTH = 512
DEPTH = 6
RUNS = 10


def two_branches() -> onnx.ModelProto:
    """Two chains of products over one input, and their sum."""
    random = np.random.default_rng(0)
    nodes, weights = [], []
    for branch in ("left", "right"):
        value = "x"
        for i in range(DEPTH):
            weight = (random.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
            weights.append(numpy_helper.from_array(weight, f"{branch}_w{i}"))
            nodes.append(
                helper.make_node("MatMul", [value, f"{branch}_w{i}"], [f"{branch}_m{i}"], name=f"{branch}/mm{i}")
            )
            nodes.append(helper.make_node("Relu", [f"{branch}_m{i}"], [f"{branch}_r{i}"], name=f"{branch}/relu{i}"))
            value = f"{branch}_r{i}"
    nodes.append(helper.make_node("Add", [f"left_r{DEPTH - 1}", f"right_r{DEPTH - 1}"], ["y"], name="sum"))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [WIDTH, WIDTH]) for name in ("x", "y"))
    graph = helper.make_graph(nodes, "two_branches", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def plan(right: str) -> DeviceRequests:
    """Two halves of this machine's cores; the right branch on one of them, everything else on the first."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    if not half:
        raise SystemExit("this needs two cores")
    text = f"""
        default = "first"
        [devices.first]
        device = "cpu:0"
        cores = {cores[:half]}
        [devices.second]
        device = "cpu:1"
        cores = {cores[half : 2 * half]}
        [nodes]
        "left/*" = "first"
        "right/*" = "{right}"
    """
    return read_device_plan(text.encode())


def placed(model: onnx.ModelProto, right: str, targets: Sequence[str]) -> collage.Executable:
    """The model with its right branch on a device; one kernel for each branch."""
    options = collage.CompileOptions(devices=plan(right), finals=False, measure_budget=0)
    return collage.compile(model, targets=targets, options=options)


def main() -> int:
    given = make_parser(__doc__, targets=("onnxruntime",), rounds=30).parse_args()
    model = two_branches()
    executables = [placed(model, right, given.targets.split(",")) for right in ("second", "first")]
    for name, executable in zip(("two devices", "one device"), executables, strict=True):
        print(name, *(f"{kernel.device}:{kernel.name}" for kernel in executable.recipe.kernels), sep="\n  ")
    inputs = {"x": np.random.default_rng(1).standard_normal((WIDTH, WIDTH)).astype(np.float32)}
    results = [executable.run(inputs)["y"] for executable in executables]
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)
    rounds: list[list[float]] = [[], []]
    for _ in range(given.rounds):
        for executable, samples in zip(executables, rounds, strict=True):
            executable.run(inputs)
            began = time.perf_counter()
            for _ in range(RUNS):
                executable.run(inputs)
            samples.append((time.perf_counter() - began) / RUNS)
    ratio, interval = ratio_of_medians(*rounds)
    print(f"one device {np.median(rounds[1]) * 1e3:.2f} ms, two devices {np.median(rounds[0]) * 1e3:.2f} ms")
    print(f"ratio {ratio:.3f} (95 % interval {interval.low:.3f} to {interval.high:.3f}), at most {LIMIT}")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
