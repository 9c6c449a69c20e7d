"""Coalescing: joining adjacent kernels of one target after the search (specification 003, "Cleanup after search").

The search sees only candidates of limited size; where two chosen kernels of one target touch, their toolchain may
take both at once. A join must leave kernels that can be run one after the other: two kernels with a third between
them cannot be joined, and each join counts for the next. What was joined has another cost, so the caller measures it
anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from collage.search._quotient import kernel_successors
from collage.search._values import C, DependencyGraph

__all__ = ["coalesce"]


def coalesce(
    kernels: Sequence[C],
    graph: DependencyGraph,
    can_join: Callable[[Sequence[C]], bool] | None = None,
) -> list[tuple[C, ...]]:
    """Joins adjacent kernels of equal target until no more can be joined.

    Args:
        kernels: Kernels of a partitioning: disjoint, and acyclic as they are.
        graph: The data flow between nodes.
        can_join: Whether the toolchain takes these kernels as one; None is always.

    Returns:
        Groups of kernels, each to become one kernel, in an order in which they can be run.
    """
    groups = _Groups(kernels, graph)
    while groups.join_one(can_join):
        pass
    return groups.in_order()


class _Groups(Generic[C]):
    """Groups of kernels and the data flow between the groups."""

    def __init__(self, kernels: Sequence[C], graph: DependencyGraph) -> None:
        self._members: dict[int, tuple[C, ...]] = {i: (kernel,) for i, kernel in enumerate(kernels)}
        self._after = dict(enumerate(kernel_successors(graph, [kernel.bits for kernel in kernels])))
        self._refused: set[tuple[C, ...]] = set()

    def join_one(self, can_join: Callable[[Sequence[C]], bool] | None) -> bool:
        """Joins the first two groups that can be; False if there are none."""
        for first in sorted(self._members):
            for second in sorted(self._after[first]):
                if self._members[first][0].target != self._members[second][0].target:
                    continue
                joined = tuple(sorted(self._members[first] + self._members[second], key=lambda kernel: kernel.first))
                if joined in self._refused or self._reaches_around(first, second):
                    continue
                if can_join is None or can_join(joined):
                    self._join(first, second, joined)
                    return True
                self._refused.add(joined)
        return False

    def _reaches_around(self, first: int, second: int) -> bool:
        """Whether a result of the first group gets to the second through another group."""
        seen = {first, second}
        stack = [group for group in self._after[first] if group != second]
        while stack:
            group = stack.pop()
            if second in self._after[group]:
                return True
            if group not in seen:
                seen.add(group)
                stack.extend(self._after[group] - seen)
        return False

    def _join(self, first: int, second: int, joined: tuple[C, ...]) -> None:
        self._members[first] = joined
        self._after[first] = (self._after[first] | self._after.pop(second)) - {first, second}
        del self._members[second]
        for after in self._after.values():
            if second in after:
                after.remove(second)
                after.add(first)
        self._after[first].discard(first)

    def in_order(self) -> list[tuple[C, ...]]:
        """The groups, each after all that feed it; among those that are ready, the one of least node first."""
        waiting = dict.fromkeys(self._members, 0)
        for fed in self._after.values():
            for group in fed:
                waiting[group] += 1
        result = []
        while waiting:
            ready = [group for group, count in waiting.items() if not count]
            group = min(ready, key=lambda g: self._members[g][0].first)
            del waiting[group]
            result.append(self._members[group])
            for fed_group in self._after[group]:
                waiting[fed_group] -= 1
        return result
