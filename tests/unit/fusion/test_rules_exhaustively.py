"""Every rule against its definition, written down naively, on thousands of random graphs.

Long: ``pytest -m slow tests/unit/fusion/test_rules_exhaustively.py`` (some minutes). Seeds are fixed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from tests.unit.graph.random_graphs import UNARY, random_model

from collage.fusion import (
    ByKindPrimitive,
    CombineByPrimitivesFusionRule,
    CompositeFusionRule,
    DFPatternFusionRule,
    FusionReport,
    FusionRule,
    HorizontalPrimitive,
    HostFusionRule,
    JoinAnythingPrimitive,
    MaxCoalesceFusionRule,
    OnlyValidFusionRule,
    OpCallByKindFusionRule,
    OpPredicateFusionRule,
    TupleArgPrimitive,
    UnionFusionRule,
    VerticalPrimitive,
    anchors_of,
)
from collage.graph import ANY_VALID, DataflowGraph, OpKind, SubGraph, SubGraphConfig
from collage.pattern import is_op, wildcard
from collage.toolchains import Support

from .oracles import ONE_EXIT, Given, all_subsets, by_kind, find, is_connected, key, naive_closure

pytestmark = pytest.mark.slow

GRAPHS = 2_000
SINGLES = OpPredicateFusionRule(lambda node: Support(True))
LISTS = ("Concat", "Max", "Mean", "Min", "Sum")
Case = tuple[FusionRule, set]


def singles(graph: DataflowGraph) -> list[SubGraph]:
    return [SubGraph(graph, [i]) for i in range(len(graph))]


def closure(bases: list[SubGraph], unions: Callable[[list[SubGraph]], list[SubGraph]]) -> set:
    """Keys of all that can be made by uniting over and over, as long as it stays convex."""
    pool = {key(s): s for s in bases}
    while True:
        fresh = {key(s): s for s in unions(list(pool.values())) if s.is_convex and key(s) not in pool}
        if not fresh:
            return set(pool)
        pool |= fresh


def united(parts) -> SubGraph:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.disjoint_union(part)
    return whole


def are_disjoint(parts) -> bool:
    return sum(len(p) for p in parts) == len({i for p in parts for i in p})


def operators(graph: DataflowGraph, rng: random.Random) -> Case:
    taken = {node for node in graph.nodes if rng.random() < 0.6}
    expected = {(1 << i, ()) for i, node in enumerate(graph.nodes) if node in taken}
    return OpPredicateFusionRule(lambda node: Support(node in taken)), expected


def kinds(graph: DataflowGraph, rng: random.Random) -> Case:
    most = rng.choice(list(OpKind))
    return OpCallByKindFusionRule(max_kind=most), {(1 << i, ()) for i, k in enumerate(graph.kinds) if k <= most}


def left_behind(graph: DataflowGraph, rng: random.Random) -> Case:
    types = set(rng.sample(sorted({n.op_type for n in graph.nodes}), 1))
    expected = {(1 << i, ()) for i, node in enumerate(graph.nodes) if node.op_type in types}
    return HostFusionRule(lambda node: node.op_type in types), expected


def chain_pairs(graph: DataflowGraph, outer: str, inner: str) -> list[SubGraph]:
    pairs = itertools.permutations(range(len(graph)), 2)
    op = [node.op_type for node in graph.nodes]
    return [
        SubGraph(graph, p) for p in pairs if (op[p[0]], op[p[1]]) == (inner, outer) and p[0] in graph.producers(p[1])
    ]


def some_chain(graph: DataflowGraph, rng: random.Random) -> tuple[str, str]:
    """Two operators of one input in a row, which the graph has if it has any such."""
    op = [node.op_type for node in graph.nodes]
    edges = [(op[c], op[p]) for c in range(len(graph)) for p in graph.producers(c)]
    return rng.choice([e for e in edges if set(e) <= set(UNARY)] or [("Neg", "Abs")])


def patterns(graph: DataflowGraph, rng: random.Random) -> Case:
    outer, inner = some_chain(graph, rng)
    rule = DFPatternFusionRule(is_op(outer)(is_op(inner)(wildcard())))
    return rule, {key(s) for s in chain_pairs(graph, outer, inner)}


def labelled_union(graph: DataflowGraph, rng: random.Random) -> Case:
    outer, inner = some_chain(graph, rng)
    pattern = DFPatternFusionRule(is_op(outer)(is_op(inner)(wildcard())))
    expected = {key(s.with_label("x.pair")) for s in chain_pairs(graph, outer, inner)}
    rule = UnionFusionRule((CompositeFusionRule("x.pair", pattern), SINGLES, SINGLES))
    return rule, expected | {key(s) for s in singles(graph)}


def only_valid(graph: DataflowGraph, rng: random.Random) -> Case:
    config = SubGraphConfig(rng.randint(0, 3), rng.random() < 0.5, rng.randint(0, 3))
    everything = list(all_subsets(graph))
    expected = {key(s) for s in everything if s.is_convex and s.why_ill_formed(config) is None}
    return OnlyValidFusionRule(Given(everything), config), expected


def joined_by_kind(graph: DataflowGraph, rng: random.Random) -> Case:
    pairs = [(rng.choice(list(OpKind)), rng.choice(list(OpKind))) for _ in range(rng.randint(1, 3))]
    config = SubGraphConfig(max_exits=rng.choice([0, 1, 1, 2]), allow_taps=False, max_depth=rng.choice([0, 2, 3]))
    combined = CombineByPrimitivesFusionRule(SINGLES, tuple(ByKindPrimitive(*p) for p in pairs), config)
    pool = naive_closure(singles(graph), by_kind(pairs), config.max_depth)
    return OnlyValidFusionRule(combined, config), {key(s) for s in pool if s.is_valid(config)}


def joined_at_will(graph: DataflowGraph, rng: random.Random) -> Case:
    config = rng.choice([ONE_EXIT, ANY_VALID, SubGraphConfig(1, False, 3), SubGraphConfig(2, True, 0)])
    combined = CombineByPrimitivesFusionRule(SINGLES, (JoinAnythingPrimitive(),), config)
    expected = {key(s) for s in all_subsets(graph) if is_connected(s) and s.is_valid(config)}
    return OnlyValidFusionRule(combined, config), expected


def lists_joined(graph: DataflowGraph, rng: random.Random) -> Case:
    def unions(pool: list[SubGraph]) -> list[SubGraph]:
        small, made = [s for s in pool if s.kind <= OpKind.INJECTIVE], []
        for consumer in small:
            for i in consumer.entry:
                fields = [p for p in graph.producers(i) if p not in consumer.inside]
                if graph.node(i).op_type in LISTS and len(fields) > 1:
                    for makers in itertools.product(*([s for s in small if p in s.exit] for p in fields)):
                        parts = [*dict.fromkeys(makers), consumer]
                        made += [united(parts)] if are_disjoint(parts) else []
        return made

    return CombineByPrimitivesFusionRule(SINGLES, (TupleArgPrimitive(),)), closure(singles(graph), unions)


def in_a_row(graph: DataflowGraph, rng: random.Random) -> Case:
    most = rng.choice([2, 3])

    def unions(pool: list[SubGraph]) -> list[SubGraph]:
        anchored = [s for s in pool if anchors_of(s)]
        return [
            up.disjoint_union(down)
            for up, down in itertools.permutations(anchored, 2)
            if are_disjoint((up, down))
            and up.output_bits & down.inside.bits
            and len(anchors_of(up)) + len(anchors_of(down)) <= most
        ]

    base = bases_with_epilogues(graph, rng)
    return CombineByPrimitivesFusionRule(Given(base), (VerticalPrimitive(most),)), closure(base, unions)


def side_by_side(graph: DataflowGraph, rng: random.Random) -> Case:
    def feeds(one: SubGraph, other: SubGraph) -> bool:
        return bool(one.output_bits & other.inside.bits)

    def work(s: SubGraph) -> set[str]:
        return {graph.node(i).op_type for i in anchors_of(s)}

    def unions(pool: list[SubGraph]) -> list[SubGraph]:
        return [
            one.disjoint_union(other)
            for one, other in itertools.combinations([s for s in pool if anchors_of(s)], 2)
            if are_disjoint((one, other))
            and not feeds(one, other)
            and not feeds(other, one)
            and work(one) == work(other)
            and set(one.input_values()) & set(other.input_values())
            and len(anchors_of(one)) + len(anchors_of(other)) <= 3
        ]

    base = bases_with_epilogues(graph, rng)
    return CombineByPrimitivesFusionRule(Given(base), (HorizontalPrimitive(3),)), closure(base, unions)


def bases_with_epilogues(graph: DataflowGraph, rng: random.Random) -> list[SubGraph]:
    """Single operators and some connected sets of two."""
    pairs = [s for s in all_subsets(graph) if len(s) == 2 and is_connected(s) and s.is_convex and rng.random() < 0.4]
    return [*singles(graph), *pairs]


CASES = [
    operators, kinds, left_behind, patterns, labelled_union, only_valid, joined_by_kind, joined_at_will, lists_joined,
    in_a_row, side_by_side,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_rule_finds_what_its_definition_says_and_nothing_else(case):
    found_any = 0
    for seed in range(GRAPHS):
        graph = DataflowGraph(random_model(seed, 4 + seed % 4, outputs=1 + seed % 3))
        rule, expected = case(graph, random.Random(seed))
        found = find(rule, graph)
        assert found == expected, (seed, found ^ expected)
        found_any += bool(found)
    assert found_any > GRAPHS // 20


def test_coalescing_leaves_disjoint_sets_that_cannot_be_joined_any_more():
    for seed in range(GRAPHS):
        graph, rng = DataflowGraph(random_model(seed, 8)), random.Random(seed)
        taken = [s for s in singles(graph) if rng.random() < 0.8]
        groups = [f.sub_graph for f in MaxCoalesceFusionRule(Given(taken)).find(graph, FusionReport())]
        assert sorted(i for g in groups for i in g) == sorted(i for s in taken for i in s), seed
        assert acyclic(graph, groups), seed
        for one, other in itertools.permutations(groups, 2):
            if one.output_bits & other.inside.bits:
                union = one.disjoint_union(other)
                others = [g for g in groups if g is not one and g is not other]
                assert not (union.is_valid() and acyclic(graph, [*others, union])), (seed, one, other)


def acyclic(graph: DataflowGraph, groups: list[SubGraph]) -> bool:
    """Whether groups, all other nodes being groups of one, can be run one after the other."""
    rest = [SubGraph(graph, [i]) for i in range(len(graph)) if not any(i in g.inside for g in groups)]
    waiting, done = [*groups, *rest], 0
    while waiting:
        ready = [g for g in waiting if not g.input_bits & ~done]
        if not ready:
            return False
        done |= sum(g.inside.bits for g in ready)
        waiting = [g for g in waiting if g not in ready]
    return True
