"""PartitionBySEScope, and the annotations that express the flow of composites and toolchains with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.device.simulation import nodes_of, parse, random_inputs, random_model, run

from collage._errors import ConfigError, PassError
from collage.device import (
    AnnotateSEScopes,
    MergeAndAnnotate,
    PartitionBySEScope,
    PlanDevices,
    SEScope,
    asked_scope,
    candidates_of,
    on_device,
    planned_scope,
)
from collage.device._regions import convex_regions
from collage.graph import DataflowGraph, IndexSet, kernels_of
from collage.pattern import is_op, wildcard
from collage.transform import InferType, Sequential

DIAMOND = """g (float[2,3] x) => (float[2,3] y) {
    a = Neg(x)
    b = Exp(a)
    c = Abs(a)
    d = Add(b, c)
    y = Sigmoid(d)
}"""


def regions(model: ir.Model) -> dict[str, list[str]]:
    """The operators of every region, by the scope of its result."""
    found: dict[str, list[str]] = {}
    for function in model.functions.values():
        if "result_se_scope" in function.metadata_props:
            operators = "+".join(node.op_type for node in function)
            found.setdefault(function.metadata_props["result_se_scope"], []).append(operators)
    return found


def planned(text: str, *devices: str, **annotations: str) -> ir.Model:
    model = InferType()(parse(text))
    for name, scope in annotations.items():
        on_device(name, scope, model=model)
    return PlanDevices(devices or ("cpu:0", "cpu:1"))(model)


def test_a_model_of_one_scope_is_one_region() -> None:
    model = PartitionBySEScope()(planned(DIAMOND))
    assert regions(model) == {"cpu:0[llvm]": ["Neg+Exp+Abs+Add+Sigmoid"]}


def test_regions_end_where_scopes_change() -> None:
    model = PartitionBySEScope()(planned(DIAMOND, a="cpu:0", d="cpu:1", y="cpu:0"))
    assert regions(model) == {"cpu:0[llvm]": ["Neg", "Sigmoid"], "cpu:1[llvm]": ["Exp+Abs+Add"]}
    assert [node.op_type for node in model.graph if node.op_type == "device_copy"] == ["device_copy"] * 2


def test_regions_that_would_wait_for_each_other_are_cut() -> None:
    model = PartitionBySEScope()(planned(DIAMOND, a="cpu:0", b="cpu:1", c="cpu:0", d="cpu:0", y="cpu:0"))
    assert sorted(regions(model)["cpu:0[llvm]"]) == ["Add+Sigmoid", "Neg+Abs"] or sorted(
        regions(model)["cpu:0[llvm]"]
    ) == ["Abs+Add+Sigmoid", "Neg"]
    run(model, {"x": np.ones((2, 3), np.float32)})


def test_a_region_says_what_it_is_compiled_for() -> None:
    model = PartitionBySEScope()(planned(DIAMOND, d="llvm -compiler=some", y="llvm -compiler=some"))
    function = next(f for f in model.functions.values() if "some" in f.metadata_props.get("result_se_scope", ""))
    assert function.metadata_props["target"] == "llvm -compiler=some"
    assert function.metadata_props["Compiler"] == "some" and function.metadata_props["Primitive"] == "1"
    plain = next(f for f in model.functions.values() if f.metadata_props["result_se_scope"] == "cpu:0[llvm]")
    assert "Compiler" not in plain.metadata_props and "Primitive" not in plain.metadata_props


def test_a_projection_merges_what_differs_otherwise() -> None:
    model = planned(DIAMOND, d="llvm -compiler=some")
    assert len(regions(PartitionBySEScope()(model))) == 2
    assert regions(PartitionBySEScope(by=["device"])(model)) == {"cpu:0": ["Neg+Exp+Abs+Add+Sigmoid"]}
    with pytest.raises(ConfigError, match="colour"):
        PartitionBySEScope(by=["colour"])


def test_memories_separate_regions_unless_projected_away() -> None:
    model = planned(DIAMOND, d="cpu:0/fast", y="cpu:0/slow")
    assert set(regions(PartitionBySEScope()(model))) == {"cpu:0[llvm]/fast", "cpu:0[llvm]/slow"}


def test_only_the_scopes_that_are_wanted_become_functions() -> None:
    model = planned(DIAMOND, a="cpu:1", d="cpu:0", y="cpu:0")
    partitioned = PartitionBySEScope(where=lambda scope: scope.virtual_device_id == 1)(model)
    assert regions(partitioned) == {"cpu:1[llvm]": ["Neg"]}


def test_an_unplanned_model_is_refused() -> None:
    with pytest.raises(PassError, match="run PlanDevices first"):
        PartitionBySEScope()(parse(DIAMOND))


def test_control_flow_of_one_scope_is_taken_whole_and_other_bodies_are_partitioned() -> None:
    text = """g (bool c, float[2,3] x) => (float[2,3] y) {
        y = If (c) <
            then_branch = t () => (float[2,3] p) { p = Neg(x) },
            else_branch = e () => (float[2,3] q) { o = Abs(x) q = Exp(o) }
        >
    }"""
    assert regions(PartitionBySEScope()(planned(text))) == {"cpu:0[llvm]": ["If"]}
    mixed = PartitionBySEScope()(planned(text, o="cpu:1"))
    assert regions(mixed) == {"cpu:0[llvm]": ["Neg", "Exp"], "cpu:1[llvm]": ["Abs"]}


def test_planning_again_keeps_regions_where_they_are() -> None:
    model = PartitionBySEScope()(planned(DIAMOND, a="cpu:0", d="cpu:1", y="cpu:0"))
    again = PlanDevices(["cpu:0", "cpu:1"])(model)
    scopes = {node.name: str(planned_scope(node)) for node in model.graph}
    assert {node.name: str(planned_scope(node)) for node in again.graph} == scopes


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_regions_are_convex_acyclic_and_maximal(data: st.DataObject) -> None:
    graph = DataflowGraph(_random_dag(data))
    keys = [data.draw(st.sampled_from(["a", "b", None])) for _ in range(len(graph))]
    found = convex_regions(graph, keys)
    assert sorted(i for region in found for i in region) == [i for i, key in enumerate(keys) if key is not None]
    groups = [set(region) for region in found] + [{i} for i, key in enumerate(keys) if key is None]
    assert _is_acyclic(graph, groups)
    for one in found:
        assert len({keys[i] for i in one}) == 1
        for other in found:
            touching = any(j in graph.consumers(i) for i in one for j in other)
            if one != other and keys[one.first] == keys[other.first] and touching:
                merged = [g for g in groups if g not in (set(one), set(other))] + [set(one) | set(other)]
                assert not _is_acyclic(graph, merged), "two regions could have been one"


def _random_dag(data: st.DataObject) -> ir.Graph:
    x = ir.Value(name="x")
    values, nodes = [x], []
    for i in range(data.draw(st.integers(1, 9))):
        operands = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        nodes.append(ir.Node("", "Sum", operands, name=f"n{i}"))
        nodes[-1].outputs[0].name = f"v{i}"
        values.append(nodes[-1].outputs[0])
    sinks = [value for value in values[1:] if not value.uses()]
    return ir.Graph([x], sinks, nodes=nodes, opset_imports={"": 20}, name="dag")


def _is_acyclic(graph: DataflowGraph, groups: list[set[int]]) -> bool:
    of = {i: number for number, group in enumerate(groups) for i in group}
    needs = {n: {of[p] for i in g for p in graph.producers(i)} - {n} for n, g in enumerate(groups)}
    while needs:
        ready = [n for n, waits in needs.items() if not waits]
        if not ready:
            return False
        needs = {n: waits - set(ready) for n, waits in needs.items() if n not in ready}
    return True


def test_a_dag_whose_greedy_merge_would_be_cyclic() -> None:
    """x1 z b1 x2 b2: both pairs are convex, and together they would wait for each other."""
    text = """g (float[2] x) => (float[2] p, float[2] q) {
        x1 = Neg(x)
        z = Abs(x)
        b1 = Exp(x)
        x2 = Sum(x1, z, b1)
        b2 = Sum(b1, x1)
        p = Relu(x2)
        q = Relu(b2)
    }"""
    graph = DataflowGraph(parse(text))
    keys = [{"Neg": "a", "Exp": "b"}.get(node.op_type) for node in graph.nodes]
    by_output = {node.outputs[0].name: i for i, node in enumerate(graph.nodes)}
    keys[by_output["x2"]], keys[by_output["b2"]] = "a", "b"
    found = convex_regions(graph, keys)
    assert [len(region) for region in found].count(2) == 1


# MergeAndAnnotate and AnnotateSEScopes


@dataclass
class Entry:
    label: str
    pattern: Any
    predicate: Any = None


TABLE = [
    Entry("some.exp_neg", is_op("Neg")(is_op("Exp")(wildcard()))),
    Entry("some.add", is_op("Add")(wildcard(), wildcard()), lambda match: match.root.name != "no"),
]
SOME = "llvm -compiler=some"

CHAIN = """g (float[2,3] x, float[2,3] w) => (float[2,3] y) {
    a = Exp(x)
    b = Neg(a)
    no = Add(b, w)
    c = Exp(no)
    d = Neg(c)
    e = Sigmoid(d)
    y = Add(e, w)
}"""


def test_merge_and_annotate_annotates_what_patterns_match() -> None:
    model = MergeAndAnnotate(TABLE, SOME)(parse(CHAIN))
    annotated = {
        node.outputs[0].name: node.metadata_props.get("Composite") for node in model.graph if asked_scope(node)
    }
    assert set(annotated) == {"a", "b", "c", "d", "y"}
    assert annotated["a"] == annotated["b"] != annotated["c"] == annotated["d"]


def test_annotations_of_people_win_over_patterns() -> None:
    model = parse(CHAIN)
    on_device("a", "cuda", model=model)
    on_device("y", "cpu:1", model=model)
    model = MergeAndAnnotate(TABLE, SOME)(model)
    nodes = {node.outputs[0].name: node for node in model.graph}
    assert str(asked_scope(nodes["a"])) == "cuda" and asked_scope(nodes["b"]) is None
    assert str(asked_scope(nodes["y"])) == "cpu:1[llvm -compiler=some]"


def test_a_match_that_is_refused_does_not_hide_those_that_overlap_with_it() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { a = Relu(x) b = Relu(a) y = Relu(b) }")
    pair = is_op("Relu")(is_op("Relu"))
    by_predicate = MergeAndAnnotate([Entry("pair", pair, lambda match: match.root.name == "y")], SOME)(model)
    on_device("a", "cuda", model=model)
    by_annotation = MergeAndAnnotate([Entry("pair", pair)], SOME)(model)
    for merged in (by_predicate, by_annotation):
        assert [node.metadata_props.get("Composite") for node in merged.graph] == [None, "pair#0", "pair#0"]


def test_a_match_around_another_operator_is_not_merged() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { a = Relu(x) n = Neg(a) y = Add(a, n) }")
    table = [Entry("around", is_op("Add")(is_op("Relu"), wildcard()))]
    merged = MergeAndAnnotate(table, SOME)(model)
    assert not any("Composite" in node.metadata_props for node in merged.graph)


def test_the_first_scope_that_takes_an_operator_gets_it_and_all_are_candidates() -> None:
    takes = {"one": {"Exp", "Neg"}, "two": {"Neg", "Add"}}
    scopes = [(f"llvm -compiler={name}", lambda node, ops=ops: node.op_type in ops) for name, ops in takes.items()]
    model = AnnotateSEScopes(scopes)(parse(CHAIN))
    nodes = {node.outputs[0].name: node for node in model.graph}
    assert str(asked_scope(nodes["b"])) == "cpu[llvm -compiler=one]"
    assert [str(scope.target) for scope in candidates_of(nodes["b"])] == ["llvm -compiler=one", "llvm -compiler=two"]
    assert str(asked_scope(nodes["no"])) == "cpu[llvm -compiler=two]"
    assert asked_scope(nodes["e"]) is None and candidates_of(nodes["e"]) == ()


def test_the_old_flow_is_these_four_passes() -> None:
    """Merge composites, annotate targets, plan, partition: kernels with Compiler and Composite, and the rest left."""
    flow = Sequential(
        [
            MergeAndAnnotate(TABLE, SOME),
            AnnotateSEScopes([(SOME, lambda node: node.op_type == "Exp")]),
            PlanDevices(),
            PartitionBySEScope(where=lambda scope: scope.target is not None and not scope.target.is_native),
        ]
    )
    model = parse(CHAIN)
    inputs = {name: np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32) for name in ("x", "w")}
    partitioned = flow(model)
    kernels = kernels_of(partitioned)
    assert [kernel.metadata["Compiler"] for kernel in kernels] == ["some"] * 3
    outside = [node.op_type for node in partitioned.graph if node.domain == ""]
    assert outside == ["Add", "Sigmoid"], "what no toolchain took stays, and nothing is copied on one device"
    composites = [
        f.metadata_props["Composite"] for f in partitioned.functions.values() if "Composite" in f.metadata_props
    ]
    assert sorted(set(composites)) == ["some.add", "some.exp_neg"]
    for one, other in zip(run(partitioned, inputs), run(model, inputs), strict=True):
        np.testing.assert_array_equal(one, other)


SPANNING = """g (float[2,3] x) => (float[2,3] y, float[2,3] z) {
    s = Neg(x)
    y = f.both <slope = 0.5> (s)
    z = f.both <slope = 0.5> (y)
}
<domain: "f", opset_import: ["" : 20]>
both <slope> (p) => (r) { m = Exp(p) n = Abs(m) o = LeakyRelu <alpha : float = @slope> (n) q = Sin(o) r = Cos(q) }"""


def test_plain_functions_that_span_scopes_are_partitioned_inside() -> None:
    before = planned(SPANNING, n="cpu:1", o="cpu:0", r="cpu:0")
    model = PartitionBySEScope()(before)
    assert sorted(regions(model)["cpu:1[llvm]"]) == ["Exp+Abs", "Neg"]
    assert sorted(regions(model)["cpu:0[llvm]"]) == ["Sin+Cos"], "what takes an attribute of the function stays in it"
    (function,) = (f for f in model.functions.values() if f.name == "both")
    assert [node.op_type for node in function if node.domain == ""] == ["LeakyRelu"]
    assert list(function.attributes) == ["slope"]
    assert all(planned_scope(node) is not None for node in function)
    inputs = {"x": np.ones((2, 3), np.float32)}
    for one, other in zip(run(model, inputs), run(before, inputs), strict=True):
        np.testing.assert_array_equal(one, other)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert ir.to_proto(PartitionBySEScope()(model)) == ir.to_proto(model)


def test_bodies_and_functions_are_annotated_too() -> None:
    model = random_model(3)
    scope = SEScope.parse("cpu:1")
    annotated = AnnotateSEScopes([(scope, lambda node: node.op_type == "Relu")])(model)
    relus = [node for node in nodes_of(annotated) if node.op_type == "Relu"]
    assert relus and all(asked_scope(node) == scope for node in relus)
    run(annotated, random_inputs())


def test_index_sets_are_ordered_by_first_node() -> None:
    graph = DataflowGraph(parse(DIAMOND))
    found = convex_regions(graph, ["a", "b", "b", "a", "a"])
    assert [region.first for region in found] == sorted(region.first for region in found)
    assert all(isinstance(region, IndexSet) for region in found)
