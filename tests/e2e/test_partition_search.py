"""Candidates end where cuts end them; the best cover shows where they should end, and the search goes on there."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

import collage
from collage.testing import FakeToolchain
from collage.toolchains import Registry
from tests.e2e.conftest import LENT, model_of
from tests.fixed_time_toolchain import DeclaredToolchain

LENGTHS = (20, 21, 19)
LAUNCH_S = 1e-3
"""Far more than the least gain that is worth a search, so that a kernel too many shows."""


def test_a_region_that_no_rule_proposed_is_found_beside_the_best_cover(tmp_path: Path) -> None:
    operators = ["Relu"] * LENGTHS[0] + ["Neg"] * LENGTHS[1] + ["Relu"] * LENGTHS[2]
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, op in enumerate(operators)]
    ports = {"v0": (TensorProto.FLOAT, [1, 8])}, {f"v{len(operators)}": (TensorProto.FLOAT, [1, 8])}
    path = tmp_path / "three_parts.onnx"
    onnx.save(model_of(nodes, *ports, {}), path)
    toolchains = Registry()
    toolchains.add(DeclaredToolchain(seconds={"": LAUNCH_S, "Relu": 3e-4, "Neg": 3e-3}, name="left"))
    toolchains.add(DeclaredToolchain(seconds={"": LAUNCH_S, "Relu": 3e-3, "Neg": 3e-4}, name="right"))
    options = collage.CompileOptions(finals=False)
    executable = collage.compile(path, ["left", "right"], options=options, toolchains=toolchains, workers=LENT)
    kernels = executable.report["kernels"]
    by_left = {node for kernel in kernels if "left" in kernel["target"] for node in kernel["nodes"]}
    assert by_left == {f"n{i}" for i, operator in enumerate(operators) if operator == "Relu"}
    # Lengths of regions double, and none but heads and tails has 20 operators or more.
    assert len(kernels) <= 6  # A busy machine may time the halves of a region below the whole.
    assert any("coalesce" in kernel["rule"] or "border" in kernel["rule"] for kernel in kernels[1:-1])


def test_where_one_target_takes_all_there_is_to_take_nothing_is_searched(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(5)]
    path = tmp_path / "chain.onnx"
    onnx.save(model_of(nodes, {"v0": (TensorProto.FLOAT, [1, 8])}, {"v5": (TensorProto.FLOAT, [1, 8])}, {}), path)
    toolchains = Registry()
    toolchains.add(FakeToolchain(name="alone"))
    toolchains.add(FakeToolchain("compile:raise", name="broken"))
    options = collage.CompileOptions(finals=False)
    report = collage.compile(path, ["alone", "broken"], options=options, toolchains=toolchains, workers=LENT).report
    assert [len(kernel["nodes"]) for kernel in report["kernels"]] == [5]
    assert report["search"]["stopped_by"] == "not started"
    assert report["search"]["measured"] == 1
