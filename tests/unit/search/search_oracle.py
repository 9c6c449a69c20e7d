"""Random small graphs with candidates, and the best covers by trying them all."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    bits: int
    first: int
    target: str


def candidate(nodes: list[int], target: str = "a") -> Candidate:
    return Candidate(sum(1 << i for i in nodes), min(nodes), target)


class Graph:
    """Edges from lower to higher nodes."""

    def __init__(self, n: int, edges: list[tuple[int, int]]) -> None:
        self.n = n
        self.after = [sum({1 << b for a, b in edges if a == i}) for i in range(n)]

    def consumers(self, index: int) -> list[int]:
        return [j for j in range(self.n) if self.after[index] >> j & 1]

    def admitted(self, bits: int) -> bool:
        """Every consumer outside comes after the last exit; nodes without consumers are exits."""
        inside = [i for i in range(self.n) if bits >> i & 1]
        exits = [i for i in inside if not self.after[i] or self.after[i] & ~bits]
        outputs = [j for i in inside for j in range(self.n) if self.after[i] & ~bits & 1 << j]
        return min(outputs, default=self.n) > max(exits)

    def acyclic(self, kernels: list[int]) -> bool:
        """Whether some order runs every kernel after those that feed it."""
        left = list(kernels)
        while left:
            remaining = 0
            for bits in left:
                remaining |= bits
            ready = [k for k in left if not any(self.after[i] & k for i in range(self.n) if remaining & ~k & 1 << i)]
            if not ready:
                return False
            left = [k for k in left if k not in ready]
        return True

    def convex(self, bits: int) -> bool:
        return self.acyclic([bits, *(1 << i for i in range(self.n) if not bits >> i & 1)])


def random_graph(rng: random.Random, most: int = 9) -> Graph:
    n = rng.randint(1, most)
    density = rng.uniform(0.1, 0.6)
    return Graph(n, [(a, b) for a in range(n) for b in range(a + 1, n) if rng.random() < density])


def random_candidates(rng: random.Random, graph: Graph, wide: bool = False, largest: int = 99) -> list[Candidate]:
    """Some of all admitted (or convex) sub-graphs, overlapping, with several exits and taps, for three targets."""
    share = rng.uniform(0.2, 0.8) if graph.n < 7 else rng.uniform(0.05, 0.3)
    found = []
    for bits in range(1, 1 << graph.n):
        if bits.bit_count() > largest:
            continue
        wanted = rng.random() < share or bits.bit_count() == 1
        if wanted and (graph.convex(bits) if wide else graph.admitted(bits)):
            found += [Candidate(bits, (bits & -bits).bit_length() - 1, t) for t in "abc" if rng.random() < 0.5]
    rng.shuffle(found)
    return found


def random_costs(rng: random.Random, candidates: list[Candidate], invalid: float = 0.05) -> dict[Candidate, float]:
    """Seconds that add exactly in binary, so that equal sums are equal; some are invalid."""
    costs = {}
    for c in candidates:
        size = c.bits.bit_count()
        costs[c] = math.inf if rng.random() < invalid else rng.randint(1, 16 * size) * 2.0**-20
    return costs


def covers(n: int, candidates: list[Candidate]) -> Iterator[tuple[Candidate, ...]]:
    """All covers, each as its kernels by least node."""
    by_first: dict[int, list[Candidate]] = {}
    for c in candidates:
        by_first.setdefault(c.first, []).append(c)

    def extend(covered: int, taken: tuple[Candidate, ...]) -> Iterator[tuple[Candidate, ...]]:
        node = (~covered & (covered + 1)).bit_length() - 1
        if node == n:
            yield taken
            return
        for c in by_first.get(node, ()):
            if not c.bits & covered:
                yield from extend(covered | c.bits, (*taken, c))

    return extend(0, ())


def least_cost(n: int, candidates: list[Candidate], costs: dict[Candidate, float]) -> float:
    """Cost of the best cover, infinite where there is none."""
    best = [math.inf] * (1 << n)
    best[0] = 0.0
    for covered in range(1 << n):
        node = (~covered & (covered + 1)).bit_length() - 1
        if best[covered] < math.inf:
            for c in candidates:
                if c.bits >> node & 1 and not c.bits & covered:
                    best[covered | c.bits] = min(best[covered | c.bits], best[covered] + costs[c])
    return best[-1]
