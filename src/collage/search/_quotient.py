"""The quotient graph: kernels as nodes, and whether they can be run one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from collage.graph import iterate_bits
from collage.search._values import DependencyGraph

__all__ = ["find_cycle", "kernel_successors"]


def kernel_successors(graph: DependencyGraph, kernels: Sequence[int]) -> list[set[int]]:
    """Return the other kernels that consume the results of each kernel. Kernels are bits of their nodes."""
    owner = {node: index for index, bits in enumerate(kernels) for node in iterate_bits(bits)}
    return [
        {owner[after] for node in iterate_bits(bits) for after in graph.consumers(node) if after in owner} - {index}
        for index, bits in enumerate(kernels)
    ]


def find_cycle(successors: Sequence[set[int]]) -> list[int] | None:
    """Kernels that feed each other in a ring, as few as found easily, or None if there is an order to run all."""
    waiting = [0] * len(successors)
    for after in successors:
        for kernel in after:
            waiting[kernel] += 1
    ready = [kernel for kernel, count in enumerate(waiting) if not count]
    while ready:
        for kernel in successors[ready.pop()]:
            waiting[kernel] -= 1
            if not waiting[kernel]:
                ready.append(kernel)
    stuck = {kernel for kernel, count in enumerate(waiting) if count}
    rings = (_shortest_ring(successors, stuck, kernel) for kernel in sorted(stuck))
    return min((ring for ring in rings if ring), key=len, default=None)


def _shortest_ring(successors: Sequence[set[int]], within: set[int], start: int) -> list[int] | None:
    """The shortest way from a kernel back to itself."""
    came_from: dict[int, int] = {}
    level = [start]
    while level:
        following = []
        for kernel in level:
            for after in sorted(successors[kernel] & within):
                if after == start:
                    return _trace(came_from, kernel, start)
                if after not in came_from:
                    came_from[after] = kernel
                    following.append(after)
        level = following
    return None


def _trace(came_from: dict[int, int], last: int, start: int) -> list[int]:
    ring = [last]
    while ring[-1] != start:
        ring.append(came_from[ring[-1]])
    return ring[::-1]
