"""The classic passes, on the rules that Collage searches with: fusion by rule instead of by measurement.

``FuseOps`` makes the largest kernels that operator kinds allow. Bringing one's own code generator takes four steps::

    MergeComposite         labels what matches the toolchain's patterns        Composite = label
    AnnotateTarget         marks what the toolchain takes                      target = llvm -compiler=...
    MergeCompilerRegions   numbers marked neighbours that may be one kernel    compiler_region = number
    PartitionGraph         makes functions of them

and ``partition_for`` runs them in turn. Between the steps, decisions are metadata of the nodes, so that the model stays
valid and any runtime can run it. Only the main graph is worked on; what is left behind runs on the host.
``docs/fusion.md`` shows how they are called.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import onnx_ir as ir

from collage.fusion import (
    CandidateKernel,
    Found,
    FusionReport,
    FusionRule,
    FusionSpec,
    OpPredicateFusionRule,
    PatternRow,
    UnionFusionRule,
    classic_fuse_ops,
    collect_candidates,
    composites,
    greedy_cover,
    max_coalesce,
)
from collage.graph import (
    COMPOSITE,
    DataflowGraph,
    KernelSpec,
    NameSupply,
    NestedSubGraph,
    SubGraph,
    iterate_bits,
    partition,
)
from collage.measure.kernel_factory import kernel_attributes, kernel_name
from collage.target import Target, TargetLike
from collage.toolchains import Registry, Support, registry, support_for
from collage.transform import ModulePass, PassContext, PassInfo, Sequential

__all__ = [
    "AnnotateTarget",
    "FuseOps",
    "MergeCompilerRegions",
    "MergeComposite",
    "PartitionGraph",
    "fused_kernels",
    "greedy_kernels",
    "greedy_rest",
    "partition_for",
]

TARGET = "target"
REGION = "compiler_region"
_NO_LIMIT = 0
_BY_TYPES = ("InferType",)
"""Patterns and toolchains decide by types, and few files state all of them."""

Takes = Callable[[ir.Node], Support]
"""Returns if, and why not, a target takes an operator."""


def _takes_all(_: ir.Node) -> Support:
    return Support(True)


def partition_for(model: ir.Model, target: TargetLike, toolchains: Registry | None = None) -> ir.Model:
    """The model with all that one target takes in kernels for it, as large as they get; the rest stays as it is.

    Args:
        model: The model; it is not changed.
        target: A target or the name of a toolchain.
        toolchains: The registry of toolchains; the installed ones by default.
    """
    toolchains = toolchains or registry()
    target = toolchains.parse_target(target)
    return Sequential([*_marking(target, toolchains), PartitionGraph()], name=f"partition_for {target.toolchain}")(
        model
    )


def greedy_kernels(
    model: ir.Model, graph: DataflowGraph, target: Target, toolchains: Registry, takes: Takes | None = None
) -> list[SubGraph]:
    """Return the sub-graphs that ``partition_for`` turns into kernels, on the model's dataflow graph.

    Args:
        model: The model; it is not changed.
        graph: Its dataflow graph.
        target: The target.
        toolchains: The registry of toolchains.
        takes: See `AnnotateTarget`.
    """
    marked = Sequential(_marking(target, toolchains, takes), name=f"greedy {target.toolchain}")(model)
    kernels = (kernel.sub_graph for kernel in _marked_kernels(DataflowGraph(marked)))
    return [SubGraph(graph, kernel.inside, kernel.nested) for kernel in kernels]


def greedy_rest(
    model: ir.Model, graph: DataflowGraph, taken: Iterable[SubGraph], takes: Takes, max_candidates: int
) -> list[SubGraph]:
    """Return the sub-graphs that `FuseOps` makes of the operators that kernels leave, on the model's dataflow graph.

    Args:
        model: The model, whose nodes have unique names; it is not changed.
        graph: Its dataflow graph.
        taken: The kernels.
        takes: Returns True if the native target takes an operator.
        max_candidates: Limit of the number of fusions that are looked at.
    """
    target = Target("llvm")
    spec = FusionSpec("greedy", UnionFusionRule(()), (target,))
    partitioned = _partitioned(model, [CandidateKernel(each, target, spec, ()) for each in taken])
    index = {str(node.name): i for i, node in enumerate(graph.nodes)}
    cover = fused_kernels(DataflowGraph(partitioned), target, takes, max_candidates=max_candidates)
    return [SubGraph(graph, (index[str(node.name)] for node in kernel.sub_graph.nodes)) for kernel in cover]


def fused_kernels(
    graph: DataflowGraph,
    target: Target,
    takes: Takes = _takes_all,
    *,
    max_depth: int = _NO_LIMIT,
    max_candidates: int = 50_000,
) -> tuple[CandidateKernel, ...]:
    """Return the kernels that `FuseOps` makes of all operators that a target takes and that may be kernels.

    Args:
        graph: The dataflow graph.
        target: The target of the kernels.
        takes: Returns True if it takes an operator.
        max_depth: Largest number of operators on a path, 0 for no limit.
        max_candidates: Limit of the number of fusions that are looked at.
    """
    rule = UnionFusionRule((classic_fuse_ops(max_depth, takes, max_candidates), OpPredicateFusionRule(takes)))
    return greedy_cover(collect_candidates(graph, [FusionSpec("FuseOps", rule, (target,))]))


def _marking(target: Target, toolchains: Registry, takes: Takes | None = None) -> list[ModulePass]:
    table = toolchains.for_target(target).pattern_table()
    return [MergeComposite(table), AnnotateTarget(target, toolchains, takes), MergeCompilerRegions()]


class FuseOps(ModulePass):
    """Makes every operator part of a kernel of the native target, kernels as large as operator kinds allow.

    Args:
        max_depth: Largest number of operators on a path, 0 for no limit.
        target: The target that the kernels are compiled for.
    """

    def __init__(self, max_depth: int = _NO_LIMIT, target: Target | None = None) -> None:
        super().__init__(PassInfo("FuseOps", opt_level=0))
        self._target = target or Target("llvm")
        self._max_depth = max_depth

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Partitions the model; kernels made earlier stay."""
        return _partitioned(model, fused_kernels(DataflowGraph(model), self._target, max_depth=self._max_depth))


class MergeComposite(ModulePass):
    """Labels the operators that match patterns; of matches that overlap, those of the earlier row win, then larger ones.

    Args:
        table: Rows of label, pattern and predicate, in order of preference.
    """

    def __init__(self, table: Iterable[PatternRow] = ()) -> None:
        self._rows = tuple(composites([row]) for row in table)
        super().__init__(PassInfo("MergeComposite", opt_level=0, required=_BY_TYPES if self._rows else ()))

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Set the metadata property ``Composite`` of nodes to ``label#number``."""
        graph = DataflowGraph(model)
        for number, found in enumerate(_disjoint(graph, self._rows)):
            (part,) = found.sub_graph.nested
            _mark(found.sub_graph, COMPOSITE, f"{part.label}#{number}")
        return model


class AnnotateTarget(ModulePass):
    """Marks the operators that a target takes: labelled ones if its toolchain has patterns, else those it supports.

    Operators that are marked already keep their mark, so that several targets may be annotated in order of preference.

    Args:
        target: The target.
        toolchains: The registry of toolchains; the installed ones by default.
        takes: Returns True if the target takes an operator; None asks its toolchain.
    """

    def __init__(
        self, target: TargetLike = "llvm", toolchains: Registry | None = None, takes: Takes | None = None
    ) -> None:
        super().__init__(PassInfo("AnnotateTarget", opt_level=0, required=() if takes else _BY_TYPES))
        toolchains = toolchains or registry()
        self._target = toolchains.parse_target(target)
        self._toolchain = toolchains.for_target(self._target)
        self._supports = takes or (lambda node: support_for(self._toolchain, node, self._target))
        self._labels = {row.label for row in self._toolchain.pattern_table()}

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Set the metadata property ``target`` of nodes."""
        rule = OpPredicateFusionRule(self._takes)
        for found in rule.find(DataflowGraph(model), FusionReport()):
            _mark(found.sub_graph, TARGET, str(self._target))
        return model

    def _takes(self, node: ir.Node) -> Support:
        if TARGET in node.metadata_props:
            return Support(False, "it was given to another target")
        label, _, _ = node.metadata_props.get(COMPOSITE, "").rpartition("#")
        return Support(label in self._labels) if self._labels else self._supports(node)


class MergeCompilerRegions(ModulePass):
    """Numbers marked operators so that neighbours of one target share a number wherever they may share a kernel."""

    def __init__(self) -> None:
        super().__init__(PassInfo("MergeCompilerRegions", opt_level=0))

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Set the metadata property ``compiler_region`` of nodes."""
        graph = DataflowGraph(model)
        for number, kernel in enumerate(max_coalesce(graph, _marked_kernels(graph))):
            _mark(kernel.sub_graph, REGION, str(number))
        return model


class PartitionGraph(ModulePass):
    """Makes a kernel of every region; of every label and every marked operator where there are no regions."""

    def __init__(self) -> None:
        super().__init__(PassInfo("PartitionGraph", opt_level=0))

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Partitions the model, and takes the marks off."""
        graph = DataflowGraph(model)
        kernels = _marked_kernels(graph)
        for node in graph.nodes:
            for mark in (TARGET, REGION, COMPOSITE):
                node.metadata_props.pop(mark, None)
        return _partitioned(model, kernels)


def _disjoint(graph: DataflowGraph, rules: Iterable[FusionRule]) -> Iterable[Found]:
    """Return the sub-graphs of the rules that may be kernels, without overlaps: earlier rules first, then larger ones."""
    taken = 0
    for rule in rules:
        for found in sorted(rule.find(graph, FusionReport()), key=lambda f: -len(f.sub_graph)):
            sub_graph = found.sub_graph
            if not sub_graph.inside.bits & taken and sub_graph.is_admissible and sub_graph.is_valid():
                taken |= sub_graph.inside.bits
                yield found


def _mark(sub_graph: SubGraph, key: str, value: str) -> None:
    for node in sub_graph.nodes:
        node.metadata_props[key] = value


def _marked_kernels(graph: DataflowGraph) -> list[CandidateKernel]:
    """Marked operators as kernels: one kernel per region, else one per label, else one per operator."""
    groups: dict[tuple[str, ...], int] = {}
    for i, node in enumerate(graph.nodes):
        marks = node.metadata_props
        if TARGET in marks:
            place = marks.get(REGION) or marks.get(COMPOSITE) or f"node {i}"
            groups[marks[TARGET], place] = groups.get((marks[TARGET], place), 0) | 1 << i
    kernels = []
    for (target, _), bits in groups.items():
        parsed = Target.parse(target)
        spec = FusionSpec("marked", UnionFusionRule(()), (parsed,))
        sub_graph = SubGraph(graph, iterate_bits(bits), _labelled_parts(graph, bits))
        if sub_graph.is_valid():
            kernels.append(CandidateKernel(sub_graph, parsed, spec, ("marked",)))
    return kernels


def _labelled_parts(graph: DataflowGraph, bits: int) -> list[NestedSubGraph]:
    """The labels among some nodes as labelled parts of their sub-graph."""

    def mark(i: int) -> str:
        return graph.node(i).metadata_props.get(COMPOSITE, "")

    labelled = sorted((i for i in iterate_bits(bits) if mark(i)), key=lambda i: (mark(i), i))
    groups = itertools.groupby(labelled, key=mark)
    return [NestedSubGraph(SubGraph(graph, members).inside, name.rpartition("#")[0]) for name, members in groups]


def _partitioned(model: ir.Model, kernels: Iterable[CandidateKernel]) -> ir.Model:
    """The model with kernels as functions, each with the attributes of its target."""
    names = NameSupply("collage")
    specs = []
    for kernel in kernels:
        name = names.fresh(kernel_name(kernel.sub_graph, kernel.target))
        specs.append(KernelSpec(kernel.sub_graph, name, kernel_attributes(kernel.target, name)))
    return partition(model, specs)
