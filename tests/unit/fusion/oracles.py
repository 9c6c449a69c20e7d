"""Brute-force oracles and hand-made models for the tests of fusion rules."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
from tests.unit.graph.random_graphs import Builder

from collage.fusion import Found, FusionReport, FusionRule
from collage.graph import DataflowGraph, IndexSet, OpKind, SubGraph, SubGraphConfig

ONE_EXIT = SubGraphConfig(max_exits=1, allow_taps=False)


def key(sub_graph: SubGraph) -> tuple:
    """Bits and labelled parts."""
    return sub_graph.inside.bits, sub_graph.nested


def keys(found) -> list:
    return [key(f.sub_graph) for f in found]


def find(rule: FusionRule, graph: DataflowGraph, report: FusionReport | None = None) -> set:
    """Keys of what a rule finds; checks that nothing is found twice and that a second run finds the same."""
    result = keys(rule.find(graph, report or FusionReport()))
    assert len(set(result)) == len(result)
    assert keys(rule.find(graph, FusionReport())) == result
    return set(result)


def all_subsets(graph: DataflowGraph):
    for bits in range(1, 1 << len(graph)):
        yield SubGraph(graph, IndexSet(bits))


def is_connected(s: SubGraph) -> bool:
    """Whether the nodes are joined by values among them, whatever their direction."""
    reached, waiting = set(), [s.inside.first]
    while waiting:
        i = waiting.pop()
        if i not in reached:
            reached.add(i)
            waiting += [j for j in (*s.graph.producers(i), *s.graph.consumers(i)) if j in s.inside]
    return len(reached) == len(s)


def naive_closure(bases: list[SubGraph], may_join, max_depth: int = 0) -> set:
    """All unions of disjoint pairs over and over, whatever their exits, as long as they stay convex."""
    pool = {key(s): s for s in bases}
    grown = True
    while grown:
        grown = False
        for up, down in itertools.permutations(list(pool.values()), 2):
            if up.inside.bits & down.inside.bits or not up.output_bits & down.inside.bits or not may_join(up, down):
                continue
            union = up.disjoint_union(down)
            too_deep = max_depth and union.depth > max_depth
            if key(union) not in pool and union.is_convex and not too_deep:
                pool[key(union)] = union
                grown = True
    return set(pool.values())


def by_kind(rules: list[tuple[OpKind, OpKind]]):
    return lambda up, down: any(up.kind <= ku and down.kind <= kd for ku, kd in rules)


CLASSIC = [
    (OpKind.OUT_ELEMWISE_FUSABLE, OpKind.BROADCAST),
    (OpKind.BROADCAST, OpKind.COMM_REDUCE),
    (OpKind.INJECTIVE, OpKind.INJECTIVE),
]


class Given(FusionRule):
    """Finds the sub-graphs that it was given."""

    name = "given"

    def __init__(self, sub_graphs) -> None:
        self.sub_graphs = list(sub_graphs)

    def find(self, graph, report):
        return [Found(s, (self.name,)) for s in self.sub_graphs]


def mnist() -> ir.Model:
    """The example of the Collage RFC: thirteen operators."""
    b = Builder()
    x = y = b.input("x", (1, 1, 28, 28))
    pads = b.constant(np.array([0, 0, 2, 2, 0, 0, 2, 2]))
    for before, channels, size, pool in ((1, 8, 28, 2), (8, 16, 14, 3)):
        weight = b.constant(np.ones((channels, before, 5, 5), np.float32))
        y = b.op("Pad", y, pads, shape=(1, before, size + 4, size + 4))
        y = b.op("Conv", y, weight, shape=(1, channels, size, size), kernel_shape=[5, 5])
        y = b.op("Add", y, b.constant(np.ones((channels, 1, 1), np.float32)), shape=y.shape)
        y = b.op("Relu", y, shape=y.shape)
        side = size // pool
        y = b.op("MaxPool", y, shape=(1, channels, side, side), kernel_shape=[pool, pool], strides=[pool, pool])
    y = b.op("Reshape", y, b.constant(np.array([1, 256])), shape=(1, 256))
    y = b.op("MatMul", y, b.constant(np.ones((256, 10), np.float32)), shape=(1, 10))
    return b.model([x], [b.op("Add", y, b.constant(np.ones((1, 10), np.float32)), shape=(1, 10))])


def gpt2_extract() -> ir.Model:
    """The 25 operators that TVM's Collage tests take from GPT-2: projection, layer norm, projection, GELU."""
    b = Builder()

    def f(*shape):
        return b.constant(np.ones(shape, np.float32))

    def c(value):
        return b.constant(np.float32(value))

    long, hidden, wide = (50, 32, 768), (50, 32, 768), (50, 32, 3072)
    x = b.input("x", (1600, 768))
    y = b.op("Add", b.op("MatMul", x, f(768, 768), shape=(1600, 768)), f(768), shape=(1600, 768))
    y = b.op("Add", f(*long), b.op("Reshape", y, b.constant(np.array(long)), shape=long), shape=long)
    axes = b.constant(np.array([-1]))
    centred = b.op("Sub", y, b.op("ReduceMean", y, axes, shape=(50, 32, 1)), shape=hidden)
    squared = b.op("Pow", centred, c(2), shape=hidden)
    variance = b.op("Add", b.op("ReduceMean", squared, axes, shape=(50, 32, 1)), c(1e-5), shape=(50, 32, 1))
    y = b.op("Div", centred, b.op("Sqrt", variance, shape=(50, 32, 1)), shape=hidden)
    y = b.op("Add", b.op("Mul", y, f(768), shape=hidden), f(768), shape=hidden)
    y = b.op("Reshape", y, b.constant(np.array([-1, 768])), shape=(1600, 768))
    y = b.op("Add", b.op("MatMul", y, f(768, 3072), shape=(1600, 3072)), f(3072), shape=(1600, 3072))
    y = b.op("Reshape", y, b.constant(np.array(wide)), shape=wide)
    cubed = b.op("Mul", b.op("Pow", y, c(3), shape=wide), c(0.044715), shape=wide)
    inner = b.op("Mul", b.op("Add", y, cubed, shape=wide), c(0.797885), shape=wide)
    curve = b.op("Add", b.op("Tanh", inner, shape=wide), c(1), shape=wide)
    return b.model([x], [b.op("Mul", b.op("Mul", y, c(0.5), shape=wide), curve, shape=wide)])
