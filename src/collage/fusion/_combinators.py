"""Combinators that label, gather and filter the sub-graphs of other rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from collage.fusion._rule import Found, FusionReport, FusionRule, merge_rules
from collage.graph import ANY_VALID, DataflowGraph, SubGraph, SubGraphConfig

__all__ = ["CompositeFusionRule", "ExceptFusionRule", "OnlyValidFusionRule", "UnionFusionRule"]


@dataclass(frozen=True)
class CompositeFusionRule(FusionRule):
    """Labels the sub-graphs of a rule: each becomes a function marked ``Composite``.

    Attributes:
        label: The label, such as ``lib.conv2d_bias_relu``. Also the rule's name.
        sub_rule: The rule that finds the sub-graphs.
    """

    label: str
    sub_rule: FusionRule

    @property
    def name(self) -> str:  # type: ignore[override]
        """The label."""
        return self.label

    def find(self, graph: DataflowGraph, report: FusionReport) -> Iterable[Found]:
        """The sub-graphs of the sub-rule, labelled."""
        for found in self.sub_rule.find(graph, report):
            yield Found(found.sub_graph.with_label(self.label), merge_rules(found.rules, (self.label,)))


@dataclass(frozen=True)
class UnionFusionRule(FusionRule):
    """The sub-graphs of any of several rules, each once.

    Attributes:
        sub_rules: The rules.
        name: Names the rule.
    """

    sub_rules: tuple[FusionRule, ...]
    name: str = "union"

    def find(self, graph: DataflowGraph, report: FusionReport) -> Iterable[Found]:
        """Find the sub-graphs of the sub-rules. A sub-graph that several find keeps the names of all."""
        unique: dict[SubGraph, tuple[str, ...]] = {}
        for rule in self.sub_rules:
            for found in rule.find(graph, report):
                unique[found.sub_graph] = merge_rules(unique.get(found.sub_graph, ()), found.rules)
        return [Found(sub_graph, rules) for sub_graph, rules in unique.items()]


@dataclass(frozen=True)
class ExceptFusionRule(FusionRule):
    """The sub-graphs of a rule, but for the nodes that another rule finds as one sub-graph, labelled or not.

    Attributes:
        sub_rule: The rule.
        others: The other rule.
        name: Names the rule.
    """

    sub_rule: FusionRule
    others: FusionRule
    name: str = "except"

    def find(self, graph: DataflowGraph, report: FusionReport) -> Iterable[Found]:
        """Find the sub-graphs of the sub-rule that the others do not find."""
        known = {found.sub_graph.inside for found in self.others.find(graph, report)}
        return [found for found in self.sub_rule.find(graph, report) if found.sub_graph.inside not in known]


@dataclass(frozen=True)
class OnlyValidFusionRule(FusionRule):
    """Keeps those sub-graphs of which a kernel can be made.

    Attributes:
        sub_rule: The rule that finds the sub-graphs.
        config: The conditions of a valid kernel.
        name: Names the rule.
    """

    sub_rule: FusionRule
    config: SubGraphConfig = ANY_VALID
    name: str = "valid"

    def find(self, graph: DataflowGraph, report: FusionReport) -> Iterable[Found]:
        """Find the sub-graphs of the sub-rule that are valid. The report takes a note of matches of patterns that are not."""
        valid: list[Found] = []
        refused: dict[str, int] = {}
        for found in self.sub_rule.find(graph, report):
            reason = found.sub_graph.why_invalid(self.config)
            if reason is None:
                valid.append(found)
            elif found.sub_graph.nested:
                refused[reason] = refused.get(reason, 0) + 1
        report.notes += [f"left out {count} matches of patterns: {reason}" for reason, count in refused.items()]
        return valid
