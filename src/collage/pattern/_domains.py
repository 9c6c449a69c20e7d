"""Find the places at which each pattern can lie, before the search begins.

Arc consistency: a node stays in a pattern's domain while each neighbouring pattern has a node in its own domain that
could be the neighbour. Patterns with an empty domain have no match, and for tree-like patterns the search that
follows rarely has to go back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from collage.graph import used_values
from collage.pattern._base import Pattern
from collage.pattern._constraints import Dominates, ExternUse, OnlyUsedBy, Uniq
from collage.pattern._nodes import AndPattern, LeafPattern, OpPattern, OrPattern, OutputPattern
from collage.pattern._operators import COMMUTATIVE_OPS
from collage.pattern._plan import Plan
from collage.pattern._scope import Scope

Domain = dict[ir.Node, None]


@dataclass(frozen=True, slots=True)
class _Arc:
    producer: Pattern
    user: Pattern
    index: int | None
    any_output: bool


def find_domains(plan: Plan, scope: Scope) -> dict[Pattern, Domain] | None:
    """Domains of the patterns that take part in every match and stand for nodes; None if one of them is empty."""
    domains: dict[Pattern, Domain] = {}
    known: dict[tuple[object, ...], Domain] = {}
    for pattern in plan.always:
        domain = _local(pattern, scope, known)
        if domain is None:
            continue
        if not domain:
            return None
        domains[pattern] = dict(domain)
    if scope.fuzzy_ops:
        return domains
    arcs = _arcs(plan, domains)
    if not _narrow(arcs, domains):
        return None
    if _keep_used_as_wanted(plan, scope, domains, known) and not _narrow(arcs, domains):
        return None
    return domains if all(domains.values()) else None


def in_order(
    domains: dict[Pattern, Domain], groups: Iterable[Sequence[Pattern]], scope: Scope
) -> dict[Pattern, Domain]:
    """Narrow the domains of interchangeable patterns, which must match in order: each leaves room for the rest."""
    narrowed = dict(domains)
    for group in groups:
        for rank, pattern in enumerate(group):
            if pattern in domains:
                places = sorted(domains[pattern], key=scope.position.__getitem__)
                narrowed[pattern] = dict.fromkeys(places[rank : max(rank, len(places) - len(group) + 1 + rank)])
    return narrowed


def _keep_used_as_wanted(
    plan: Plan, scope: Scope, domains: dict[Pattern, Domain], known: dict[tuple[object, ...], Domain]
) -> bool:
    """Take out nodes whose users break a constraint for every choice of the other nodes. Return True if there were any."""
    if any(isinstance(c, Dominates) for constraints in plan.constraints.values() for c in constraints):
        return False
    inside: Domain = {}
    for pattern in plan.order:
        if isinstance(pattern, OpPattern):
            inside.update(domains[pattern] if pattern in domains else _local(pattern, scope, known) or {})
    changed = False
    for pattern, domain in domains.items():
        constraints = plan.constraints[pattern]
        alone = any(isinstance(c, OnlyUsedBy | Uniq) and c.patterns[0] is pattern for c in constraints)
        must = next((c.must for c in constraints if isinstance(c, ExternUse)), None)
        if not alone and must is None:
            continue
        kept = {node: None for node in domain if _used_as_wanted(node, alone, must, inside, scope)}
        changed |= len(kept) < len(domain)
        domains[pattern] = kept
    return changed


def _used_as_wanted(node: ir.Node, alone: bool, must: bool | None, inside: Domain, scope: Scope) -> bool:
    users = {user: None for value in node.outputs for user in scope.users(value)}
    leaves = any(scope.leaves(value) for value in node.outputs)
    if alone and (leaves or len(users) != 1):
        return False
    if must is False:
        return not leaves and all(user in inside for user in users)
    return must is None or leaves or bool(users)


def _local(pattern: Pattern, scope: Scope, known: dict[tuple[object, ...], Domain]) -> Domain | None:
    """Nodes that pass a pattern's own tests; None for patterns that may stand for something else."""
    if isinstance(pattern, OrPattern):
        parts = [_local(alternative, scope, known) for alternative in pattern.alternatives]
        if any(part is None for part in parts):
            return None
        union = {node: None for part in parts if part is not None for node in part}
        return {node: None for node in sorted(union, key=scope.position.__getitem__)}
    if isinstance(pattern, AndPattern):
        found = [part for part in (_local(p, scope, known) for p in pattern.parts) if part is not None]
        return {node: None for node in found[0] if all(node in part for part in found)} if found else None
    if not isinstance(pattern, OpPattern):
        return None
    key = (pattern.op_types, pattern.domain, pattern.predicates)
    if key not in known:
        if len(pattern.op_types) == 1:
            nodes: Iterable[ir.Node] = scope.by_type.get((pattern.domain, pattern.op_types[0]), ())
        else:
            nodes = (node for node in scope.nodes if node.outputs and pattern.accepts_type(node))
        known[key] = {
            node: None
            for node in nodes
            if all(predicate.test(scope, node.outputs[0], node) for predicate in pattern.predicates)
        }
    if scope.fuzzy_ops or not pattern.children:
        return known[key]
    return {node: None for node in known[key] if pattern.fits_operands(scope.makers(node))}


def _arcs(plan: Plan, domains: dict[Pattern, Domain]) -> list[_Arc]:
    arcs: dict[tuple[object, ...], _Arc] = {}
    for user in domains:
        if isinstance(user, OpPattern):
            fixed = not user.has_gaps and user.commutative is not True and not _may_commute(user)
            for index, operand in enumerate(user.operands or ()):
                if isinstance(operand, (OpPattern, LeafPattern)):
                    arc = _Arc(operand, user, index if fixed else None, False)
                elif isinstance(operand, OutputPattern) and operand.base in domains:
                    arc = _Arc(operand.base, user, index if fixed else None, True)
                else:
                    continue
                arcs[arc.producer, arc.user, arc.index] = arc
        for edge in plan.edges(user):
            known = edge.producer in domains or (
                isinstance(edge.producer, LeafPattern) and edge.producer in plan.always
            )
            if edge.user in domains and known:
                arc = _Arc(edge.producer, edge.user, edge.index, True)
                arcs[edge.producer, edge.user, edge.index, "edge"] = arc
    shared = [arc.producer for arc in arcs.values()]
    return [arc for arc in arcs.values() if arc.producer in domains or shared.count(arc.producer) > 1]


def _may_commute(pattern: OpPattern) -> bool:
    if pattern.commutative is False:
        return False
    return not pattern.op_types or any((pattern.domain, op) in COMMUTATIVE_OPS for op in pattern.op_types)


def _narrow(arcs: list[_Arc], domains: dict[Pattern, Domain]) -> bool:
    """Take nodes out of domains until every arc is consistent; False if one becomes empty."""
    values: dict[Pattern, dict[ir.Value, None]] = {}
    touching: dict[Pattern, list[_Arc]] = {}
    for arc in arcs:
        touching.setdefault(arc.producer, []).append(arc)
        touching.setdefault(arc.user, []).append(arc)
    pending = dict.fromkeys(arcs)
    while pending:
        arc = next(iter(pending))
        del pending[arc]
        for changed in _revise(arc, domains, values):
            if not domains.get(changed, True) or not values.get(changed, True):
                return False
            pending.update(dict.fromkeys(other for other in touching[changed] if other is not arc))
    return True


def _revise(arc: _Arc, domains: dict[Pattern, Domain], values: dict[Pattern, dict[ir.Value, None]]) -> list[Pattern]:
    users = domains[arc.user]
    producers = domains.get(arc.producer)
    allowed = values.get(arc.producer)
    kept: Domain = {}
    reached: dict[ir.Value, None] = {}
    for user in users:
        fits = False
        for value in _used(user, arc.index):
            if producers is not None:
                node = value.producer()
                fits_here = node in producers and (arc.any_output or value.index() == 0)
            else:
                fits_here = allowed is None or value in allowed
            if fits_here:
                fits = True
                reached[value] = None
        if fits:
            kept[user] = None
    changed: list[Pattern] = []
    if len(kept) < len(users):
        domains[arc.user] = kept
        changed.append(arc.user)
    if producers is not None:
        made = {value.producer() for value in reached}
        if len(made) < len(producers):
            domains[arc.producer] = {node: None for node in producers if node in made}
            changed.append(arc.producer)
    elif allowed is None or len(reached) < len(allowed):
        values[arc.producer] = reached
        changed.append(arc.producer)
    return changed


def _used(node: ir.Node, index: int | None) -> Iterable[ir.Value]:
    if index is None:
        return used_values(node)
    value = node.inputs[index] if index < len(node.inputs) else None
    return () if value is None else (value,)
