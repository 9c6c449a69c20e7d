"""The classic passes: baselines that fuse by rule, and a way of partitioning by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.graph.random_graphs import check, feeds_of, random_model, run

from collage.byoc import (
    AnnotateTarget,
    FuseOps,
    MergeCompilerRegions,
    MergeComposite,
    PartitionGraph,
    partition_for,
)
from collage.fusion import FusionSpec, OpPredicateFusionRule, classic_fuse_ops, collect_candidates, max_coalesce
from collage.graph import COMPOSITE, DataflowGraph, kernels_of
from collage.pattern import is_const, is_op, wildcard
from collage.search import shortest_path
from collage.target import Target
from collage.testing import FakeToolchain
from collage.toolchains import PatternEntry, Registry, Support

from .oracles import mnist


class Library(FakeToolchain):
    """Takes some operators, or what matches its patterns."""

    def __init__(self, name, takes=(), table=()):
        super().__init__(name=name)
        self._takes, self._table = takes, table

    def pattern_table(self):
        return self._table

    def supports(self, node, target):
        return Support(node.op_type in self._takes)


def conv_bias_relu():
    biased = is_op("Add")(is_op("Conv")(wildcard(), is_const()), is_const())
    return PatternEntry("lib.conv_bias_relu", is_op("Relu")(biased))


def conv():
    return PatternEntry("lib.conv", is_op("Conv")(wildcard(), is_const()))


def menu(*toolchains) -> Registry:
    registry = Registry([])
    for toolchain in toolchains:
        registry.add(toolchain)
    return registry


def operators(function: ir.Function) -> list[str]:
    return [node.op_type for node in function if node.op_type != "Constant"]


def same_results(model: ir.Model, other: ir.Model, seed: int = 0) -> None:
    feeds = feeds_of(model, seed)
    for expected, got in zip(run(model, feeds), run(other, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_fuse_ops_makes_the_kernels_known_of_the_example():
    fused = FuseOps()(mnist())
    assert [operators(call.function) for call in kernels_of(fused)] == [
        ["Pad"], ["Conv", "Add", "Relu"], ["MaxPool"], ["Pad"], ["Conv", "Add", "Relu"], ["MaxPool"], ["Reshape"],
        ["MatMul", "Add"],
    ]  # fmt: skip
    assert all("Compiler" not in call.metadata for call in kernels_of(fused))
    same_results(mnist(), fused)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100_000))
def test_fuse_ops_covers_every_operator_and_changes_no_result(seed):
    model = random_model(seed)
    fused = FuseOps()(model)
    calls = kernels_of(fused)
    assert len(calls) == len(list(fused.graph))
    inside = Counter(op for call in calls for op in operators(call.function))
    assert inside == Counter(node.op_type for node in DataflowGraph(model).nodes)
    same_results(model, fused, seed)
    assert ir.to_proto(FuseOps()(fused)) == ir.to_proto(fused)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100_000))
def test_fuse_ops_is_what_the_search_finds_where_fusing_always_pays(seed):
    """On chains of kernels both take the largest; in general the search is never worse."""
    graph = DataflowGraph(random_model(seed, 9))
    candidates = list(collect_candidates(graph, [FusionSpec("s", classic_fuse_ops(0), (Target("llvm"),))]))
    best = shortest_path(len(graph), candidates, lambda c: (1 - 0.9 ** len(c.sub_graph)) / 0.1)
    fused = kernels_of(FuseOps()(graph.model))
    assert best.cost.seconds <= sum((1 - 0.9 ** len(operators(k.function))) / 0.1 for k in fused) + 1e-9


def test_a_pattern_based_toolchain_gets_what_its_patterns_match_and_nothing_else():
    library = Library("lib", takes={"MaxPool"}, table=(conv_bias_relu(), conv()))
    model = partition_for(mnist(), "lib", menu(library))
    calls = kernels_of(model)
    assert len(calls) == 2
    for call in calls:
        assert call.metadata["Compiler"] == "lib" and call.metadata["target"] == "llvm -compiler=lib"
        (composite,) = call.function
        assert model.functions[composite.op_identifier()].metadata_props[COMPOSITE] == "lib.conv_bias_relu"
    assert [n.op_type for n in model.graph if n not in {c.node for c in calls}] == [
        "Pad", "MaxPool", "Pad", "MaxPool", "Reshape", "MatMul", "Add",
    ]  # fmt: skip
    same_results(mnist(), model)


def test_the_earlier_row_of_a_pattern_table_wins():
    library = Library("lib", table=(conv(), conv_bias_relu()))
    labels = [f.metadata_props.get(COMPOSITE) for f in partition_for(mnist(), "lib", menu(library)).functions.values()]
    assert "lib.conv" in labels and "lib.conv_bias_relu" not in labels


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 100_000), st.sets(st.sampled_from(["Add", "Mul", "Relu", "MatMul", "Split", "Concat", "Neg"])))
def test_partitioning_by_operator_is_coalescing_what_one_target_takes(seed, takes):
    model, library = random_model(seed, 14), Library("lib", takes)
    target = Target("llvm", compiler="lib")
    partitioned = partition_for(model, target, menu(library))
    check(partitioned)
    same_results(model, partitioned, seed)
    graph = DataflowGraph(model)
    rule = OpPredicateFusionRule(lambda node: library.supports(node, target))
    singles = list(collect_candidates(graph, [FusionSpec("lib", rule, (target,))]))
    expected = sorted(sorted(n.op_type for n in k.sub_graph.nodes) for k in max_coalesce(graph, singles))
    assert sorted(sorted(operators(call.function)) for call in kernels_of(partitioned)) == expected
    assert all(not n.metadata_props for f in partitioned.functions.values() for n in f if n.domain == "")


class OfFloats(Library):
    """Takes what it knows to be floats."""

    def supports(self, node, target):
        return Support(node.outputs[0].dtype == ir.DataType.FLOAT)


def test_toolchains_decide_by_types_that_the_file_does_not_state():
    toolchains, model = menu(OfFloats("lib")), mnist()
    for node in model.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.type, value.shape = None, None
    by_hand = PartitionGraph()(MergeCompilerRegions()(AnnotateTarget("lib", toolchains)(model)))
    for partitioned in (partition_for(model, "lib", toolchains), by_hand):
        (call,) = kernels_of(partitioned)
        assert len(operators(call.function)) == 13


def test_two_targets_are_annotated_in_order_of_preference():
    toolchains = menu(Library("a", {"Conv", "Add"}), Library("b", {"Conv", "Relu", "MaxPool"}))
    model = mnist()
    for step in (AnnotateTarget("a", toolchains), AnnotateTarget("b", toolchains)):
        model = step(model)
    kernels = {}
    for call in kernels_of(PartitionGraph()(MergeCompilerRegions()(model))):
        kernels.setdefault(call.metadata["Compiler"], []).append(operators(call.function))
    assert kernels == {"a": [["Conv", "Add"], ["Conv", "Add"], ["Add"]], "b": [["Relu", "MaxPool"]] * 2}


def test_without_regions_every_marked_operator_and_every_label_is_a_kernel():
    library = Library("lib", table=(conv_bias_relu(),))
    labelled = MergeComposite(library.pattern_table())(mnist())
    assert kernels_of(PartitionGraph()(labelled)) == ()
    marked = AnnotateTarget("lib", menu(library))(labelled)
    assert len(kernels_of(PartitionGraph()(marked))) == 2
    single = AnnotateTarget("one", menu(Library("one", {"Pad", "MaxPool"})))(mnist())
    assert len(kernels_of(PartitionGraph()(single))) == 4


@pytest.mark.parametrize("step", [FuseOps, MergeCompilerRegions, PartitionGraph, MergeComposite])
def test_passes_leave_the_model_that_they_are_given(step):
    model = mnist()
    before = ir.to_proto(model)
    step()(model)
    assert ir.to_proto(model) == before
