"""The order in which groups of nodes can run: a topological order of the quotient graph."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import TypeVar

import onnx_ir as ir

from collage.graph._dataflow_graph import DataflowGraph
from collage.graph._traversal import GraphLike, constant_tensor, used_values

__all__ = ["NotAcyclic", "quotient_order"]

Group = TypeVar("Group")


class NotAcyclic(Exception):
    """Groups feed each other in a circle; holds those that could not be ordered."""

    def __init__(self, stuck: Sequence[object]) -> None:
        super().__init__("groups feed each other in a circle")
        self.stuck = stuck


def quotient_order(
    graph: GraphLike, dataflow: DataflowGraph, group_of: Mapping[ir.Node, Group]
) -> list[ir.Node | Group]:
    """The nodes of a graph, with groups contracted, each after all that it reads.

    Among ready parts, the one whose last node comes first in post-dfs order goes first; constants go before
    all others, nodes that reach no output are left out.

    Raises:
        NotAcyclic: Groups feed each other in a circle.
    """
    live = (node for node in graph if node in dataflow or constant_tensor(node.outputs[0]) is not None)
    unit_of: dict[ir.Node, ir.Node | Group] = {node: group_of.get(node, node) for node in live}
    rank: dict[ir.Node | Group, tuple[int, int]] = {}
    waits_for: dict[ir.Node | Group, set[ir.Node | Group]] = {}
    for position, (node, unit) in enumerate(unit_of.items()):
        place = (dataflow.index_of(node) if node in dataflow else -1, position)
        rank[unit] = max(rank.get(unit, place), place)
        makers = (unit_of[p] for v in used_values(node) if (p := v.producer()) is not None and p in unit_of)
        waits_for.setdefault(unit, set()).update(maker for maker in makers if maker is not unit)
    readers: dict[ir.Node | Group, list[ir.Node | Group]] = {}
    for unit, makers_of_unit in waits_for.items():
        for maker in makers_of_unit:
            readers.setdefault(maker, []).append(unit)
    by_rank = {rank[unit]: unit for unit in waits_for}
    ready = sorted(rank[unit] for unit, makers_of_unit in waits_for.items() if not makers_of_unit)
    order: list[ir.Node | Group] = []
    while ready:
        unit = by_rank[heapq.heappop(ready)]
        order.append(unit)
        for reader in readers.get(unit, ()):
            waits_for[reader].discard(unit)
            if not waits_for[reader]:
                heapq.heappush(ready, rank[reader])
    if len(order) < len(waits_for):
        raise NotAcyclic([unit for unit, makers_of_unit in waits_for.items() if makers_of_unit])
    return order
