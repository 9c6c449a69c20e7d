"""When constraints hold, given what the solver has bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from collage.pattern import _dominance
from collage.pattern._base import Pattern
from collage.pattern._constraints import (
    AttrEq,
    Constraint,
    Distinct,
    Dominates,
    ExternUse,
    NoConsumer,
    OnlyUsedBy,
    SameShape,
    Uniq,
    UsedBy,
)
from collage.pattern._nodes import NotPattern
from collage.pattern._predicates import dims_of
from collage.pattern._scope import Path

if TYPE_CHECKING:
    from collage.pattern._solver import Solver


def holds(solver: Solver, constraint: Constraint) -> bool:
    """Whether a constraint holds as far as its patterns are bound; external uses are judged by ``complete``.

    What is said of several patterns holds among those that are bound, so that a clash is found at the second of them.
    """
    from collage.pattern._solver import ABSENT

    bound = [p for p in constraint.patterns if p in solver.bound and solver.bound[p] is not ABSENT]
    if len(bound) < len(constraint.patterns) and not isinstance(constraint, AttrEq | SameShape | Distinct):
        return True
    match constraint:
        case OnlyUsedBy():
            return _only_used_by(solver, constraint) and _used_by(solver, constraint)
        case UsedBy():
            return _used_by(solver, constraint)
        case AttrEq():
            made = all(solver.user_node(pattern) is not None for pattern in bound)
            return made and attribute_clash(solver, bound, constraint.names) is None
        case SameShape():
            shapes = [dims_of(solver.bound[pattern]) for pattern in bound]
            return all(shape is not None and None not in shape and shape == shapes[0] for shape in shapes)
        case Distinct():
            return len({solver.bound[pattern] for pattern in bound}) == len(set(bound))
        case Uniq():
            return has_one_user(solver, constraint.value)
        case NoConsumer() if solver.plan.is_closed(constraint.excluded):
            return excluded_user(solver, constraint) is None
        case Dominates() if solver.plan.is_closed(constraint.path):
            return _dominates(solver, constraint)
        case _:
            return True


def complete(solver: Solver) -> bool:
    """Whether an assignment without gaps keeps what only the whole match can tell.

    Of a part of a match only one thing can be told: what must be used outside is not, if the part has all its users.
    """
    if solver.is_partial:
        return _external_uses_are_as_wanted(solver)
    return (
        _nothing_is_skipped_and_matched(solver)
        and _what_refers_to_the_match_holds(solver)
        and _external_uses_are_as_wanted(solver)
    )


def _nothing_is_skipped_and_matched(solver: Solver) -> bool:
    if not solver.scope.fuzzy_ops:
        return True
    for node in solver.skipped:
        if node in solver.claimed:
            return _refuse(solver, "skipped", solver.claimed[node], node)
    for pattern, _ in solver.found():
        for edge in solver.plan.edges(pattern):
            if edge.producer is pattern and edge.user in solver.bound and not _skip_along(solver, edge):
                return _refuse(solver, "constraint", pattern, solver.bound[pattern], edge)
    return True


def _what_refers_to_the_match_holds(solver: Solver) -> bool:
    """Refusals, exclusions and paths that share patterns with the match are judged once it is whole."""
    for pattern, value in solver.found():
        if isinstance(pattern, NotPattern) and solver.matches_anew(pattern.refused, value):
            return _refuse(solver, "refused", pattern, value)
        for constraint in solver.plan.constraints.get(pattern, ()):
            match constraint:
                case NoConsumer():
                    holds_now = excluded_user(solver, constraint) is None
                case Dominates(child=child) if child is pattern and not solver.plan.is_closed(constraint.path):
                    holds_now = constraint.parent not in solver.bound or _dominates(solver, constraint)
                case _:
                    continue
            if not holds_now:
                return _refuse(solver, "constraint", pattern, value, constraint)
    return True


def _external_uses_are_as_wanted(solver: Solver) -> bool:
    inside = solver.inside
    exempt: set[ir.Node] = set()
    for pattern, value in solver.found():
        for constraint in solver.plan.constraints.get(pattern, ()):
            if isinstance(constraint, ExternUse):
                if pattern in solver.node_of:
                    exempt.add(solver.node_of[pattern])
                if not _external_use_is(solver, solver.sources(pattern), inside, constraint.must):
                    return _refuse(solver, "constraint", pattern, value, constraint)
    return solver.plan.non_leaf is None or bool(solver.given) or _inner_nodes_keep(solver, inside, exempt)


def external_users(solver: Solver, values: tuple[ir.Value, ...], inside: Any) -> list[ir.Node | str]:
    """List the users of values outside a set of nodes: nodes, those of other graphs too, and ``graph output``."""
    found: list[ir.Node | str] = [u for value in values for u in solver.scope.users(value) if u not in inside]
    found += [user for value in values for user in solver.scope.outsiders(value)]
    found += ["graph output" for value in values if solver.scope.leaves(value)]
    return list(dict.fromkeys(found))


def excluded_user(solver: Solver, constraint: NoConsumer) -> ir.Node | None:
    """The first user of a value that matches what is excluded; one of another graph is judged there."""
    values, scope = solver.sources(constraint.value), solver.scope
    for user in dict.fromkeys(u for value in values for u in (*scope.users(value), *scope.outsiders(value))):
        if solver.matches_anew(constraint.excluded, user.outputs[0], any_output=True, scope=scope.of(user)):
            return user
    return None


def has_one_user(solver: Solver, pattern: Pattern) -> bool:
    """Whether exactly one node, and no graph output, uses what a pattern stands for."""
    values = solver.sources(pattern)
    return len(external_users(solver, values, ())) == 1 and not any(map(solver.scope.leaves, values))


def _dominates(solver: Solver, constraint: Dominates) -> bool:
    region = _dominance.region_of(solver, constraint)
    if region.culprit is None:
        solver.enclose(region.nodes)
    return region.culprit is None


def _used_by(solver: Solver, edge: UsedBy) -> bool:
    """Whether there is a way from producer to user."""
    return next(_ways(solver, edge), None) is not None


def _ways(solver: Solver, edge: UsedBy) -> Iterator[Path]:
    """The skipped nodes between producer and user, nearest ways first; an empty one where they touch."""
    user = solver.user_node(edge.user)
    sources = solver.sources(edge.producer)
    if user is None:
        return
    if edge.index is None:
        yield from (path for node, path in solver.scope.downstream(sources) if node is user)
    elif edge.index < len(user.inputs) and (used := user.inputs[edge.index]) is not None:
        yield from (path for value, path in solver.scope.upstream(used) if value in sources)


def _only_used_by(solver: Solver, edge: OnlyUsedBy) -> bool:
    """Whether all that uses the producer is the user, or a skippable node that only the user uses in turn."""
    return _only_ways(solver, edge) is not None


def _only_ways(solver: Solver, edge: OnlyUsedBy) -> Path | None:
    """The skipped nodes on all ways from producer to user; None if there is a way to something else."""
    user = solver.user_node(edge.user)
    between: dict[ir.Node, None] = {}
    pending = list(solver.sources(edge.producer))
    for value in pending:
        if solver.scope.leaves(value) or solver.scope.outsiders(value):
            return None
        for other in solver.scope.users(value):
            if other is user or other in between:
                continue
            if not solver.scope.skips(other, value):
                return None
            between[other] = None
            pending.extend(other.outputs)
    return tuple(between)


def _skip_along(solver: Solver, edge: UsedBy) -> bool:
    """Notes what an edge skips; False where every way leads over a node that a pattern lies on."""
    only = _only_ways(solver, edge) or () if isinstance(edge, OnlyUsedBy) else ()
    way = next((path for path in _ways(solver, edge) if solver.claimed.keys().isdisjoint((*only, *path))), None)
    solver.skip((*only, *(way or ())))
    return way is not None


def attribute_clash(
    solver: Solver, patterns: Sequence[Pattern], names: tuple[str, ...] | None
) -> tuple[Pattern, str, Any, Any] | None:
    """The first pattern whose node differs from the first one's in an attribute: pattern, name, and both values."""
    found = [solver.scope.attributes(node) for p in patterns if (node := solver.user_node(p)) is not None]
    for pattern, attributes in zip(patterns[1:], found[1:], strict=True):
        first = found[0]
        for name in names or sorted({*first, *attributes}):
            if first.get(name) != attributes.get(name):
                return pattern, name, first.get(name), attributes.get(name)
    return None


def _external_use_is(solver: Solver, values: tuple[ir.Value, ...], inside: Any, must: bool | None) -> bool:
    if must is None or (solver.is_partial and not must):
        return True
    return bool(external_users(solver, values, inside)) == must


def _inner_nodes_keep(solver: Solver, inside: Any, exempt: set[ir.Node]) -> bool:
    for node, pattern in solver.claimed.items():
        values = tuple(node.outputs)
        is_inner = any(user in inside for value in values for user in solver.scope.users(value))
        if is_inner and node not in exempt and not _external_use_is(solver, values, inside, solver.plan.non_leaf):
            return _refuse(solver, "non-leaf", pattern, node)
    return True


def _refuse(solver: Solver, reason: str, pattern: Pattern, subject: Any, detail: Any = None) -> bool:
    solver.note(reason, pattern, subject, detail)
    return False
