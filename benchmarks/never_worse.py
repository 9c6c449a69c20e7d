"""Race what the pass finds by measuring against classic partitioning, on random graphs.

::

    python -m benchmarks.never_worse                       # ten graphs, native code and oneDNN
    python -m benchmarks.never_worse --first 3 --graphs 1  # one of them: the whole takes minutes
    python -m benchmarks.never_worse --targets llvm,onednn --rounds 15

The first target is native code. For each other target, ``partition_for`` takes what its pattern table or its predicate takes, and
``FuseOps`` makes native kernels of the rest. ``CollageFuseOps`` gets the whole menu. All are built and raced in turns. Prints
the kernels of each, and the time of the pass's over that of the best classic one with its 95 % interval. Exit code 1 if an
interval lies above 1.02.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from benchmarks._arguments import make_parser
from onnx import TensorProto, helper, numpy_helper

import collage
from collage.artefact_comparison import compare_artefacts
from collage.byoc import FuseOps, partition_for
from collage.frontend import read_model
from collage.graph import kernels_of
from collage.runtime import Executable
from collage.transform import CollageFuseOps, PassContext, prepare

ENOUGH = 1.02
SIZE = 192
"""Rows and columns of all values: a product takes some hundred microseconds, an elementwise operator some ten."""
ONE_INPUT = ("Relu", "Tanh", "Softmax", "Transpose", "Product", "Product")
TWO_INPUTS = ("Add", "Mul", "MatMul", "Sub")


def random_model(seed: int) -> onnx.ModelProto:
    """Return a graph of 4 to 10 operators on square matrices, some of which are multiplied by constants."""
    rng, values, nodes, weights = random.Random(seed), ["x", "z"], [], []
    numbers = np.random.default_rng(seed)
    for i in range(rng.randint(4, 10)):
        inputs = rng.sample(values[-5:], 2) if rng.random() < 0.4 and len(values) > 1 else [rng.choice(values[-3:])]
        operator = rng.choice(TWO_INPUTS if len(inputs) == 2 else ONE_INPUT)
        if operator == "Product":
            array = numbers.standard_normal((SIZE, SIZE)).astype(np.float32) / SIZE**0.5
            weights.append(numpy_helper.from_array(array, f"w{i}"))
            operator, inputs = "MatMul", [*inputs, f"w{i}"]
        nodes.append(helper.make_node(operator, inputs, [f"v{i}"], name=f"n{i}"))
        values.append(f"v{i}")
    read = {name for node in nodes for name in node.input}

    def described(names: Sequence[str]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE, SIZE]) for name in names]

    ends = [node.output[0] for node in nodes if node.output[0] not in read]
    graph = helper.make_graph(nodes, f"random_{seed}", described(["x", "z"]), described(ends), weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def partitionings(model: ir.Model, targets: Sequence[str], options: collage.CompileOptions) -> dict[str, ir.Model]:
    """Return the partitioned models by name, that of the pass first."""
    with PassContext(config={"collage.enable_collage": True}):
        found = {"pass": CollageFuseOps(targets, options=options)(model)}
    return found | {f"partition_for {target}": FuseOps()(partition_for(model, target)) for target in targets[1:]}


def kernels(model: ir.Model) -> str:
    """Return the targets of a partitioned model's kernels in short."""
    return " + ".join(call.metadata.get("target", "llvm").rpartition("=")[2] for call in kernels_of(model))


def race(
    seed: int, targets: Sequence[str], folder: Path, rounds: int, options: collage.CompileOptions
) -> tuple[float, float]:
    """Race one graph, print its line, and return the interval of the worst ratio."""
    model = prepare(read_model(random_model(seed)))
    models = partitionings(model, targets, options)
    built: dict[str, Executable] = {name: collage.build(each, options=options) for name, each in models.items()}
    paths = {name: exe.save(folder / f"{seed}_{name.replace(' ', '_')}.collage") for name, exe in built.items()}
    worst = 0.0, 0.0
    for name in list(models)[1:]:
        table = compare_artefacts(paths[name], paths["pass"], rounds=rounds)
        if table["speedup"] is None:
            raise SystemExit(f"graph {seed}: {table['rows']}")
        low, high = sorted(1 / bound for bound in table["speedup_interval"])
        times = [f"{row['median_us']:.0f}" for row in table["rows"]]
        print(f"graph {seed:3}  {1 / table['speedup']:.3f} ({low:.3f} to {high:.3f})  µs {times[1]} against {times[0]}")
        print(f"           pass: {kernels(models['pass'])}\n           {name}: {kernels(models[name])}", flush=True)
        worst = max(worst, (low, high))
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script."""
    parser = make_parser(__doc__, targets=("llvm", "onednn"), rounds=15)
    parser.add_argument("--graphs", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--first", type=int, default=0, help="seed of the first graph (default: %(default)s)")
    parser.add_argument(
        "--time-budget", type=float, default=40.0, help="seconds to search a graph (default: %(default)s)"
    )
    parser.add_argument("--db", help="timing database; an empty one by default")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="collage-never-worse-") as scratch:
        folder = Path(scratch)
        made = collage.CompileOptions(
            db=options.db or str(folder / "timings.sqlite"), time_budget_s=options.time_budget
        )
        seeds = range(options.first, options.first + options.graphs)
        found = [race(seed, options.targets.split(","), folder, options.rounds, made) for seed in seeds]
    slower = sum(low > ENOUGH for low, _ in found)
    print(f"{slower} of {len(found)} slower than classic partitioning beyond doubt")
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
