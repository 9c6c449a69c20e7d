"""Programs that crash tests run in processes of their own: ``python -m tests.crash._tuners NAME ARGUMENTS``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary
from collage.cost.workload_key import WorkloadKey
from collage.database import Database, FactKind
from collage.status import Status
from collage.toolchains import Registry
from tests.fixed_time_toolchain import DeclaredToolchain

KEY = WorkloadKey("kernel", "(1, 2)float32", "llvm", "tvm 1", "machine", 0, 4)
NOTE: FactKind[Mapping[str, int]] = FactKind("note", Mapping[str, int])
SHARED = 10
# Neighbours have different favourites, so that no two covers cost nearly the same.
OPERATORS = ("Relu", "Exp", "Abs", "Exp", "Relu")
MENU = (
    DeclaredToolchain(seconds={"Relu": 0.002, "Abs": 0.002, "Exp": 0.02}, name="fakea"),
    DeclaredToolchain(seconds={"Relu": 0.02, "Abs": 0.02, "Exp": 0.002}, name="fakeb"),
)


def outcome_of(key: WorkloadKey) -> Outcome:
    """An outcome that tells which key it belongs to."""
    seconds = int(key.digest[:8], 16) / 2**32 + 1.0
    return Outcome(Status.OK, None, Summary(seconds, seconds, seconds, 5, 0.0), 0.0, seconds)


def key_of(tuner: str, number: int) -> WorkloadKey:
    """Of every ten keys, one belongs to all tuners."""
    return replace(KEY, kernel=f"{'all' if number % SHARED == 0 else tuner}-{number}")


def write(url: str, tuner: str, count: str) -> None:
    """Reads and writes as a tuner does; whatever is found must belong to its key."""
    with Database(url) as database:
        for number in range(int(count)):
            key = key_of(tuner, number)
            found = database.find(key)
            assert found is None or found.outcome.time == outcome_of(key).time
            database.record(key, outcome_of(key))
            database.keep_fact(NOTE, {"number": number}, tuner=tuner)


def model(operators: tuple[str, ...] = OPERATORS) -> onnx.ModelProto:
    """A chain."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    names = ["x", *(f"v{i}" for i in range(1, len(operators))), "y"]
    nodes = [helper.make_node(op, names[i : i + 1], names[i + 1 : i + 2]) for i, op in enumerate(operators)]
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def tune(url: str, plan_file: str, first: str = "Relu") -> None:
    """Compiles a model, says what was recorded once it is, and at last writes the plan."""
    import collage
    from tests.short_measurements import shorten_measurements

    shorten_measurements()
    record = Database.record

    def acknowledged(self: Database, key: WorkloadKey, outcome: Outcome) -> None:
        record(self, key, outcome)
        median = outcome.time.median_s if outcome.time else None
        os.write(1, (json.dumps([key.digest, outcome.status.value, median]) + "\n").encode())

    Database.record = acknowledged  # type: ignore[method-assign]
    toolchains = Registry()
    for toolchain in MENU:
        toolchains.add(toolchain)
    options = collage.CompileOptions(db=url, finals=False)
    executable = collage.compile(
        model((first, *OPERATORS[1:])), [t.name for t in MENU], options=options, toolchains=toolchains
    )
    plan = [[kernel["target"], kernel["nodes"]] for kernel in executable.report["kernels"]]
    Path(plan_file).write_text(json.dumps({"plan": plan, "search": executable.report["search"]}))


if __name__ == "__main__":
    {"write": write, "tune": tune}[sys.argv[1]](*sys.argv[2:])
