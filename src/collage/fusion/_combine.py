"""All ways of combining candidates into larger ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collage.fusion._pool import Pool
from collage.fusion._primitives import CombinePrimitive
from collage.fusion._rule import Found, FusionReport, FusionRule, merge_rules
from collage.graph import ANY_VALID, DataflowGraph, IndexSet, NestedSubGraph, SubGraph, SubGraphConfig

__all__ = ["CombineByPrimitivesFusionRule"]


@dataclass(frozen=True)
class CombineByPrimitivesFusionRule(FusionRule):
    """All combinations, by primitives, of the sub-graphs of a rule, together with these sub-graphs themselves.

    A sub-graph that is not valid may grow into one that is: the two branches of a diamond have two exits, with
    their join they have one. So combinations are kept even if they have too many exits, as long as no path leaves
    them and comes back. If one exit and no tap are allowed there is a shorter way: take the candidates that make
    up a valid sub-graph in reverse order, and what has been taken so far always has one exit. So a combination
    grows by one of the sub-rule's candidates at a time, upstream, and only valid ones are kept. (Nothing is lost as
    long as the sub-rule's candidates are connected, so that they do not feed each other in a circle.)

    Attributes:
        sub_rule: The rule that finds the candidates to combine.
        primitives: The allowed ways of combining.
        config: The conditions that the result must meet later. Here they only end a combination early.
        max_candidates: Limit of the number of candidates. Small candidates are found before large ones.
        name: Names the rule.
    """

    sub_rule: FusionRule
    primitives: tuple[CombinePrimitive, ...]
    config: SubGraphConfig = ANY_VALID
    max_candidates: int = 50_000
    name: str = "combine"

    def find(self, graph: DataflowGraph, report: FusionReport) -> Iterable[Found]:
        """The closure of the sub-rule's candidates under the primitives."""
        pool = Pool(graph)
        waiting = list({f.sub_graph.key: f for f in self.sub_rule.find(graph, report)}.values())
        known = {found.sub_graph.key for found in waiting}
        base_count = len(waiting)
        for number, found in enumerate(waiting):  # grows as combinations are found
            pool.add(found, leads=number < base_count or not self._wants_one_exit)
            for parts, primitive in self._combinations(found, pool):
                union = _union_key(parts)
                if union in known:
                    continue
                sub_graph = SubGraph(graph, *union)
                if not self._leads_somewhere(sub_graph):
                    continue
                if len(known) >= self.max_candidates:
                    report.cap(self.name, self.max_candidates)
                    return waiting
                known.add(union)
                waiting.append(Found(sub_graph, _provenance(parts, primitive)))
        return waiting

    def _combinations(self, found: Found, pool: Pool) -> Iterator[tuple[tuple[Found, ...], str]]:
        """All combinations of a candidate with those before it, by every primitive."""
        for primitive in self.primitives:
            for parts in primitive.combinations(found, pool):
                yield parts, primitive.name

    @property
    def _wants_one_exit(self) -> bool:
        return self.config.max_exits == 1 and not self.config.allow_taps

    def _leads_somewhere(self, sub_graph: SubGraph) -> bool:
        """Return True if a combination is valid, or may be part of one that is."""
        if self._wants_one_exit:
            return sub_graph.why_ill_formed(self.config) is None
        too_deep = self.config.max_depth and sub_graph.depth > self.config.max_depth
        return not too_deep and sub_graph.is_convex


def _union_key(parts: tuple[Found, ...]) -> tuple[IndexSet, tuple[NestedSubGraph, ...]]:
    """The key of the union of some candidates, without making it."""
    bits = 0
    nested: tuple[NestedSubGraph, ...] = ()
    for part in parts:
        bits |= part.sub_graph.inside.bits
        nested += part.sub_graph.nested
    return IndexSet(bits), tuple(sorted(nested, key=lambda labelled: labelled.inside.first)) if nested else ()


def _provenance(parts: tuple[Found, ...], primitive: str) -> tuple[str, ...]:
    rules = parts[0].rules
    for part in parts[1:]:
        rules = merge_rules(rules, part.rules)
    return merge_rules(rules, (primitive,))
