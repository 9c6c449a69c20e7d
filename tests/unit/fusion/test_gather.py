from __future__ import annotations

import dataclasses

import pytest

from collage.fusion import FusionOptions, FusionReport, FusionStyle, collect_candidates, gather_fusion_specs
from collage.graph import DataflowGraph
from collage.pattern import is_const, is_op, wildcard
from collage.target import Target
from collage.toolchains import PatternEntry, Support, ToolchainBase

from .oracles import Given, mnist

DENSE = is_op("Add")(is_op("MatMul")(wildcard(), is_const()), is_const())


class Kind(ToolchainBase):
    def __init__(self, name, whole=False, table=()):
        self.name, self.optimises_whole_graphs, self._table = name, whole, table

    def pattern_table(self):
        return self._table


TOOLCHAINS = {
    t.name: t
    for t in (
        Kind("tvm"),
        Kind("whole", whole=True),
        Kind("byoc"),
        Kind("patterns", table=(PatternEntry("patterns.dense", DENSE),)),
        Kind("library", table=(PatternEntry("library.dense", DENSE),)),
    )
}


def takes_all_but_pads(node):
    return Support(node.op_type != "Pad", "no pads")


def gather(*targets, options=None, coverage_of=lambda target: takes_all_but_pads, host=None):
    return gather_fusion_specs(targets, lambda t: TOOLCHAINS[t.toolchain], coverage_of, options, host)


def sizes(specs):
    index = collect_candidates(DataflowGraph(mnist()), specs)
    counts: dict[int, int] = {}
    for candidate in index:
        counts[len(candidate.sub_graph)] = counts.get(len(candidate.sub_graph), 0) + 1
    return counts


def test_a_fusion_spec_on_the_target_is_used_directly():
    rule = Given([])
    target = dataclasses.replace(Target("llvm", compiler="nobody"), fusion_spec=rule)
    other = dataclasses.replace(Target("cuda", compiler="nobody"), fusion_spec=rule)
    specs = gather_fusion_specs([target, other], lambda t: pytest.fail("asked"), lambda t: pytest.fail("asked"))
    assert [(s.rule, s.targets) for s in specs] == [(rule, (target, other))]


def test_a_pattern_table_is_used_if_there_is_one():
    specs = gather(Target("llvm", compiler="patterns"))
    assert sizes(specs) == {2: 1}
    candidate = next(iter(collect_candidates(DataflowGraph(mnist()), specs)))
    assert candidate.sub_graph.label == "patterns.dense"


def test_otherwise_the_operators_that_the_toolchain_takes_joined_at_will():
    assert sizes(gather(Target("llvm", compiler="byoc"))) == {1: 11, 2: 9, 3: 7, 4: 5, 5: 3, 6: 2, 7: 1}


def test_a_native_target_fuses_by_kind_and_has_single_operators_and_regions():
    assert sizes(gather(Target("llvm"))) == {1: 11, 2: 9, 3: 7, 4: 5, 5: 3, 6: 2, 7: 1}


def test_whole_graph_optimisers_get_single_operators_and_regions():
    assert sizes(gather(Target("llvm", compiler="whole"))) == {1: 11, 2: 9, 3: 7, 4: 5, 5: 3, 6: 2, 7: 1}
    everything = gather(Target("llvm", compiler="whole"), coverage_of=lambda t: lambda node: Support(True))
    assert sizes(everything)[13] == 1


def test_libraries_are_not_fused_unless_told():
    table = gather(Target("cuda", libs="library"))
    assert sizes(table) == {2: 1}
    options = FusionOptions(styles={"whole": FusionStyle.NONE, "byoc": FusionStyle.CLASSIC})
    assert sizes(gather(Target("llvm", compiler="whole"), options=options)) == {1: 11}
    assert sizes(gather(Target("llvm", compiler="byoc"), options=options)) == sizes(gather(Target("llvm")))


def test_depth_is_an_option_by_kind_of_target():
    options = FusionOptions(native_max_depth=2, max_depth=3)
    assert max(sizes(gather(Target("llvm"), options=options))) == 2
    assert max(sizes(gather(Target("llvm", compiler="byoc"), options=options))) == 3


def test_targets_that_fuse_alike_share_a_spec_and_candidates_are_found_once():
    asked = []

    def coverage(node):
        asked.append(node)
        return Support(True)

    one, two = Target("llvm", compiler="whole"), Target("llvm", compiler="whole").with_options(threads="1")
    specs = gather(one, two, Target("llvm"), coverage_of=lambda target: coverage)
    assert [s.targets for s in specs] == [(one, two), (Target("llvm"),)]
    graph = DataflowGraph(mnist())
    index = collect_candidates(graph, specs, FusionReport())
    assert len(asked) == 2 * len(graph)
    found = {t: {c.sub_graph for c in index if c.target == t} for t in (one, two)}
    assert found[one] == found[two] and found[one]


def test_different_coverage_means_different_specs():
    one, two = Target("llvm", compiler="whole"), Target("llvm", compiler="whole").with_options(precision="bf16")
    specs = gather(one, two, coverage_of=lambda target: lambda node: Support(target is one))
    assert [len(s.targets) for s in specs] == [1, 1]


def test_the_host_is_offered_every_operator():
    host = Target("llvm", compiler="host")
    specs = gather(Target("llvm", compiler="patterns"), host=host)
    assert [s.name for s in specs][-1] == "host" and specs[-1].targets == (host,)
    assert sizes(specs) == {1: 13, 2: 1}
