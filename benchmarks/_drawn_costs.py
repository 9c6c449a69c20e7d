"""Enumeration and search on real graphs, with candidates as three toolchains propose them and costs that are drawn.

The menu: one native target with classic fusion to depth 8; two others that share a spec of arbitrary fusion to depth 8
and of regions. Costs are drawn, not measured: each target likes some operators and dislikes others, and merging
gains a little, with noise. Each graph is worked in a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from collage.frontend import read_model
from collage.fusion import (
    CandidateKernel,
    FusionReport,
    FusionSpec,
    RegionFusionRule,
    UnionFusionRule,
    classic_fuse_ops,
    collect_candidates,
    operator_based,
)
from collage.graph import DataflowGraph, IndexSet, OpKind, SubGraph
from collage.search import LazyOptions, Partitioning, lazy_shortest_path, shortest_path
from collage.target import Target
from collage.toolchains import Support

LAUNCH_S = 3e-6
NATIVE = Target("llvm")
OTHERS = (Target("llvm", compiler="a"), Target("llvm", compiler="b"))
ANCHORS = {
    ("resnet50", 6): "444 ops: 9,958 c, 33,780 st, 82,293 tr, 0.05 s",
    ("bert", 4): "569 ops: 3,063 c, 3,298 st",
    ("bert", 6): "569 ops: 7,076 c, 6,906 st, 28,004 tr, 0.02 s",
    ("inception_v3", 4): "326 layers: 2,635 c, 38,490 st, 0.04 s",
    ("inception_v3", 6): "326 layers: 12,979 c, more than 400,000 st, stopped",
}


def supported(node: ir.Node) -> Support:
    return Support(True)


def load(path: Path | None) -> DataflowGraph:
    """Return the graph of a file, or of a synthetic transformer of 3,000 operators."""
    return DataflowGraph(transformer(57) if path is None else read_model(path))


def transformer(layers: int) -> ir.Model:
    """A pre-norm transformer with LayerNorm and GELU decomposed: 53 operators a layer."""
    nodes: list[ir.Node] = []

    def op(op_type: str, *inputs: ir.Value) -> ir.Value:
        nodes.append(ir.node(op_type, inputs))
        nodes[-1].outputs[0].shape, nodes[-1].outputs[0].dtype = ir.Shape([128, 64]), ir.DataType.FLOAT
        return nodes[-1].outputs[0]

    x = entry = ir.Value(name="x", shape=ir.Shape([128, 64]), type=ir.TensorType(ir.DataType.FLOAT))
    weight = ir.Value(name="w", const_value=ir.tensor(np.ones((64, 64), np.float32), name="w"))
    vector = ir.Value(name="v", const_value=ir.tensor(np.ones(64, np.float32), name="v"))

    def norm(x: ir.Value) -> ir.Value:
        centred = op("Sub", x, op("ReduceMean", x))
        deviation = op("Sqrt", op("Add", op("ReduceMean", op("Mul", centred, centred)), vector))
        return op("Add", op("Mul", op("Div", centred, deviation), vector), vector)

    def dense(x: ir.Value) -> ir.Value:
        return op("Add", op("MatMul", x, weight), vector)

    for _ in range(layers):
        y = norm(x)
        q, k, v = (op("Transpose", op("Reshape", dense(y), vector)) for _ in range(3))
        scores = op("Softmax", op("Add", op("Mul", op("MatMul", q, k), vector), vector))
        x = op("Add", x, dense(op("Reshape", op("Transpose", op("MatMul", scores, v)), vector)))
        y = dense(norm(x))
        cubed = op("Tanh", op("Mul", op("Add", op("Mul", op("Pow", y, vector), vector), y), vector))
        x = op("Add", x, dense(op("Mul", op("Mul", op("Add", cubed, vector), y), vector)))
    graph = ir.Graph([entry], [x], nodes=nodes, initializers=[weight, vector], opset_imports={"": 20})
    return ir.Model(graph, ir_version=10)


def menu() -> tuple[FusionSpec, ...]:
    arbitrary = UnionFusionRule((operator_based(supported, max_depth=8), RegionFusionRule(supported)))
    return FusionSpec("native", classic_fuse_ops(8), (NATIVE,)), FusionSpec("others", arbitrary, OTHERS)


def draw_costs(
    graph: DataflowGraph, candidates: Sequence[CandidateKernel], seed: int
) -> Callable[[CandidateKernel], float]:
    """Seconds: the operators', times the target's luck with each, times what merging gains, times noise."""
    rng = np.random.default_rng(seed)
    kind_s = {OpKind.OUT_ELEMWISE_FUSABLE: 40e-6, OpKind.COMM_REDUCE: 5e-6, OpKind.OPAQUE: 10e-6}
    base = np.array([kind_s.get(kind, 4e-6) for kind in graph.kinds])
    luck = {target: base * rng.uniform(0.6, 1.8, len(base)) for target in (NATIVE, *OTHERS)}
    costs = {}
    for candidate in candidates:
        gain = (0.75 + 0.25 / len(candidate.sub_graph) ** 0.5) * rng.uniform(0.95, 1.1)
        seconds = luck[candidate.target][list(candidate.sub_graph)].sum() * gain
        costs[id(candidate)] = float(seconds)
    return lambda candidate: costs[id(candidate)]


def run_eager(name: str, path: Path | None, seed: int) -> None:
    """Enumerates and searches one graph with all costs known, and prints a line."""
    graph, report = load(path), FusionReport()
    began = time.process_time()
    candidates = tuple(collect_candidates(graph, menu(), report))
    enumerated = time.process_time()
    cost_of = draw_costs(graph, candidates, seed)
    drawn = time.process_time()
    result = shortest_path(len(graph), candidates, cost_of, launch_penalty_of=lambda c: LAUNCH_S)
    search_s = time.process_time() - drawn
    assert isinstance(result, Partitioning)
    s = result.statistics
    caps = [*report.capped, *(note for note in report.notes if "narrowest" in note), *s.caps]
    print(
        f"{name:<17} {len(graph):>5} {enumerated - began:>7.2f} {search_s:>8.2f} {peak_mb():>5.0f} {s.candidates:>7} "
        f"{s.considered:>6} {s.states:>6} {s.transitions:>7} {len(result.candidates):>7} "
        f"{'yes' if result.optimal else 'NO':>7}  {'; '.join(caps) or '-'}",
        flush=True,
    )


def run_lazy(name: str, path: Path | None, seed: int) -> None:
    """Searches one graph lazily, the bounds at 60 to 100 % of the costs, and prints a line."""
    graph = load(path)
    candidates = tuple(collect_candidates(graph, menu()))
    cost_of = draw_costs(graph, candidates, seed)
    rng = random.Random(seed)
    bounds = {id(c): cost_of(c) * rng.uniform(0.6, 1.0) for c in candidates}
    began = time.process_time()
    result = lazy_shortest_path(
        len(graph),
        candidates,
        lambda c: bounds[id(c)],
        lambda batch: [cost_of(c) for c in batch],
        options=LazyOptions(bounds_are_proofs=True),
        launch_penalty_of=lambda c: LAUNCH_S,
    )
    spent_s, s = time.process_time() - began, result.statistics
    assert result.partitioning is not None
    print(
        f"{name:<17} {len(graph):>5} {s.candidates:>7} {s.measured:>8} {s.rounds:>6} {spent_s / s.rounds * 1e3:>7.1f} "
        f"{s.replan_max_s * 1e3:>11.0f} {spent_s:>7.2f} {'yes' if result.partitioning.optimal else 'NO':>7}",
        flush=True,
    )


def run_anchors(name: str, path: Path | None, seed: int) -> None:
    """Searches one graph as others have, and prints our figures beside theirs."""
    for (model, k), anchor in ANCHORS.items():
        if model == name:
            graph = load(path)
            spec = menu()[0]
            sub_graphs = (SubGraph(graph, IndexSet(bits)) for bits in connected_sets(graph, k))
            candidates = [CandidateKernel(s, NATIVE, spec, ()) for s in sub_graphs if s.is_admissible]
            cost_of = draw_costs(graph, candidates, seed)
            result = shortest_path(len(graph), candidates, cost_of, launch_penalty_of=lambda c: LAUNCH_S)
            s = result.statistics
            ours = f"{len(graph)} ops: {s.candidates:,} c, {s.states:,} st, {s.transitions:,} tr, {s.wall_s:.2f} s"
            print(f"{name:<13} k={k}  ours {ours:<58} anchor {anchor}", flush=True)


def connected_sets(graph: DataflowGraph, k: int) -> Iterator[int]:
    """The bits of every connected set of up to ``k`` nodes, each once, grown from its least node."""
    neighbours = [a | b for a, b in zip(graph.producer_bits, graph.consumer_bits, strict=True)]

    def grow(bits: int, size: int, border: int, seen: int) -> Iterator[int]:
        yield bits
        while border and size < k:
            node = border & -border
            border ^= node
            fresh = neighbours[node.bit_length() - 1] & ~seen
            yield from grow(bits | node, size + 1, border | fresh, seen | fresh)

    for root in range(len(graph)):
        upwards = neighbours[root] & -(2 << root)
        yield from grow(1 << root, 1, upwards, upwards | (2 << root) - 1)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


HEADERS: Mapping[Callable[[str, Path | None, int], None], str] = {
    run_eager: "graph             nodes  enum s search s    MB   cands   kept states   trans kernels optimal  caps",
    run_lazy: "graph             nodes   cands measured rounds mean ms max wall ms   cpu s optimal",
    run_anchors: "The same rule (connected sets of up to k operators, one target) on our graph and on theirs:",
}


def run(work: Callable[[str, Path | None, int], None], models: Iterable[tuple[str, Path | None]], seed: int) -> None:
    """Work each graph in a process of its own, and print a table."""
    print(HEADERS[work])
    for name, path in models:
        process = multiprocessing.get_context("spawn").Process(target=work, args=(name, path, seed))
        process.start()
        process.join()
