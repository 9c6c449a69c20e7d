"""The scenarios of TVM's tests of Collage's pass, restated for ONNX, with the totals of their cost model.

The k-th operator of a kernel costs ``c * 0.9**k``. The menu there is the native target with classic fusion, and a code
generator with a table of three patterns, Relu, Add and Concat, that may be joined at will: so Abs is for the native
target only. Where a cover costs no more than another it may be either, so only what is unique is compared.
"""

from __future__ import annotations

import pytest
from tests.unit.graph.random_graphs import Builder

from collage.fusion import (
    CandidateKernel,
    FusionSpec,
    classic_fuse_ops,
    collect_candidates,
    max_coalesce,
    pattern_based,
)
from collage.graph import DataflowGraph, extract
from collage.pattern import is_op, wildcard
from collage.search import Partitioning, shortest_path
from collage.target import Target
from collage.testing import MockCostEstimator
from collage.toolchains import PatternEntry

NATIVE, HOOK = Target("llvm"), Target("llvm", compiler="hook")
TABLE = [
    PatternEntry("relu", is_op("Relu")(wildcard())),
    PatternEntry("add", is_op("Add")(wildcard(), wildcard())),
    PatternEntry("concat", is_op("Concat")(wildcard(), wildcard())),
]


def decaying(first: float, count: int) -> float:
    return sum(first * 0.9**k for k in range(count))


class Scenario:
    """A graph with the menu, searched, and searched again with neighbours in the cover joined."""

    def __init__(self, build, costs: tuple[float, float], depths: tuple[int, int] = (8, 8)) -> None:
        b = Builder()
        x = b.input("x")
        outputs = build(b, x)
        self.graph = DataflowGraph(b.model([x], outputs if isinstance(outputs, list) else [outputs]))
        specs = [
            FusionSpec("native", classic_fuse_ops(depths[0]), (NATIVE,)),
            FusionSpec("hook", pattern_based(TABLE, depths[1]), (HOOK,)),
        ]
        self.candidates = list(collect_candidates(self.graph, specs))
        self.estimator = MockCostEstimator(dict(zip(map(str, (NATIVE, HOOK)), costs, strict=True)))
        best = shortest_path(len(self.graph), self.candidates, self.cost)
        assert isinstance(best, Partitioning) and best.optimal
        self.total = best.cost.seconds
        self.kernels = [self.words(c) for c in best.candidates]
        larger = [c for c in max_coalesce(self.graph, best.candidates) if c.sub_graph.is_admissible]
        joined = shortest_path(len(self.graph), list(dict.fromkeys([*self.candidates, *larger])), self.cost)
        assert isinstance(joined, Partitioning)
        self.joined = [self.words(c) for c in joined.candidates]

    def cost(self, candidate: CandidateKernel):
        return self.estimator.estimate(extract(self.graph, candidate.sub_graph, "k"), candidate.target)

    def words(self, candidate: CandidateKernel) -> str:
        operators = "+".join(node.op_type for node in candidate.sub_graph.nodes)
        return f"{operators} on {candidate.target.short}"


def relus(b: Builder, x, count: int = 3):
    for _ in range(count):
        x = b.op("Relu", x)
    return x


@pytest.mark.parametrize(("costs", "where"), [((1, 2), NATIVE), ((2, 1), HOOK)])
def test_a_single_operator_goes_where_it_is_cheaper(costs, where):
    s = Scenario(lambda b, x: b.op("Relu", x), costs)
    assert s.total == 1 and s.kernels == [f"Relu on {where.short}"]


@pytest.mark.parametrize(("depth", "total"), [(1, 1 + 2 + 1 + 1), (3, 1 + 2 + decaying(1, 2))])
def test_a_diamond_is_joined_below_what_only_the_native_target_takes(depth, total):
    def diamond(b, x):
        top = b.op("Abs", b.op("Relu", x))
        return b.op("Add", top, b.op("Relu", top))

    s = Scenario(diamond, (2, 1), (1, depth))
    assert s.total == pytest.approx(total)
    assert s.joined == ["Relu on hook", "Abs on llvm", "Relu+Add on hook"]


@pytest.mark.parametrize(("depth", "total"), [(1, 3 * 99), (2, 99 + decaying(100, 2)), (3, decaying(100, 3))])
def test_the_native_depth_decides_how_much_dearer_operators_may_be(depth, total):
    s = Scenario(relus, (100, 99), (depth, 1))
    assert s.total == pytest.approx(total)
    if depth != 2:
        assert s.joined == [f"Relu+Relu+Relu on {(HOOK if depth == 1 else NATIVE).short}"]


@pytest.mark.parametrize(("depth", "total"), [(1, 3 * 99), (2, 99 + decaying(100, 2)), (3, decaying(100, 3))])
def test_the_other_depth_does_so_too(depth, total):
    s = Scenario(relus, (99, 100), (1, depth))
    assert s.total == pytest.approx(total)
    if depth == 3:
        assert s.kernels == ["Relu+Relu+Relu on hook"]


def test_what_is_an_output_and_read_too_is_joined_only_afterwards():
    def build(b, x):
        first = b.op("Relu", x)
        second = b.op("Relu", first)
        return [first, second, b.op("Abs", second)]

    s = Scenario(build, (2, 1), (2, 2))
    assert s.total == 1 + 1 + 2
    assert s.kernels == ["Relu on hook", "Relu on hook", "Abs on llvm"]
    assert s.joined == ["Relu+Relu on hook", "Abs on llvm"]


def test_a_list_argument_is_no_border():
    """There, the list is a node that the host makes, and three kernels cost 3; here Concat reads both itself."""

    def build(b, x):
        first = b.op("Relu", x)
        return b.op("Concat", first, b.op("Relu", first), shape=(2, 8), axis=1)

    s = Scenario(build, (2, 1), (3, 5))
    assert s.total == pytest.approx(decaying(1, 3)) and s.kernels == ["Relu+Relu+Concat on hook"]


def test_fusing_five_operators_is_worth_a_dearer_target():
    def build(b, x):
        left, right = relus(b, x, 2), b.op("Relu", b.op("Abs", x))
        return b.op("Abs", b.op("Relu", b.op("Add", left, right)))

    s = Scenario(build, (5, 6), (1, 5))
    assert s.total == pytest.approx(5 + decaying(6, 5) + 5)
    assert sorted(s.kernels) == ["Abs on llvm", "Abs on llvm", "Relu+Relu+Relu+Add+Relu on hook"]


def test_a_double_residual_goes_around_what_the_cheaper_target_does_not_take():
    def build(b, x):
        first = b.op("Relu", x)
        second = b.op("Abs", first)
        return b.op("Add", second, b.op("Add", first, second))

    s = Scenario(build, (2, 1), (4, 4))
    assert s.total == pytest.approx(1 + 2 + decaying(1, 2))
    assert s.kernels == ["Relu on hook", "Abs on llvm", "Add+Add on hook"]


def test_where_both_take_the_whole_every_candidate_is_there_and_none_is_pruned():
    """There, pruning leaves two of fourteen candidates, and with them no way of mixing."""

    def build(b, x):
        first = b.op("Relu", x)
        second = b.op("Relu", first)
        return b.op("Add", second, b.op("Add", first, second))

    s = Scenario(build, (2, 1), (4, 4))
    assert s.total == pytest.approx(decaying(1, 4)) and s.kernels == ["Relu+Relu+Add+Add on hook"]
    assert len(s.candidates) == 14
