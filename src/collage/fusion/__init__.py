"""Fusion: which sub-graphs are candidate kernels, for which targets.

A :class:`FusionRule` finds sub-graphs in a dataflow graph. Rules compose: ``_strategies`` has the trees of rules that the
Collage RFC draws (``SOURCES.md``). A :class:`FusionSpec` pairs a rule with targets. :func:`gather_fusion_specs` makes
specs of a menu (phase 1), :func:`collect_candidates` evaluates them (phase 2).
"""

from collage.fusion._anchors import HorizontalPrimitive, VerticalPrimitive, anchors_of
from collage.fusion._base_rules import (
    DFPatternFusionRule,
    GivenFusionRule,
    GraphPattern,
    HostFusionRule,
    NodePredicate,
    OpCallByKindFusionRule,
    OpPredicateFusionRule,
    PatternMatch,
)
from collage.fusion._borders import moved_borders
from collage.fusion._candidate import CandidateKernel, CandidateKernelIndex, FusionSpec, collect_candidates
from collage.fusion._coalesce import MaxCoalesceFusionRule, greedy_cover, max_coalesce
from collage.fusion._combinators import CompositeFusionRule, OnlyValidFusionRule, UnionFusionRule
from collage.fusion._combine import CombineByPrimitivesFusionRule
from collage.fusion._gather import FusionOptions, FusionStyle, gather_fusion_specs
from collage.fusion._pool import Pool
from collage.fusion._primitives import (
    CLASSIC_PRIMITIVES,
    ByKindPrimitive,
    CombinePrimitive,
    ConstantArgPrimitive,
    JoinAnythingPrimitive,
    TupleArgPrimitive,
)
from collage.fusion._regions import RegionFusionRule
from collage.fusion._rule import Found, FusionReport, FusionRule
from collage.fusion._strategies import (
    PatternRow,
    classic_fuse_ops,
    composites,
    consider_library,
    maximal_regions,
    only_patterns,
    operator_based,
    pattern_based,
    regions,
)

__all__ = [
    "CLASSIC_PRIMITIVES",
    "ByKindPrimitive",
    "CandidateKernel",
    "CandidateKernelIndex",
    "CombineByPrimitivesFusionRule",
    "CombinePrimitive",
    "CompositeFusionRule",
    "ConstantArgPrimitive",
    "DFPatternFusionRule",
    "Found",
    "FusionOptions",
    "FusionReport",
    "FusionRule",
    "FusionSpec",
    "FusionStyle",
    "GivenFusionRule",
    "GraphPattern",
    "HorizontalPrimitive",
    "HostFusionRule",
    "JoinAnythingPrimitive",
    "MaxCoalesceFusionRule",
    "NodePredicate",
    "OnlyValidFusionRule",
    "OpCallByKindFusionRule",
    "OpPredicateFusionRule",
    "PatternMatch",
    "PatternRow",
    "Pool",
    "RegionFusionRule",
    "TupleArgPrimitive",
    "UnionFusionRule",
    "VerticalPrimitive",
    "anchors_of",
    "classic_fuse_ops",
    "collect_candidates",
    "composites",
    "consider_library",
    "gather_fusion_specs",
    "greedy_cover",
    "max_coalesce",
    "maximal_regions",
    "moved_borders",
    "only_patterns",
    "operator_based",
    "pattern_based",
    "regions",
]
