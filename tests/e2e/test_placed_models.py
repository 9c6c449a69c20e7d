"""Random models whose free operators are placed at random costs: what the search pays for is what is then copied."""

from __future__ import annotations

import random

import numpy as np
import onnx_ir as ir
import pytest

import collage
from collage.compiler.device_placement import DevicePlacement
from collage.compiler.estimated_search import EstimatedCosts, estimated_cover, estimated_plan
from collage.compiler.preparation import Verdict
from collage.compiler.problem import Problem
from collage.compiler.survey import Reference, Survey, supported_baselines
from collage.cost import Cost
from collage.device import (
    PlanDevices,
    SEScope,
    asked_scope,
    copy_scopes,
    is_device_copy,
    on_device,
    read_device_plan,
    require_output,
)
from collage.frontend import read_model
from collage.fusion import FusionReport
from collage.graph import KernelSpec, NameSupply, kernels_of, partition
from collage.measure.check_inputs import CheckingSets
from collage.measure.kernel_factory import kernel_attributes
from collage.search import copies_of
from collage.target import Target
from collage.toolchains import Availability, Registry
from collage.transform import prepare
from tests.e2e.fake_two_device_toolchains import NearToolchain
from tests.unit.device.simulation import random_inputs, random_model, run

PLAN = b'[devices.a]\ndevice = "cpu:0"\n[devices.b]\ndevice = "cpu:1"\n[devices.c]\ndevice = "cuda:0"\n'


Ways = tuple[str, str]
"""Where a copy is from, and where it goes."""


class AtRandom:
    """A cost estimator that gives every operator on every kind of device a random cost."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def estimate(self, module: ir.Model, target: Target) -> Cost:
        names = [f"{self.seed} {target.kind} {value.name}" for node in module.graph for value in node.outputs]
        return Cost(seconds=sum(1e-3 * random.Random(name).random() for name in names))


def demand(model: ir.Model, seed: int) -> None:
    """Some operators somewhere; all inputs and outputs, since free ones cost nothing to plan but something to bring."""
    rng = random.Random(seed)
    for node in model.graph:
        # A kernel's shapes are the host's, wherever somebody asks for them; the search does not count on that.
        if node.op_type not in ("Constant", "If", "Loop", "Scan", "Shape", "Size") and rng.random() < 0.15:
            on_device(node, rng.choice(["cpu:0", "cpu:1", "cuda:0", "cpu"]))
    for value in model.graph.inputs:
        on_device(value, rng.choice(["cpu:0", "cpu:1", "cuda:0"]))
    for value in model.graph.outputs:
        require_output(model, str(value.name), rng.choice(["cpu:0", "cpu:1", "cuda:0"]))


def placed(model: ir.Model, seed: int, placement: DevicePlacement) -> tuple[ir.Model, list[Ways]]:
    """The model partitioned as the search places it, and the copies that the search paid for."""
    toolchains = Registry()
    toolchains.add(NearToolchain({}))
    toolchains.add(NearToolchain({}, "far", "cuda"))
    menu = tuple(toolchains.parse_target(name) for name in ("near", "cuda:far"))
    problem = Problem.of(model, menu, toolchains, collage.CompileOptions(), placement)
    graph = problem.graph
    baselines = supported_baselines(problem, lambda _: Availability(True))
    survey = Survey(problem, Reference(CheckingSets(), None, Verdict()), baselines)
    costs = EstimatedCosts(problem, AtRandom(seed))
    _, _, cover = estimated_cover(survey, costs, FusionReport())
    plan = estimated_plan(problem, costs, cover.candidates)
    names = NameSupply("kernel")
    specs = []
    for kernel in plan.kernels:
        assert placement.allows(kernel.sub_graph.nodes, kernel.target)
        scope = placement.result_scope(kernel.sub_graph.nodes, kernel.target, kernel.device)
        name = names.fresh("kernel")
        specs.append(KernelSpec(kernel.sub_graph, name, kernel_attributes(kernel.target, name, scope)))
    transfers = placement.transfers(graph)
    kernels = [(kernel.sub_graph.inside.bits, placement.devices.index(kernel.device)) for kernel in plan.kernels]
    ways = [(str(placement.devices[src]), str(placement.devices[dst])) for _, src, dst in copies_of(kernels, transfers)]
    return partition(model, specs), sorted(ways)


@pytest.mark.few(5)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed >= 15 else ()) for seed in range(40)]
)
def test_what_the_search_pays_for_is_what_is_copied(seed: int) -> None:
    requests = read_device_plan(PLAN)
    model = prepare(read_model(ir.to_proto(random_model(seed))))
    expected = run(model, random_inputs())
    demand(model, seed)
    placement = DevicePlacement(model, requests)
    assert placement.is_free
    partitioned, paid = placed(model, seed, placement)
    planned = PlanDevices(requests.config())(partitioned)
    copies = [copy_scopes(node) for node in planned.graph if is_device_copy(node)]
    assert sorted((str(src.device), str(dst.device)) for src, dst in copies) == paid
    for one, other in zip(run(planned, random_inputs()), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    for call in kernels_of(partitioned):
        scope = SEScope.parse(call.function.metadata_props["result_se_scope"])
        asked = [asked_scope(node) for node in call.function.all_nodes()]
        assert all(wish is None or wish.join(scope.device) is not None for wish in asked), "a kernel spans two devices"
