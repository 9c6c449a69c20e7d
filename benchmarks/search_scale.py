"""How the search scales: graphs shaped like well-known models, candidates as three kinds of toolchain propose them.

The graphs are pure-Python imitations (operators, kinds and edges; no tensors) with random costs, so that the search is
measured alone: one target with FuseOps-like chains to depth 8, two with every connected sub-graph of up to ``k``
operators that may be admitted, and with contiguous regions of doubling length up to the whole model.

The last column tells what a plain search over covered sets needed on a similar graph: all convex connected candidates
of up to ``k`` operators for one target (c candidates, st states, tr transitions).

    python benchmarks/search_scale.py [--models bert,nasnet] [--lazy]
"""

from __future__ import annotations

import argparse
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from collage.search import LazyOptions, Partitioning, lazy_shortest_path, shortest_path

LAUNCH_S = 3e-6
ANCHOR, ELEMENTWISE, REDUCE, INJECTIVE = "A", "E", "R", "I"


@dataclass
class Dag:
    """A graph of operators under construction; `numbered` puts it in post-dfs order."""

    kinds: list[str] = field(default_factory=list)
    inputs: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, kind: str, *inputs: int) -> int:
        """Appends an operator; inputs below zero are graph inputs."""
        self.kinds.append(kind)
        self.inputs.append(tuple(i for i in inputs if i >= 0))
        return len(self.kinds) - 1

    def chain(self, kinds: str, value: int) -> int:
        """Appends one operator per letter, each fed by the one before."""
        for kind in kinds:
            value = self.add(kind, value)
        return value

    def numbered(self) -> Dag:
        """The same graph in post-dfs order from its last operator; what that does not reach is stripped."""
        order: dict[int, int] = {}
        stack = [(len(self.kinds) - 1, False)]
        while stack:
            node, done = stack.pop()
            if done:
                order.setdefault(node, len(order))
            elif node not in order:
                stack.append((node, True))
                stack.extend((i, False) for i in reversed(self.inputs[node]))
        result = Dag([""] * len(order), [()] * len(order))
        for node, index in order.items():
            result.kinds[index] = self.kinds[node]
            result.inputs[index] = tuple(order[i] for i in self.inputs[node])
        return result


def resnet50() -> Dag:
    """Convolution, BatchNorm and ReLU kept apart: 175 operators."""
    g = Dag()
    x = g.chain("AEEA", -1)
    for blocks in (3, 4, 6, 3):
        for block in range(blocks):
            y = g.chain("AEEAEEAE", x)
            x = g.chain("E", g.add(ELEMENTWISE, y, x if block else g.chain("AE", x)))
    g.chain("RIAE", x)
    return g.numbered()


def _layer_norm(g: Dag, x: int) -> int:
    centred = g.add(ELEMENTWISE, x, g.add(REDUCE, x))
    deviation = g.chain("ERE", centred)
    scaled = g.add(ELEMENTWISE, centred, g.chain("E", deviation))
    return g.chain("EE", scaled)


def _gelu(g: Dag, x: int) -> int:
    return g.add(ELEMENTWISE, x, g.chain("EEE", x))


def transformer(layers: int, fused_qkv: bool = False) -> Dag:
    """Pre-norm transformer with decomposed LayerNorm and GELU: 46 to 48 operators a layer."""
    g = Dag()
    x = g.add(ELEMENTWISE, g.add(INJECTIVE), g.add(INJECTIVE))
    for _ in range(layers):
        y = _layer_norm(g, x)
        if fused_qkv:
            parts = g.chain("AEI", y)
            q, k, v = (g.chain("II", parts) for _ in range(3))
        else:
            q, k, v = (g.chain("AEII", y) for _ in range(3))
        scores = g.chain("EEA", g.add(ANCHOR, q, k))
        x = g.add(ELEMENTWISE, x, g.chain("IIAE", g.add(ANCHOR, scores, v)))
        x = g.add(ELEMENTWISE, x, g.chain("AE", _gelu(g, g.chain("AE", _layer_norm(g, x)))))
    g.chain("AE", _layer_norm(g, x))
    return g.numbered()


def inception_v3() -> Dag:
    """Eleven modules of parallel branches that meet in a concatenation."""
    g = Dag()

    def conv(x: int, times: int = 1) -> int:
        return g.chain("AEE" * times, x)

    x = g.chain("A", conv(g.chain("A", conv(-1, 3)), 2))
    for _ in range(3):
        x = g.add(INJECTIVE, conv(x), conv(x, 2), conv(x, 3), conv(g.chain("A", x)))
    x = g.add(INJECTIVE, conv(x), conv(x, 3), g.chain("A", x))
    for _ in range(4):
        x = g.add(INJECTIVE, conv(x), conv(x, 3), conv(x, 5), conv(g.chain("A", x)))
    x = g.add(INJECTIVE, conv(x, 2), conv(x, 4), g.chain("A", x))
    for _ in range(2):
        b, c = conv(x), conv(x, 2)
        x = g.add(INJECTIVE, conv(x), conv(b), conv(b), conv(c), conv(c), conv(g.chain("A", x)))
    g.chain("RIAE", x)
    return g.numbered()


def nasnet_a() -> Dag:
    """Cells of five pairs of separable convolutions that read the last two cells."""
    g = Dag()

    def separable(x: int) -> int:
        return g.chain("EAAEEAAE", x)

    before = last = g.chain("AE", -1)
    for cell in range(16):
        p, h = g.chain("EAE", before), g.chain("EAE", last)
        if cell in (0, 5, 10):
            a = g.add(ELEMENTWISE, separable(p), separable(h))
            b = g.add(ELEMENTWISE, g.chain("A", h), separable(p))
            c = g.add(ELEMENTWISE, g.chain("A", h), separable(p))
            d = g.add(ELEMENTWISE, g.chain("A", a), b)
            e = g.add(ELEMENTWISE, separable(a), g.chain("A", h))
            joined = g.add(INJECTIVE, b, c, d, e)
        else:
            a = g.add(ELEMENTWISE, separable(h), h)
            b = g.add(ELEMENTWISE, separable(p), separable(h))
            c = g.add(ELEMENTWISE, g.chain("A", h), p)
            d = g.add(ELEMENTWISE, g.chain("A", p), g.chain("A", p))
            e = g.add(ELEMENTWISE, separable(p), separable(p))
            joined = g.add(INJECTIVE, p, a, b, c, d, e)
        before, last = last, joined
    g.chain("ERAE", last)
    return g.numbered()


@dataclass(frozen=True, slots=True)
class Candidate:
    """Covered nodes as a bit mask, the least of them, and a target."""

    bits: int
    first: int
    target: str


class Shape:
    """A numbered graph with what the enumerations need."""

    def __init__(self, dag: Dag) -> None:
        self.dag = dag
        self.n = len(dag.kinds)
        self.consumers: list[list[int]] = [[] for _ in range(self.n)]
        for node, inputs in enumerate(dag.inputs):
            for i in inputs:
                self.consumers[i].append(node)
        self.neighbours = [sorted({*self.dag.inputs[i], *self.consumers[i]}) for i in range(self.n)]

    def admitted(self, nodes: list[int]) -> bool:
        """Whether every consumer outside comes after the last exit; the graph's result is consumed after everything."""
        inside = set(nodes)
        last_exit, first_output = -1, self.n
        for node in nodes:
            outside = [c for c in self.consumers[node] if c not in inside]
            if outside or not self.consumers[node]:
                last_exit = max(last_exit, node)
                first_output = min([first_output, *outside])
        return first_output > last_exit

    def chains(self, depth: int) -> Iterator[list[int]]:
        """Each operator with the element-wise operators that follow it one by one, as FuseOps would join them."""
        for node in range(self.n):
            nodes = [node]
            yield [*nodes]
            while len(nodes) < depth and len(set(self.consumers[nodes[-1]])) == 1:
                after = self.consumers[nodes[-1]][0]
                if self.dag.kinds[after] != ELEMENTWISE:
                    break
                nodes.append(after)
                yield [*nodes]

    def connected(self, k: int) -> Iterator[list[int]]:
        """Every connected set of up to ``k`` operators once, each from its least one."""
        for root in range(self.n):
            yield from self._grow([root], [x for x in self.neighbours[root] if x > root], {root}, root, k)

    def _grow(self, nodes: list[int], border: list[int], seen: set[int], root: int, k: int) -> Iterator[list[int]]:
        yield nodes
        if len(nodes) == k:
            return
        seen = seen | set(border)
        while border:
            node = border.pop()
            fresh = [x for x in self.neighbours[node] if x > root and x not in seen]
            yield from self._grow([*nodes, node], [*border, *fresh], seen, root, k)

    def regions(self) -> Iterator[tuple[int, int]]:
        """Contiguous ranges of 8, 16, 32 … operators at every half length, and the whole."""
        length = 8
        while length < self.n:
            for start in range(0, self.n - length + 1, length // 2):
                yield start, start + length
            length *= 2
        yield 0, self.n


def candidates_of(shape: Shape, k: int) -> list[Candidate]:
    """What the three targets propose."""
    found: dict[Candidate, None] = {}
    for nodes in shape.chains(8):
        found[_candidate(nodes, "chains")] = None
    for nodes in shape.connected(k):
        if shape.admitted(nodes):
            for target in ("whole-a", "whole-b"):
                found[_candidate(nodes, target)] = None
    for start, stop in shape.regions():
        for target in ("whole-a", "whole-b"):
            found[Candidate((1 << stop) - (1 << start), start, target)] = None
    return list(found)


def _candidate(nodes: list[int], target: str) -> Candidate:
    return Candidate(sum(1 << i for i in nodes), min(nodes), target)


def random_costs(shape: Shape, candidates: list[Candidate], seed: int) -> dict[Candidate, float]:
    """Seconds: the operators', times the target's luck with each, times what merging gains, times noise."""
    rng = random.Random(seed)
    factor = {"A": 40e-6, "E": 4e-6, "R": 5e-6, "I": 3e-6}
    luck = {
        target: [factor[kind] * rng.uniform(0.6, 1.8) for kind in shape.dag.kinds]
        for target in ("chains", "whole-a", "whole-b")
    }
    costs = {}
    for candidate in candidates:
        nodes = [i for i in range(candidate.first, candidate.bits.bit_length()) if candidate.bits >> i & 1]
        gain = 0.75 + 0.25 / len(nodes) ** 0.5
        costs[candidate] = sum(luck[candidate.target][i] for i in nodes) * gain * rng.uniform(0.95, 1.1)
    return costs


@dataclass(frozen=True)
class Case:
    """A graph, how large its connected candidates may be, and what a plain search of a similar graph needed."""

    dag: Callable[[], Dag]
    k: int
    anchor: str = "-"


CASES = {
    "resnet50": Case(resnet50, 6, "444 ops, k=6: 9,958 c, 33,780 st, 82,293 tr, 0.05 s"),
    "bert-base": Case(lambda: transformer(12), 6, "569 ops, k=6: 7,076 c, 6,906 st, 28,004 tr, 0.02 s"),
    "gpt2": Case(lambda: transformer(12, fused_qkv=True), 6),
    "vit-b16": Case(lambda: transformer(12), 5),
    "inception-v3 k=4": Case(inception_v3, 4, "326 layers, k=4: 2,635 c, 38,490 st, 0.04 s"),
    "inception-v3 k=6": Case(inception_v3, 6, "326 layers, k=6: 12,979 c, >400,000 st, stopped"),
    "nasnet-a k=4": Case(nasnet_a, 4),
    "nasnet-a k=5": Case(nasnet_a, 5),
    "transformer-3000": Case(lambda: transformer(64), 4),
}


def run_eager(name: str, case: Case, seed: int) -> None:
    """Searches one graph with all costs known, and prints a line."""
    shape = Shape(case.dag())
    began = time.perf_counter()
    candidates = candidates_of(shape, case.k)
    enumeration_s = time.perf_counter() - began
    costs = random_costs(shape, candidates, seed)
    result = shortest_path(shape.n, candidates, costs.__getitem__, launch_penalty_of=lambda c: LAUNCH_S)
    assert isinstance(result, Partitioning) and result.optimal
    tracemalloc.start()
    shortest_path(shape.n, candidates, costs.__getitem__, launch_penalty_of=lambda c: LAUNCH_S)
    peak_mb = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    s = result.statistics
    print(
        f"{name:<17} {shape.n:>5} {s.candidates:>7} {s.considered:>6} {s.states:>6} {s.transitions:>7} {s.wall_s:>7.3f} "
        f"{enumeration_s:>7.3f} {peak_mb:>6.0f} {','.join(s.caps) or '-':>6}  {case.anchor}",
        flush=True,
    )


def run_lazy(name: str, case: Case, seed: int) -> None:
    """Searches one graph lazily, the bounds at 60 to 100 % of the costs, and prints a line."""
    shape = Shape(case.dag())
    candidates = candidates_of(shape, case.k)
    costs = random_costs(shape, candidates, seed)
    rng = random.Random(seed)
    bounds = {c: cost * rng.uniform(0.6, 1.0) for c, cost in costs.items()}
    result = lazy_shortest_path(
        shape.n,
        candidates,
        bounds.__getitem__,
        lambda batch: [costs[c] for c in batch],
        options=LazyOptions(bounds_are_proofs=True),
        launch_penalty_of=lambda c: LAUNCH_S,
    )
    s = result.statistics
    replan_ms = s.wall_s / s.rounds * 1e3
    print(
        f"{name:<17} {shape.n:>5} {s.candidates:>7} {s.measured / s.candidates:>8.1%} {s.rounds:>6} {replan_ms:>9.0f} "
        f"{s.replan_max_s * 1e3:>9.0f} {s.wall_s:>7.2f}  {'optimal' if result.partitioning.optimal else 'NOT OPTIMAL'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="", help="comma-separated beginnings of names; all by default")
    parser.add_argument("--lazy", action="store_true", help="measure lazily, with loose independent bounds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    wanted = tuple(options.models.split(",")) if options.models else ("",)
    if options.lazy:
        print("graph             nodes    cands measured rounds replan ms    max ms  wall s  result")
    else:
        print(
            "graph             nodes   cands   kept states   trans  wall s  enum s peak MB  caps  plain search, similar graph"
        )
    for name, case in CASES.items():
        if name.startswith(wanted):
            (run_lazy if options.lazy else run_eager)(name, case, options.seed)


if __name__ == "__main__":
    main()
