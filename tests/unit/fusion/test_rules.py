from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.graph.random_graphs import FLOAT, Builder, random_model

import collage.fusion
from collage.fusion import (
    CompositeFusionRule,
    DFPatternFusionRule,
    FusionReport,
    FusionSpec,
    GivenFusionRule,
    HostFusionRule,
    OnlyValidFusionRule,
    OpCallByKindFusionRule,
    OpPredicateFusionRule,
    RegionFusionRule,
    UnionFusionRule,
    consider_library,
    maximal_regions,
    only_patterns,
    pattern_based,
    regions,
)
from collage.graph import DataflowGraph, IndexSet, KernelSpec, OpKind, SubGraph, SubGraphConfig, partition
from collage.pattern import fork_to, is_const, is_op, make, together, wildcard
from collage.target import Target
from collage.toolchains import PatternEntry, Support

from .oracles import Given, all_subsets, find, key, mnist

SEEDS = st.integers(0, 100_000)
NAMES = ["tvm", "openvino", "onnxruntime", "ort_", "tensorrt", "cutlass", "cudnn", "cublas", "onednn", "inductor"]
MODELS = ["resnet", "bert", "gpt", "vit", "inception", "nasnet", "mobilenet", "mnist"]

CONV_ADD_RELU = is_op("Relu")(is_op("Add")(is_op("Conv")(wildcard(), is_const()), is_const()))
DENSE_ADD = is_op("Add")(is_op("MatMul")(wildcard(), is_const()), is_const())
TABLE = (PatternEntry("lib.conv", CONV_ADD_RELU), PatternEntry("lib.dense", DENSE_ADD))


def any_operator(node):
    return Support(True)


def test_an_operator_rule_finds_what_its_predicate_takes():
    graph = DataflowGraph(mnist())
    rule = OpPredicateFusionRule(lambda node: Support(node.op_type == "Conv", "not a convolution"))
    assert find(rule, graph) == {(1 << i, ()) for i, n in enumerate(graph.nodes) if n.op_type == "Conv"}


def test_a_rule_by_kind_finds_what_is_not_opaque():
    b = Builder()
    x = b.input("x")
    graph = DataflowGraph(b.model([x], [b.op("CumSum", b.op("Relu", x), b.constant(np.array(0)))]))
    assert find(OpCallByKindFusionRule(), graph) == {(1, ())}
    assert find(OpCallByKindFusionRule(max_kind=OpKind.OPAQUE), graph) == {(1, ()), (2, ())}
    refuse = OpCallByKindFusionRule(predicate=lambda node: Support(False, "no"))
    assert find(refuse, graph) == set()
    assert find(HostFusionRule(), graph) == {(1, ()), (2, ())}
    assert find(HostFusionRule(lambda node: node.op_type == "CumSum"), graph) == {(2, ())}


def branches(count: int) -> ir.Model:
    """One value that so many operators read."""
    nodes = "".join(f"y{i} = Relu(x) " for i in range(count))
    outputs = ", ".join(f"float[2] y{i}" for i in range(count))
    return ir.from_onnx_text(f'<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => ({outputs}) {{ {nodes} }}')


def test_interchangeable_branches_count_as_sets_and_several_results_stay_candidates():
    graph = DataflowGraph(branches(6))
    fork = fork_to(make(3, is_op("Relu")(wildcard())))
    triples = {sum(1 << i for i in three) for three in itertools.combinations(range(6), 3)}
    found = DFPatternFusionRule(fork).find(graph, FusionReport())
    assert sorted(f.sub_graph.inside.bits for f in found) == sorted(triples)
    table = [PatternEntry("own.three", fork)]
    assert triples <= {bits for bits, _ in find(pattern_based(table), graph)}
    given = GivenFusionRule(tuple(SubGraph(graph, IndexSet(bits)) for bits in triples))
    assert {bits for bits, _ in find(given, graph)} == triples


def test_matches_that_are_no_kernel_are_noted():
    graph = DataflowGraph(mnist())
    report = FusionReport()
    table = [PatternEntry("own.conv", CONV_ADD_RELU)]
    assert not list(pattern_based(table, max_depth=2).find(graph, report))
    assert report.notes == ["left out 2 matches of patterns: it is 3 nodes deep, more than 2"]


def test_a_pattern_rule_finds_every_match_and_its_predicate_refuses_some():
    graph = DataflowGraph(mnist())
    runs = {bits for bits, _ in find(DFPatternFusionRule(CONV_ADD_RELU), graph)}
    assert {tuple(graph.node(i).op_type for i in IndexSet(bits)) for bits in runs} == {("Conv", "Add", "Relu")}
    assert len(runs) == 2
    wide = DFPatternFusionRule(CONV_ADD_RELU, lambda match: match.root.shape[1] == 16)
    assert len(find(wide, graph)) == 1
    assert len(find(only_patterns([CONV_ADD_RELU, DENSE_ADD]), graph)) == 3


def test_a_pattern_with_too_many_matches_gives_those_found_and_says_so():
    b = Builder()
    x = b.input("x")
    graph = DataflowGraph(b.model([x], [b.op("Relu", x) for _ in range(20)]))
    report = FusionReport()
    found = list(DFPatternFusionRule(together(*(is_op("Relu") for _ in range(10))), name="hub").find(graph, report))
    assert found and all(len(f.sub_graph.inside) == 10 for f in found)
    assert report.capped == ["hub"]


def test_a_match_of_which_a_part_reaches_no_output_is_none():
    b = Builder()
    x = b.input("x")
    y = b.op("Abs", x)
    b.op("Neg", y)
    graph = DataflowGraph(b.model([x], [b.op("Relu", y)]))
    assert find(DFPatternFusionRule(is_op("Neg")(is_op("Abs")(wildcard()))), graph) == set()
    assert find(DFPatternFusionRule(is_op("Relu")(is_op("Abs")(wildcard()))), graph) == {(0b11, ())}


def test_a_composite_rule_labels():
    graph = DataflowGraph(mnist())
    found = list(CompositeFusionRule("lib.dense", DFPatternFusionRule(DENSE_ADD)).find(graph, FusionReport()))
    assert [f.sub_graph.label for f in found] == ["lib.dense"] and found[0].rules == ("pattern", "lib.dense")


def test_a_union_finds_what_any_finds_and_remembers_who():
    graph = DataflowGraph(mnist())
    rule = UnionFusionRule((OpCallByKindFusionRule(), OpPredicateFusionRule(any_operator)))
    assert find(rule, graph) == {(1 << i, ()) for i in range(13)}
    assert {f.rules for f in rule.find(graph, FusionReport())} == {("kind", "operator")}


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(0, 3), st.booleans(), st.integers(0, 3))
def test_only_valid_keeps_what_is_valid(seed, exits, taps, depth):
    graph = DataflowGraph(random_model(seed, 7))
    config = SubGraphConfig(exits, taps, depth)
    everything = list(all_subsets(graph))
    assert find(OnlyValidFusionRule(Given(everything), config), graph) == {
        key(s) for s in everything if s.why_invalid(config) is None
    }


def test_the_pattern_based_strategy_joins_labelled_matches():
    b = Builder()
    x = y = b.input("x")
    for _ in range(2):
        product = b.op("MatMul", y, b.constant(np.ones((4, 4), np.float32)))
        y = b.op("Add", product, b.constant(np.ones(4, np.float32)))
    graph = DataflowGraph(b.model([x], [y]))
    found = list(pattern_based(TABLE).find(graph, FusionReport()))
    assert [f.sub_graph.label for f in found] == ["lib.dense", "lib.dense", "lib.dense+lib.dense"]


def test_a_library_may_stand_for_operators_inside_classic_kernels():
    b = Builder()
    x = b.input("x")
    product = b.op("MatMul", x, b.constant(np.ones((4, 4), np.float32)))
    graph = DataflowGraph(b.model([x], [b.op("Relu", b.op("Add", product, b.constant(np.ones(4, np.float32))))]))
    labels = {f.sub_graph.label for f in consider_library(TABLE).find(graph, FusionReport())}
    assert {"lib.dense", "lib.dense+Relu", "MatMul+Add+Relu", "MatMul+Add", "Add+Relu", "MatMul"} <= labels


def supported_some(graph, seed):
    rng = random.Random(seed)
    taken = {node for node in graph.nodes if rng.random() < 0.8}
    return lambda node: Support(node in taken)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(0, 4))
def test_regions_are_supported_ranges_between_all_cuts_of_small_graphs_and_narrow_ones_of_others(seed, max_cuts):
    graph = DataflowGraph(random_model(seed, 16))
    predicate = supported_some(graph, seed)
    found = {tuple(IndexSet(bits)) for bits, _ in find(RegionFusionRule(predicate, max_cuts=max_cuts or 256), graph)}
    ok = [predicate(node).ok for node in graph.nodes]
    runs, start = [], None
    for i, taken in enumerate([*ok, False]):
        if taken and start is None:
            start = i
        if not taken and start is not None:
            runs.append((start, i))
            start = None
    live = [cut.count for cut in graph.cuts]
    ends = {end for run in runs for end in run}
    inside = {p for a, b in runs for p in range(a + 1, b)}
    narrow = {p for p in inside if all(live[p] <= live[q] for q in (p - 1, p + 1) if q not in ends)}
    if len(inside) <= min(48, max_cuts or 256):
        narrow = inside
    allowed = {
        tuple(range(i, j))
        for a, b in runs
        for i in range(a, b)
        for j in range(i + 1, b + 1)
        if i in narrow | {a} and j in narrow | {b}
    }
    assert {tuple(range(*run)) for run in runs} <= found <= allowed
    if not max_cuts:
        assert found == allowed
    assert {tuple(IndexSet(bits)) for bits, _ in find(maximal_regions(predicate), graph)} == {
        tuple(range(*run)) for run in runs
    }


def chain(length):
    b = Builder()
    x = y = b.input("x")
    for _ in range(length):
        y = b.op("Relu", y)
    return DataflowGraph(b.model([x], [y]))


def test_many_cuts_are_joined_by_doubling_lengths_heads_and_tails():
    graph = chain(100)
    found = {tuple(IndexSet(bits)) for bits, _ in find(RegionFusionRule(any_operator), graph)}
    lengths = {len(r) for r in found if r[0] != 0 and r[-1] != 99}
    assert lengths == {1, 2, 4, 8, 16, 32, 64}
    assert {tuple(range(k)) for k in range(1, 101)} <= found
    assert {tuple(range(k, 100)) for k in range(100)} <= found
    assert len(found) < 1000


def test_of_equal_cuts_some_are_used_evenly_spread_and_the_report_says_so():
    report = FusionReport()
    rule = RegionFusionRule(any_operator, max_cuts=9)
    found = list(rule.find(chain(100), report))
    starts = sorted({f.sub_graph.inside.first for f in found})
    assert len(starts) == 10 and max(b - a for a, b in itertools.pairwise(starts)) <= 12
    assert any("9 narrowest of 99" in note for note in report.notes)


def test_regions_are_capped_and_the_whole_comes_first():
    report = FusionReport()
    found = list(RegionFusionRule(any_operator, max_candidates=10).find(chain(30), report))
    assert len(found) == 10 and len(found[0].sub_graph) == 30 and report.capped == ["region"]


def test_cuts_can_be_given():
    found = find(RegionFusionRule(any_operator, cuts=(3, 7)), chain(10))
    assert {(IndexSet(b).first, IndexSet(b).last) for b, _ in found} == {(0, 2), (0, 6), (0, 9), (3, 6), (3, 9), (7, 9)}


def test_a_region_keeps_the_skips_of_an_encoder():
    b = Builder()
    x = y = b.input("x")
    skips = []
    for _ in range(3):
        y = b.op("MatMul", y, b.constant(np.ones((4, 4), np.float32)))
        skips.append(y)
    for skip in reversed(skips[:-1]):
        y = b.op("Add", b.op("MatMul", y, b.constant(np.ones((4, 4), np.float32))), skip)
    graph = DataflowGraph(b.model([x], [y]))
    encoder = SubGraph(graph, IndexSet.range(0, 3))
    found = {f.sub_graph for f in regions(any_operator).find(graph, FusionReport())}
    assert len(encoder.exit) == 3 and encoder.taps and encoder.is_admissible
    rule = RegionFusionRule(any_operator, cuts=(3,))
    assert encoder in {f.sub_graph for f in rule.find(graph, FusionReport())}
    assert all(s.is_admissible for s in found)


def test_no_region_ends_where_a_sequence_flows():
    b = Builder()
    x = b.input("x")
    sequence = b.op("SequenceConstruct", b.op("Relu", x), x, type_=ir.SequenceType(FLOAT))
    at = b.op("SequenceAt", sequence, b.constant(np.array(0)))
    graph = DataflowGraph(b.model([x], [b.op("Neg", at)]))
    found = {f.sub_graph.inside for f in RegionFusionRule(any_operator).find(graph, FusionReport())}
    assert all((1 in s) == (2 in s) for s in found) and IndexSet.range(0, 4) in found
    halves = RegionFusionRule(lambda node: Support(node.op_type != "SequenceAt"))
    assert {str(f.sub_graph.inside) for f in halves.find(graph, FusionReport())} == {"{0}", "{3}"}


def test_kernels_made_earlier_are_left_alone():
    model = mnist()
    kernel = SubGraph(DataflowGraph(model), [0, 1, 2])
    graph = DataflowGraph(partition(model, [KernelSpec(kernel, "k")]))
    call = next(i for i in range(len(graph)) if graph.is_kernel_call(i))
    for rule in (OpCallByKindFusionRule(OpKind.OPAQUE), OpPredicateFusionRule(any_operator), regions(any_operator)):
        assert all(not bits >> call & 1 for bits, _ in find(rule, graph))


@pytest.mark.parametrize("rule", [regions(any_operator), pattern_based(TABLE), consider_library(TABLE)])
def test_candidates_name_the_rules_that_found_them(rule):
    graph = DataflowGraph(mnist())
    spec = FusionSpec("s", rule, (Target("llvm"), Target("cuda")))
    candidates = spec.all_candidates(graph)
    assert candidates and all(c.rules and c.spec is spec for c in candidates)
    assert {c.target for c in candidates} == {Target("llvm"), Target("cuda")}
    assert len(set(candidates)) == len(candidates)


def test_no_toolchain_and_no_model_is_named_in_the_rules():
    folder = Path(collage.fusion.__file__).parent
    for file in sorted(folder.glob("*.py")):
        text = file.read_text().lower()
        assert not [name for name in NAMES + MODELS if name in text], file
