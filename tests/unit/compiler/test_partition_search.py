"""Which covers go to the finals, on costs that are given."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import onnx_ir as ir
from onnx import TensorProto, helper

from collage.compiler.partition_search import best_plans
from collage.cost.cost import Cost
from collage.fusion import CandidateKernel, CandidateKernelIndex
from collage.graph import DataflowGraph, IndexSet, SubGraph
from collage.target import Target

COUNT = 6
TARGET = Target.parse("llvm")


def chain() -> DataflowGraph:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(COUNT)]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("v0", f"v{COUNT}")]
    graph = helper.make_graph(nodes, "chain", ports[:1], ports[1:])
    return DataflowGraph(ir.serde.deserialize_model(helper.make_model(graph)))


def finalists(costs: dict[tuple[int, int], float], count: int = 2) -> Sequence[list[tuple[int, int]]]:
    """The plans for kernels over ranges with these costs, as ranges."""
    graph = chain()
    spec: Any = None
    index = CandidateKernelIndex(
        [CandidateKernel(SubGraph(graph, IndexSet.range(*span)), TARGET, spec, ("given",)) for span in costs]
    )
    problem: Any = SimpleNamespace(
        graph=graph,
        placement=None,
        is_placed_by_search=False,
        options=SimpleNamespace(finalists=count),
        priority=lambda _: 0,
    )
    costs_of: Any = SimpleNamespace(
        measured_cost=lambda c: Cost(seconds=costs[min(c.sub_graph.inside), max(c.sub_graph.inside) + 1]),
        launch_penalty_s=lambda _: 0.0,
    )
    plans = best_plans(problem, costs_of, index, SimpleNamespace(partitioning=True))  # type: ignore[arg-type]
    return [[(min(k.sub_graph.inside), max(k.sub_graph.inside) + 1) for k in plan.kernels] for plan in plans]


ONES = {(i, i + 1): 0.333 for i in range(COUNT)}
TWINS = {(i, i + 2): 0.6665 for i in range(COUNT - 1)}


def test_the_second_finalist_is_a_plain_one_where_the_others_are_twins_of_the_best() -> None:
    best, second, *others = finalists(ONES | TWINS | {(0, 3): 1.003, (3, 6): 1.003})
    assert best == sorted(ONES)
    assert second == [(0, 3), (3, 6)]
    assert others
    assert all(len(plan) == COUNT - 1 for plan in others)


def test_without_a_plain_one_they_come_in_order_and_once() -> None:
    plans = finalists(ONES | TWINS | {(0, 3): 2.0, (3, 6): 2.0}, 3)
    assert plans[0] == sorted(ONES)
    assert len(plans) == len({tuple(plan) for plan in plans})
    assert finalists({(0, 3): 1.0, (3, 6): 1.0}) == [[(0, 3), (3, 6)]]
    assert finalists({(0, 6): 1.0}) == [[(0, 6)]]


def test_a_plain_one_may_be_second_to_a_mix_that_is_behind_the_whole() -> None:
    plans = finalists({(0, 6): 1.9} | ONES | {(0, 3): 1.003, (3, 6): 1.003})
    assert plans[0] == [(0, 6)]
    assert plans.index([(0, 3), (3, 6)]) == plans.index(sorted(ONES)) + 1
