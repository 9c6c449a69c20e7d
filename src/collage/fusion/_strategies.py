"""The strategies of the Collage RFC, each a tree of rules with a name; ``docs/fusion.md`` draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from collage.fusion._base_rules import (
    DFPatternFusionRule,
    GraphPattern,
    NodePredicate,
    OpCallByKindFusionRule,
    OpPredicateFusionRule,
)
from collage.fusion._combinators import CompositeFusionRule, ExceptFusionRule, OnlyValidFusionRule, UnionFusionRule
from collage.fusion._combine import CombineByPrimitivesFusionRule
from collage.fusion._primitives import CLASSIC_PRIMITIVES, CombinePrimitive, JoinAnythingPrimitive
from collage.fusion._regions import RegionFusionRule
from collage.fusion._rule import FusionRule
from collage.graph import SubGraphConfig

__all__ = [
    "PatternRow",
    "classic_fuse_ops",
    "combined",
    "composites",
    "consider_library",
    "library_in_native",
    "maximal_regions",
    "only_patterns",
    "operator_based",
    "pattern_based",
    "regions",
]

_MAX_CANDIDATES = 50_000


class PatternRow(Protocol):
    """A row of a pattern table: label, pattern, predicate on matches."""

    @property
    def label(self) -> str:
        """The Composite label."""
        ...

    @property
    def pattern(self) -> GraphPattern:
        """The pattern."""
        ...

    @property
    def predicate(self) -> Callable[[Any], bool] | None:
        """Refuse matches; None takes all."""
        ...


def classic_fuse_ops(
    max_depth: int = 8, predicate: NodePredicate | None = None, max_candidates: int = _MAX_CANDIDATES
) -> FusionRule:
    """All fusions by operator kind. FuseOps makes only the largest of them: ``OpCallByKind`` combined.

    Args:
        max_depth: Largest number of operators on a path, 0 for no limit.
        predicate: If given, operators must be taken by it too.
        max_candidates: Limit of the number of candidates.
    """
    return combined(
        OpCallByKindFusionRule(predicate=predicate), CLASSIC_PRIMITIVES, max_depth, max_candidates, "classic"
    )


def operator_based(predicate: NodePredicate, max_depth: int = 8, max_candidates: int = _MAX_CANDIDATES) -> FusionRule:
    """Operator-based bring-your-own-codegen: supported operators, joined at will."""
    return combined(
        OpPredicateFusionRule(predicate), (JoinAnythingPrimitive(),), max_depth, max_candidates, "operator based"
    )


def pattern_based(table: Iterable[PatternRow], max_depth: int = 8, max_candidates: int = _MAX_CANDIDATES) -> FusionRule:
    """Pattern-based bring-your-own-codegen: labelled matches of a pattern table, joined at will."""
    return combined(composites(table), (JoinAnythingPrimitive(),), max_depth, max_candidates, "pattern based")


def only_patterns(patterns: Iterable[GraphPattern]) -> FusionRule:
    """Exactly the matches of the patterns."""
    return UnionFusionRule(tuple(DFPatternFusionRule(pattern) for pattern in patterns), "only patterns")


def consider_library(
    table: Iterable[PatternRow], max_depth: int = 8, max_candidates: int = _MAX_CANDIDATES
) -> FusionRule:
    """Classic fusion in which labelled library implementations may stand for the operators they match."""
    base = UnionFusionRule((OpCallByKindFusionRule(), composites(table)), "operators and library")
    return combined(base, CLASSIC_PRIMITIVES, max_depth, max_candidates, "with library")


def library_in_native(
    table: Iterable[PatternRow],
    predicate: NodePredicate,
    max_depth: int = 8,
    max_candidates: int = _MAX_CANDIDATES,
    max_range_depth: int = 0,
) -> FusionRule:
    """Rule for native code that calls libraries: classic fusion of labelled parts and operators, and the largest ranges.

    An operator that the table labels by itself is offered with its labels only: one of them says that it is left to
    native code.

    Args:
        table: Patterns of sub-graphs that a library, or native code, can run.
        predicate: Operators must be taken by it.
        max_depth: Largest number of operators on a path, 0 for no limit.
        max_candidates: Limit of the number of candidates.
        max_range_depth: Largest number of operators on a path through one of the largest ranges; 0 for any number.
    """
    labelled = composites(table)
    operators = ExceptFusionRule(OpCallByKindFusionRule(predicate=predicate), labelled)
    singles = ExceptFusionRule(OpPredicateFusionRule(predicate), labelled)
    base = UnionFusionRule((labelled, operators), "operators and library")
    fused = combined(base, CLASSIC_PRIMITIVES, max_depth, max_candidates, "with library")
    return UnionFusionRule(
        (fused, singles, maximal_regions(predicate, max_range_depth, max_candidates)), "library in native"
    )


def regions(predicate: NodePredicate, max_cuts: int = 256) -> FusionRule:
    """Rule for toolchains that optimise whole graphs: single operators, and regions of them."""
    return UnionFusionRule((OpPredicateFusionRule(predicate), RegionFusionRule(predicate, max_cuts)), "regions")


def maximal_regions(predicate: NodePredicate, max_depth: int = 0, max_candidates: int = _MAX_CANDIDATES) -> FusionRule:
    """The largest ranges of supported operators."""
    return RegionFusionRule(
        predicate, max_cuts=0, max_candidates=max_candidates, name="maximal region", max_depth=max_depth
    )


def composites(table: Iterable[PatternRow]) -> FusionRule:
    """The matches of a pattern table, each wrapped with its label."""
    rows = (CompositeFusionRule(row.label, DFPatternFusionRule(row.pattern, row.predicate)) for row in table)
    return UnionFusionRule(tuple(rows), "patterns")


def combined(
    base: FusionRule, primitives: tuple[CombinePrimitive, ...], max_depth: int, max_candidates: int, name: str
) -> FusionRule:
    """Return the sub-graphs of a rule, and those that primitives make of them, with one exit and no taps."""
    config = SubGraphConfig(max_exits=1, allow_taps=False, max_depth=max_depth)
    combine = CombineByPrimitivesFusionRule(base, primitives, config, max_candidates, f"{name} combination")
    # What the rule itself found may have several exits: the results of a pattern in a toolchain's table.
    return OnlyValidFusionRule(combine, SubGraphConfig(max_depth=max_depth), name)
