"""What the runtime costs on top of its toolchains.

First, models of many tiny kernels: a run of the executable against the same kernels called one after the other. Then whole
models as one kernel: a run of the executable against the vendor's own Python API; beside it, as a measure of noise, the
vendor's API against itself. All of one table take turns in one process.

Usage: ``python -m benchmarks.overhead [MODEL.onnx ...] [--kernels N] [--rounds N]``
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from benchmarks.forced import executable, whole
from benchmarks.toolchain_overhead import VENDORS, medians, small_models
from onnx import TensorProto, helper

from collage.frontend import make_inputs, read_model
from collage.target import Target
from collage.toolchains import LoadOptions, registry

TARGETS = ("onnxruntime", "openvino", "llvm")
LIMIT_US = 5.0


def chain(length: int) -> onnx.ModelProto:
    """Operators of one microsecond, one after the other."""
    ops = ("Relu", "Neg", "Abs", "Sigmoid")
    nodes = [helper.make_node(ops[i % 4], [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(length)]
    first, last = (helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, [1, 16]) for i in (0, length))
    graph = helper.make_graph(nodes, "chain", [first], [last])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def one_after_the_other(exe: Any, x: np.ndarray) -> Callable[[], object]:
    """The kernels of an executable, loaded a second time and called in a plain loop."""
    kernels = []
    for record in exe.recipe.kernels:
        toolchain = registry().get(record.compiled.toolchain)
        options = LoadOptions(exclusive=False)
        kernels.append(toolchain.load(record.compiled, Target.parse(record.target), exe.workspace, options))

    def call() -> object:
        values: Sequence[np.ndarray] = [x]
        for kernel in kernels:
            values = kernel([values[0]])
        return values

    return call


def tiny_kernels(length: int, rounds: int) -> bool:
    print(f"{'tiny kernels':<28}{'kernels us':>12}{'run us':>12}{'us/kernel on top':>18}")
    x = np.random.default_rng(0).standard_normal((1, 16)).astype(np.float32)
    mixes = {**{target: [target] for target in TARGETS}, "in turns": list(TARGETS)}
    fine = True
    for name, targets in mixes.items():
        exe = executable(chain(length), [([i], targets[i % len(targets)]) for i in range(length)])
        alone, ours = medians([one_after_the_other(exe, x), lambda exe=exe: exe.run([x])], rounds)
        extra_us = (ours - alone) * 1e6 / length
        fine = fine and extra_us < LIMIT_US
        print(f"{length} x {name:<22}{alone * 1e6:>12.1f}{ours * 1e6:>12.1f}{extra_us:>18.2f}")
    return fine


def whole_models(models: Sequence[ir.Model], rounds: int) -> bool:
    print(f"\n{'whole model':<28}{'vendor us':>12}{'run us':>12}{'on top us':>12}{'ratio':>8}{'noise':>8}")
    fine = True
    for toolchain, itself in VENDORS.items():
        for model in models:
            name = str(model.graph.name)
            feeds = make_inputs(model)
            exe = whole(model, toolchain.targets[0])
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.onnx"
                ir.save(model, path)
                direct = [itself(path, list(feeds.values())) for _ in range(2)]
                vendor, again, ours = medians([*direct, lambda exe=exe, feeds=feeds: exe.run(feeds)], rounds)
            extra_us, ratio = (ours - vendor) * 1e6, ours / vendor
            fine = fine and (extra_us <= 20 or ratio <= max(1.02, again / vendor, vendor / again))
            figures = f"{vendor * 1e6:>12.1f}{ours * 1e6:>12.1f}{extra_us:>12.1f}{ratio:>8.3f}{again / vendor:>8.3f}"
            print(f"{toolchain.name + ' ' + name[:15]:<28}{figures}")
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*", help="default: a single Relu and a small convolutional network")
    parser.add_argument("--kernels", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    fine = tiny_kernels(arguments.kernels, arguments.rounds)
    models = [read_model(path) for path in arguments.models]
    for model, path in zip(models, arguments.models, strict=True):
        model.graph.name = path.parent.name
    fine = whole_models(models or small_models(), arguments.rounds) and fine
    print(f"\n{'within' if fine else 'BEYOND'} 5 us per kernel, and 2 % or 20 us per model")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
