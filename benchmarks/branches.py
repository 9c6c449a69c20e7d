"""Gains of branches side by side: on towers of small recurrent layers, and on any model that is named.

Each model is compiled. If its plan has branches that run at the same time, it is raced against two plans without: the fastest
single target, and the same kernels one after the other. Each lives in clean processes, and they take turns in random order. A
ratio above 1 says how many times as fast the plan with branches is. Says nothing on a machine on which anything else runs.

::

    python -m benchmarks.branches [--models MODEL.onnx,...] [--targets T,...] [--rounds N]
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from benchmarks._arguments import chosen_models, make_parser
from onnx import TensorProto, helper, numpy_helper

import collage
from collage import CompileOptions
from collage.artefact_comparison import compare_artefacts
from collage.plan_file import read_plan
from collage.runtime import Executable

TARGETS = ("onnxruntime", "onnxruntime -threads=1", "openvino", "openvino -threads=1")
TOWERS = {"2 towers of GRU": ("GRU", 2), "4 towers of GRU": ("GRU", 4), "2 towers of LSTM": ("LSTM", 2)}
GATES = {"GRU": 3, "LSTM": 4}
STEPS, HIDDEN, LAYERS, CLASSES = 100, 128, 2, 10


def towers(op: str, count: int) -> onnx.ModelProto:
    """Stacks of recurrent layers over inputs of their own, joined by Concat, and a product."""
    random = np.random.default_rng(0)
    nodes, weights, ends = [], [numpy_helper.from_array(np.array([1]), "axis")], []

    def weight(name: str, *shape: int) -> str:
        values = (random.standard_normal(shape) / HIDDEN**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    for tower in range(count):
        value, rows = f"x{tower}", GATES[op] * HIDDEN
        for layer in range(LAYERS):
            name = f"tower{tower}/{layer}"
            reads = [value, weight(f"{name}/w", 1, rows, HIDDEN), weight(f"{name}/r", 1, rows, HIDDEN)]
            nodes.append(helper.make_node(op, reads, [f"{name}/h"], name=name, hidden_size=HIDDEN))
            value = f"{name}/s"
            nodes.append(helper.make_node("Squeeze", [f"{name}/h", "axis"], [value], name=f"{name}/squeeze"))
        ends.append(value)
    nodes.append(helper.make_node("Concat", ends, ["joined"], name="join", axis=2))
    nodes.append(helper.make_node("MatMul", ["joined", weight("head", count * HIDDEN, CLASSES)], ["y"], name="head"))
    inputs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [STEPS, 1, HIDDEN]) for i in range(count)]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [STEPS, 1, CLASSES])
    graph = helper.make_graph(nodes, "towers", inputs, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def in_turn(executable: Executable) -> Executable:
    """The same kernels, one after the other."""
    kernels = tuple(replace(kernel, branch=None) for kernel in executable.recipe.kernels)
    return Executable(replace(executable.recipe, kernels=kernels), executable.workspace, is_lazy=True)


def fastest_single(model: Path, executable: Executable, options: CompileOptions) -> Executable:
    """The whole model on the single target that came nearest."""
    singles = [row for row in executable.report.rows if row.kind == "single" and row.ratio is not None and row.target]
    target = min(singles, key=lambda row: row.ratio.value if row.ratio else 0.0).target or ""
    assert isinstance(options.plan_out, Path)
    plan = read_plan(options.plan_out)
    nodes = tuple(node for kernel in plan.kernels for node in kernel.nodes)
    whole = replace(
        plan, kernels=(replace(plan.kernels[0], target=target, nodes=nodes, parts=(), branch=None, bodies=()),)
    )
    return collage.compile(model, [target], options=replace(options, plan=whole, plan_out=None, finals=False))


def look(name: str, model: Path, targets: list[str] | None, rounds: int, folder: Path) -> None:
    """Compile one model and print what its branches gain."""
    options = CompileOptions(plan_out=folder / "plan.json", db=str(folder / "timings.sqlite"))
    executable = collage.compile(model, targets, options=options)
    report = executable.report
    if not executable.recipe.branches:
        rows = [row for row in report.rows if "side by side" in row.name]
        told = f"not faster: {rows[0].verdict}" if rows else "none that are predicted to gain"
        print(f"{name}: no branches side by side ({told}); returned is {report.winner}", flush=True)
        return
    print(f"{name}: {executable!r}", flush=True)
    with_branches = executable.save(folder / "with.collage")
    for words, other in (
        ("the fastest single target", fastest_single(model, executable, options)),
        ("the same kernels in turn", in_turn(executable)),
    ):
        found = compare_artefacts(other.save(folder / "without.collage"), with_branches, model, rounds=rounds)
        before, after = (row["median_us"] / 1e3 for row in found["rows"])
        low, high = found["speedup_interval"]
        ratio = f"{found['speedup']:.3f} ({low:.3f} to {high:.3f})"
        print(f"  {ratio} times as fast as {words}: {after:.3f} ms, {before:.3f} ms without", flush=True)


def main() -> int:
    parser = make_parser(__doc__, models="", without_models="towers that are made up", targets=("default",), rounds=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        named = [(model.name, model.path) for model in chosen_models(given)] if given.models else []
        for name, (op, count) in () if named else TOWERS.items():
            path = Path(scratch) / f"{op}{count}.onnx"
            onnx.save(towers(op, count), path)
            named.append((name, path))
        targets = list(TARGETS) if not given.models else None
        targets = targets if given.targets == "default" else given.targets.split(",")
        for number, (name, path) in enumerate(named):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            look(name, path, targets, given.rounds, folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
