"""Dominators and inverse dominators of a dataflow graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["immediate_dominators"]


def immediate_dominators(
    order: Sequence[int], predecessors: Callable[[int], Sequence[int]], is_root: Callable[[int], bool]
) -> list[int | None]:
    """The immediate dominator of every node of a DAG.

    Args:
        order: All nodes, each after its predecessors.
        predecessors: The nodes right before a node.
        is_root: True if a node is also entered directly, from outside the DAG.

    Returns:
        For each node the nearest other node through which every way into it leads; None if there is none.
    """
    parent: list[int | None] = [None] * len(order)
    depth = [0] * len(order)

    def common_ancestor(left: int | None, right: int | None) -> int | None:
        while left != right:
            if left is None or right is None:
                return None
            if depth[left] >= depth[right]:
                left = parent[left]
            else:
                right = parent[right]
        return left

    for node in order:
        before = predecessors(node)
        if is_root(node) or not before:
            continue
        dominator: int | None = before[0]
        for other in before[1:]:
            dominator = common_ancestor(dominator, other)
        parent[node] = dominator
        depth[node] = 0 if dominator is None else depth[dominator] + 1
    return parent
