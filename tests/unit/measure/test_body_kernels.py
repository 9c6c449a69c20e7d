"""Plans of bodies have targets of their own, and come back from JSON only if they fit."""

from __future__ import annotations

import copy
from typing import Any

import onnx_ir as ir
import pytest
from tests.unit.runtime.test_control_flow import counting_loop

from collage._errors import UsageError
from collage.frontend import read_model
from collage.graph import DataflowGraph, IndexSet
from collage.measure.body_kernels import BodyKernel, BodyPlans
from collage.runtime import has_bodies
from collage.target import HOST_TARGET, Target
from collage.transform import prepare

ONE, OTHER = Target.parse("llvm -compiler=one"), Target.parse("llvm -compiler=other")


def loop() -> ir.Node:
    return next(node for node in ir.from_proto(counting_loop()).graph if node.op_type == "Loop")


def plan_of(node: ir.Node, *targets: Target) -> tuple[tuple[BodyKernel, ...], ...]:
    graph = DataflowGraph(node.attributes["body"].as_graph())
    return (tuple(BodyKernel(IndexSet.of(i), targets[i % len(targets)], rule="r") for i in range(len(graph))),)


def read(plans: BodyPlans, node: ir.Node, told: Any) -> Target:
    return plans.read(node, told, Target.parse, str)


def test_another_plan_or_another_build_is_another_target() -> None:
    plans, node = BodyPlans(), loop()
    first = plans.add(plan_of(node, ONE), str)
    assert has_bodies(first)
    assert plans.add(plan_of(node, ONE), str) == first
    assert plans.add(plan_of(node, OTHER), str) != first
    assert plans.add(plan_of(node, ONE), lambda target: "a newer build") != first
    assert plans.of(first) == plan_of(node, ONE)
    with pytest.raises(UsageError, match="are not known"):
        plans.of(HOST_TARGET.with_options(bodies="unknown"))


def test_the_targets_that_toolchains_load_for_are_those_in_bodies() -> None:
    plans, node = BodyPlans(), loop()
    assert plans.leaves(ONE) == (ONE,)
    assert plans.leaves(plans.add(plan_of(node, ONE, OTHER), str)) == (ONE, OTHER)


def test_a_plan_comes_back_from_json() -> None:
    plans, node = BodyPlans(), loop()
    target = plans.add(plan_of(node, ONE, OTHER), str)
    assert plans.as_json(ONE) is None
    other = BodyPlans()
    assert read(other, node, plans.as_json(target)) == target
    assert other.of(target) == plans.of(target)


def test_a_model_that_is_partitioned_is_left_as_it_was() -> None:
    plans, model = BodyPlans(), prepare(read_model(counting_loop(shape=["n", 3])))
    node = next(node for node in model.graph if node.op_type == "Loop")
    before = ir.to_proto(model).SerializeToString()
    made = plans.partitioned(model, {str(node.name): (plans.add(plan_of(node, ONE, OTHER), str), "k")})
    assert len(made.functions) == 4
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.append([]),
        lambda told: told[0].pop(),
        lambda told: told[0].append(told[0][0]),
        lambda told: told[0][0].update(nodes=[99]),
        lambda told: told[0][0].update(nodes=[]),
        lambda told: told[0][0].update(nodes=[-1]),
        lambda told: told[0][0].update(nodes=["a"]),
        lambda told: told[0][0].pop("target"),
        lambda told: told[0][0].update(bodies=[[]]),
    ],
)
def test_what_is_no_plan_of_the_node_is_refused(change: Any) -> None:
    plans, node = BodyPlans(), loop()
    told = copy.deepcopy(plans.as_json(plans.add(plan_of(node, ONE), str)))
    change(told)
    with pytest.raises(UsageError):
        read(plans, node, told)
