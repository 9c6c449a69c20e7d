"""Bodies of Loops are searched as graphs of their own; what comes of it is never wrong, and the cheapest there is."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage import CompileOptions
from collage._errors import Unsupported
from collage.measure.process_compat import ProcessCompatibility, Verdict
from collage.plan_file import read_plan
from collage.testing.onnx_suite import with_onnxruntime
from collage.toolchains import Registry
from tests.e2e.conftest import LENT, model_of
from tests.fixed_time_toolchain import DeclaredToolchain

LAUNCH_S = 1e-3
TRIPS = 3
LEFT = {"": LAUNCH_S, "Loop": 0.05, "Tanh": 3e-4, "Neg": 4e-3, "Add": 1e-4, "Identity": 0.0}
RIGHT = {"": LAUNCH_S, "Loop": 0.05, "Tanh": 4e-3, "Neg": 3e-4, "Add": 2e-4, "Identity": 0.0}


@pytest.fixture(autouse=True)
def shared_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fakes can share a process, with the host too: none is started to see that."""
    monkeypatch.setattr(ProcessCompatibility, "_probe", lambda *_: (Verdict(True), False))


class DeathInBodies(DeclaredToolchain):
    """A toolchain whose kernels are right alone, and kill the process in which they are called for a body."""

    def load(self, *arguments: Any, **named: Any) -> Any:
        """A kernel that looks at its callers."""
        kernel = super().load(*arguments, **named)

        class Deadly:
            reuses_outputs = False

            def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
                frame = sys._getframe()
                while (frame := frame.f_back) is not None:
                    if frame.f_code.co_filename.endswith("_control_flow.py"):
                        os.kill(os.getpid(), signal.SIGSEGV)
                return kernel(inputs)

        return Deadly()


class NoLoops(DeclaredToolchain):
    """A toolchain that takes no operator with a body."""

    def compile(self, kernel: Any, target: Any, workspace: Path) -> Any:
        """Refuses a kernel with control flow."""
        if any(node.op_type == "Loop" for node in kernel.graph):
            raise Unsupported("it takes no Loop")
        return super().compile(kernel, target, workspace)


def loop_of(operators: Sequence[str], path: Path, *, is_all: bool = False) -> Path:
    """A Loop whose body is a chain of operators over its state; one more stands before it, unless the Loop is all."""
    nodes = [helper.make_node("Identity", ["on"], ["still"], name="still")]
    nodes += [
        helper.make_node(op, [f"v{i}", *(["x"] if op == "Add" else [])], [f"v{i + 1}"], name=f"n{i}")
        for i, op in enumerate(operators)
    ]
    count = len(operators)
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        nodes,
        "body",
        [value("i", TensorProto.INT64, []), value("on", TensorProto.BOOL, []), value("v0", TensorProto.FLOAT, [1, 8])],
        [value("still", TensorProto.BOOL, []), value(f"v{count}", TensorProto.FLOAT, [1, 8])],
    )
    top = [
        helper.make_node("Neg", ["x"], ["begin"], name="before"),
        helper.make_node("Loop", ["trips", "goes", "x" if is_all else "begin"], ["y"], body=body, name="loop"),
    ][is_all:]
    ports = {"x": (TensorProto.FLOAT, [1, 8])}, {"y": (TensorProto.FLOAT, [1, 8])}
    onnx.save(model_of(top, *ports, {"trips": np.int64(TRIPS), "goes": np.True_}), path)
    return path


def registry_of(*toolchains: DeclaredToolchain) -> Registry:
    made = Registry()
    for toolchain in toolchains:
        made.add(toolchain)
    return made


def assert_right(executable: Any, path: Path) -> None:
    x = np.linspace(-1, 1, 8, dtype=np.float32)[None]
    (expected,) = with_onnxruntime(onnx.load(path))([x])
    np.testing.assert_allclose(executable(x), expected, rtol=1e-5)


def body_seconds(kernels: Sequence[Any], seconds: Mapping[str, Mapping[str, float]], ops: Mapping[str, str]) -> float:
    """The declared seconds of one run of a body by these kernels, those of the host apart."""
    owned = [(seconds[name], k.nodes) for k in kernels for name in seconds if k.target.endswith(f"={name}")]
    return sum(own[""] + sum(own[ops[node]] for node in nodes) for own, nodes in owned)


def cheapest_seconds(operators: Sequence[str], seconds: Mapping[str, Mapping[str, float]]) -> float:
    """The cheapest way to cut a chain into kernels and to give each to a toolchain, by trying all."""

    def cuts() -> Iterator[list[Sequence[str]]]:
        for marks in itertools.product([False, True], repeat=len(operators) - 1):
            ends = [i + 1 for i, mark in enumerate(marks) if mark]
            yield [operators[a:b] for a, b in zip([0, *ends], [*ends, len(operators)], strict=True)]

    return min(
        sum(min(own[""] + sum(own[op] for op in part) for own in seconds.values()) for part in parts)
        for parts in cuts()
    )


def assert_cheapest(executable: Any, operators: Sequence[str], seconds: Mapping[str, Mapping[str, float]]) -> None:
    """Every operator of the body is in one kernel, and no other kernels would cost less."""
    (row,) = (row for row in executable.report.kernels if "loop" in row.nodes)
    ops = {f"n{i}": op for i, op in enumerate(operators)} | {"still": "Identity"}
    computing = [kernel for kernel in row.bodies if set(kernel.nodes) != {"still"}]
    assert sorted(node for kernel in row.bodies for node in kernel.nodes) == sorted(ops)
    assert body_seconds(computing, seconds, ops) == pytest.approx(cheapest_seconds(operators, seconds))


def targets_of(executable: Any) -> dict[tuple[str, ...], str]:
    return {tuple(k.nodes): k.target for row in executable.report.kernels for k in row.bodies}


def test_a_menu_that_takes_no_loop_still_runs_its_body_as_fast_as_can_be(tmp_path: Path) -> None:
    operators, seconds = ["Tanh", "Neg"], {"left": LEFT, "right": RIGHT}
    path = loop_of(operators, tmp_path / "loop.onnx", is_all=True)
    toolchains = registry_of(*(NoLoops(seconds=own, name=name) for name, own in seconds.items()))
    options = CompileOptions(search="exhaustive", db=f"sqlite:///{tmp_path}/db", finals=False, baseline="none")
    executable = collage.compile(path, ["left", "right"], options=options, toolchains=toolchains, workers=LENT)
    assert_cheapest(executable, operators, seconds)
    assert {"left", "right"} <= {
        line.split()[-1] for line in str(executable.explain()).splitlines() if "_body_" in line
    }
    assert_right(executable, path)


@pytest.mark.slow
def test_the_search_of_a_body_finds_what_trying_all_finds(tmp_path: Path) -> None:
    operators = ["Tanh", "Neg", "Add", "Tanh"]
    path, seconds = loop_of(operators, tmp_path / "loop.onnx"), {"left": LEFT, "right": RIGHT}
    toolchains = registry_of(*(DeclaredToolchain(seconds=own, name=name) for name, own in seconds.items()))
    options = CompileOptions(search="exhaustive", plan_out=tmp_path / "plan.json", db=f"sqlite:///{tmp_path}/db")
    executable = collage.compile(path, ["left", "right"], options=options, toolchains=toolchains, workers=LENT)
    assert_cheapest(executable, operators, seconds)
    assert_right(executable, path)
    # The same again from a plan file, and from the memory of the database.
    plan = read_plan(tmp_path / "plan.json")
    assert {"llvm -compiler=left", "llvm -compiler=right"} <= set(plan.targets)
    given = CompileOptions(plan=plan, db=options.db)
    again = collage.compile(path, options=given, toolchains=toolchains, workers=LENT)
    assert targets_of(again) == targets_of(executable)
    assert_right(again, path)
    remembered = collage.compile(path, ["left", "right"], options=options, toolchains=toolchains, workers=LENT)
    assert not remembered.report.search.raced
    assert targets_of(remembered) == targets_of(executable)


@pytest.mark.slow
def test_a_death_in_a_body_costs_the_candidate_and_nothing_else(tmp_path: Path) -> None:
    path = loop_of(["Tanh", "Neg"], tmp_path / "loop.onnx")
    deadly = DeathInBodies(seconds={**LEFT, "Tanh": 1e-5, "Neg": 1e-5}, name="deadly")
    options = CompileOptions(db=f"sqlite:///{tmp_path}/db")
    executable = collage.compile(path, ["deadly", "onnxruntime"], options=options, toolchains=registry_of(deadly))
    assert not any(inner.target.endswith("=deadly") for row in executable.report.kernels for inner in row.bodies)
    assert_right(executable, path)


class CountOfCosts:
    """An estimator that knows what operators cost on each target."""

    def __init__(self, seconds: Mapping[str, Mapping[str, float]]) -> None:
        self.asked: list[str] = []
        self._seconds = seconds

    def estimate(self, kernel: Any, target: Any) -> float:
        """The sum over the operators; a Loop costs what the toolchain says of it."""
        self.asked.append(str(target))
        own = self._seconds[target.toolchain]
        return own[""] + sum(own[node.op_type] for node in kernel.graph)


@pytest.mark.parametrize(("whole_s", "is_body"), [(1.0, True), pytest.param(1e-3, False, marks=pytest.mark.slow)])
def test_an_estimator_decides_about_bodies(tmp_path: Path, whole_s: float, is_body: bool) -> None:
    operators = ["Tanh", "Neg"]
    path = loop_of(operators, tmp_path / "loop.onnx", is_all=True)
    seconds = {"left": {**LEFT, "Loop": whole_s}, "right": {**RIGHT, "Loop": whole_s}}
    toolchains = registry_of(*(DeclaredToolchain(seconds=own, name=name) for name, own in seconds.items()))
    plan_file, database = tmp_path / "plan.json", f"sqlite:///{tmp_path}/db"
    options = CompileOptions(db=database, plan_out=plan_file)
    executable = collage.compile(
        path, ["left", "right"], options=options, toolchains=toolchains, workers=LENT, estimator=CountOfCosts(seconds)
    )
    (row,) = executable.report.kernels
    assert bool(row.bodies) == is_body
    assert_right(executable, path)
    if not is_body:
        return
    assert_cheapest(executable, operators, seconds)
    assert row.estimate_us == pytest.approx(1e6 * TRIPS * cheapest_seconds(operators, seconds), rel=1e-3)
    assert "on llvm -compiler=left, llvm -compiler=right" in repr(executable)
    # The same again from an artefact, and from a plan file.
    executable.save(tmp_path / "artefact")
    loaded = collage.load(tmp_path / "artefact", toolchains=toolchains)
    assert "_body_left_" in str(loaded.explain())
    assert_right(loaded, path)
    given = CompileOptions(plan=plan_file, db=database, finals=False, baseline="none")
    again = collage.compile(path, options=given, toolchains=toolchains, workers=LENT)
    assert targets_of(again) == targets_of(executable)
    assert_right(again, path)
