"""Phase 1: from targets to fusion specs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import cast

import onnx_ir as ir

from collage._errors import UsageError
from collage.fusion._base_rules import HostFusionRule, NodePredicate, OpPredicateFusionRule
from collage.fusion._candidate import FusionSpec
from collage.fusion._combinators import OnlyValidFusionRule, UnionFusionRule
from collage.fusion._primitives import CLASSIC_PRIMITIVES, JoinAnythingPrimitive
from collage.fusion._regions import RegionFusionRule
from collage.fusion._rule import FusionRule
from collage.fusion._strategies import classic_fuse_ops, combined, composites, library_in_native
from collage.target import Target
from collage.toolchains import Support, Toolchain

__all__ = ["FusionOptions", "FusionStyle", "gather_fusion_specs"]

_DEPTH = 8
"""Depth up to which combinations are enumerated, unless the user says it."""


class FusionStyle(Enum):
    """The way in which a toolchain's single candidates are joined into larger ones."""

    NONE = "none"
    """No fusion: operators or patterns are whole kernels."""
    CLASSIC = "classic"
    """By operator kind, as FuseOps does, and the largest ranges too."""
    ARBITRARY = "arbitrary"
    """Whatever touches, up to a depth."""
    REGIONS = "regions"
    """Contiguous ranges of operators between narrow cuts."""


@dataclass(frozen=True, slots=True)
class FusionOptions:
    """Options of phase 1.

    Attributes:
        native_max_depth: Most operators on a path through a kernel of native code; 0 sets none. With None combinations are
            enumerated up to a depth of 8, and the largest ranges are candidates besides.
        max_depth: The same for all other targets.
        styles: Fusion style by name of toolchain, instead of the one derived from it: a `FusionStyle`, or its value.
        max_cuts: Number of cuts used for regions.
        max_candidates: Most kernels of several operators that a rule may propose for a target.

    Raises:
        UsageError: A negative number, or a style that does not exist.
    """

    native_max_depth: int | None = None
    max_depth: int | None = None
    styles: Mapping[str, FusionStyle] = field(default_factory=dict)
    max_cuts: int = 256
    max_candidates: int = 50_000

    def __post_init__(self) -> None:
        for name in ("native_max_depth", "max_depth", "max_cuts", "max_candidates"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"{name} {getattr(self, name)}: it cannot be negative")
        object.__setattr__(self, "styles", {name: _style(name, style) for name, style in self.styles.items()})

    def depth_of(self, target: Target) -> int | None:
        """Return the limit of depth that the user gave for a target's kernels; 0 sets none, None leaves it open."""
        return self.native_max_depth if target.is_native else self.max_depth

    def binds(self, target: Target) -> bool:
        """Return True if the user said which kernels a target may have: then there are no others than its rule proposes."""
        return target.fusion_spec is not None or target.toolchain in self.styles or bool(self.depth_of(target))


def _style(toolchain: str, style: FusionStyle | str) -> FusionStyle:
    try:
        return FusionStyle(style)
    except ValueError:
        known = ", ".join(each.value for each in FusionStyle)
        raise UsageError(f"fusion style {style!r} of {toolchain!r}: it is one of {known}") from None


def gather_fusion_specs(
    targets: Iterable[Target],
    toolchain_of: Callable[[Target], Toolchain],
    coverage_of: Callable[[Target], NodePredicate],
    options: FusionOptions | None = None,
    host_target: Target | None = None,
) -> tuple[FusionSpec, ...]:
    """The fusion specs of a menu.

    In this order: a target's own ``fusion_spec``; the toolchain's pattern table; the operators that the toolchain
    takes. What is joined how is the toolchain's :class:`FusionStyle`. Targets that fuse alike (same rule, or same
    toolchain and same coverage) share one spec.

    Args:
        targets: The menu, in order of priority.
        toolchain_of: The toolchain of a target.
        coverage_of: Returns the predicate of the operators that a target takes. Targets with equal predicates may share a spec.
        options: Options.
        host_target: If given, a last spec offers every operator to it, so that any operator may stay on the host.
    """
    options = options or FusionOptions()
    specs: dict[Hashable, FusionSpec] = {}
    for target in targets:
        coverage = coverage_of(target) if target.fusion_spec is None else None
        key = (target.is_native, target.libs, target.toolchain, coverage) if coverage else id(target.fusion_spec)
        if key in specs:
            specs[key] = replace(specs[key], targets=(*specs[key].targets, target))
            continue
        own = cast(FusionRule | None, target.fusion_spec)
        rule = own or _rule_of(target, toolchain_of(target), _memoised(coverage_of(target)), options)
        specs[key] = FusionSpec(target.short, rule, (target,))
    gathered = tuple(specs.values())
    if host_target is not None:
        gathered += (FusionSpec("host", HostFusionRule(), (host_target,)),)
    return gathered


def _rule_of(target: Target, toolchain: Toolchain, coverage: NodePredicate, options: FusionOptions) -> FusionRule:
    table = tuple(toolchain.pattern_table())
    style = options.styles.get(toolchain.name) or _style_of(target, toolchain)
    wanted = options.depth_of(target)
    max_depth, cap = _DEPTH if wanted is None else wanted, options.max_candidates
    singles = composites(table) if table else OpPredicateFusionRule(coverage)
    if style is FusionStyle.REGIONS:
        ranges = RegionFusionRule(coverage, options.max_cuts, max_candidates=cap, max_depth=wanted or 0)
        return UnionFusionRule((singles, ranges), "regions")
    if style is FusionStyle.ARBITRARY:
        return combined(singles, (JoinAnythingPrimitive(),), max_depth, cap, "arbitrary")
    if style is FusionStyle.NONE:
        return OnlyValidFusionRule(singles)
    if table and getattr(toolchain, "considers_library", False):
        return library_in_native(table, coverage, max_depth, cap, wanted or 0)
    if table:
        return combined(singles, CLASSIC_PRIMITIVES, max_depth, cap, "classic")
    fused = classic_fuse_ops(max_depth, coverage, cap)
    ranges = RegionFusionRule(coverage, options.max_cuts, max_candidates=cap, max_depth=wanted or 0)
    return UnionFusionRule((fused, singles, ranges), "classic and regions")


def _style_of(target: Target, toolchain: Toolchain) -> FusionStyle:
    """The style that follows from the attributes of a toolchain."""
    if toolchain.optimises_whole_graphs:
        return FusionStyle.REGIONS
    if target.is_native or getattr(toolchain, "considers_library", False):
        return FusionStyle.CLASSIC
    return FusionStyle.NONE if target.libs else FusionStyle.ARBITRARY


def _memoised(predicate: NodePredicate) -> NodePredicate:
    """The same predicate with cached answers, since several rules of a spec call it."""
    known: dict[ir.Node, Support] = {}

    def ask(node: ir.Node) -> Support:
        if node not in known:
            known[node] = predicate(node)
        return known[node]

    return ask
