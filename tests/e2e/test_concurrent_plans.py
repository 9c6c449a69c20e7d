"""Branches that do not wait for each other share the devices of a plan that demands nothing of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.compiler import copy_costs
from collage.compiler.copy_costs import CopyCost
from collage.device import read_device_plan
from collage.system.machine import usable_core_numbers
from collage.toolchains import Registry
from tests.e2e.conftest import LENT, model_of
from tests.e2e.fake_two_device_toolchains import NearToolchain
from tests.figures import figures

pytestmark = pytest.mark.skipif(len(usable_core_numbers()) < 2, reason="needs two cores")

SECONDS = {"Relu": 10e-3, "Exp": 10e-3, "Add": 1e-3}
X = {"x": np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)}


@pytest.fixture(autouse=True)
def _hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it takes to wake the other core set on a quiet machine; neighbours would decide the plan otherwise."""
    monkeypatch.setattr(copy_costs, "measure_copy_cost", lambda *_: CopyCost(15e-6, 1e-11))


def branches() -> onnx.ModelProto:
    """Two chains of three operators over one input, and their sum."""
    nodes = []
    for side in ("left", "right"):
        value = "x"
        for i, op in enumerate(("Relu", "Exp", "Relu")):
            nodes.append(helper.make_node(op, [value], [f"{side}{i}"], name=f"{side}/{i}"))
            value = f"{side}{i}"
    nodes.append(helper.make_node("Add", ["left2", "right2"], ["y"], name="sum"))
    tensor = (TensorProto.FLOAT, [4, 4])
    return model_of(nodes, {"x": tensor}, {"y": tensor}, {})


def compiled(finals: bool, rest: str = "") -> collage.Executable:
    one, other = sorted(usable_core_numbers())[:2]
    plan = f'[devices.a]\ndevice = "cpu:0"\ncores = [{one}]\n[devices.b]\ndevice = "cpu:1"\ncores = [{other}]\n{rest}'
    toolchains = Registry()
    toolchains.add(NearToolchain(SECONDS, "branchy"))
    options = collage.CompileOptions(devices=read_device_plan(plan.encode()), finals=finals)
    return collage.compile(branches(), ["branchy"], options=options, toolchains=toolchains, workers=LENT)


def devices_of(executable: collage.Executable) -> dict[str, str]:
    return {node: row["device"] for row in executable.report["kernels"] for node in row["nodes"]}


def sides(executable: collage.Executable) -> list[set[str]]:
    where = devices_of(executable)
    return [{where[f"{side}/{i}"] for i in range(3)} for side in ("left", "right")]


def test_branches_are_placed_on_two_devices_though_one_kernel_would_be_less_work() -> None:
    executable = compiled(finals=False)
    left, right = sides(executable)
    assert len(left) == len(right) == 1 and left != right
    assert executable.report["estimate_us"] < 45e3, "of 61 ms of work"
    expected = np.maximum(np.exp(np.maximum(X["x"], 0)), 0) * 2
    np.testing.assert_allclose(executable.run(X)["y"], expected, rtol=1e-5)


def test_what_is_pinned_to_one_device_is_not_shared() -> None:
    left, right = sides(compiled(finals=False, rest='[nodes]\n"*" = "a"\n'))
    assert left == right == {"cpu:0"}


@pytest.mark.slow
def test_the_finals_believe_it() -> None:
    executable = compiled(finals=True)
    left, right = sides(executable)
    assert left != right
    assert figures(executable.report)["speedup_vs_best_single"] > 1.3
