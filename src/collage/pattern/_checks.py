"""Checks of constraints, for the patterns that a search has bound so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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
    Relation,
    SameShape,
    Uniq,
    UsedBy,
)
from collage.pattern._nodes import NotPattern
from collage.pattern._predicates import dims_of
from collage.pattern._scope import Path
from collage.pattern._search_state import ABSENT, SearchState


def holds(state: SearchState, constraint: Constraint) -> bool:
    """Return True if a constraint holds as far as its patterns are bound. ``complete`` judges external uses.

    A constraint on several patterns is checked for those that are bound, so that a clash is found at the second of them.
    """
    bound = [p for p in constraint.patterns if p in state.bound and state.bound[p] is not ABSENT]
    if len(bound) < len(constraint.patterns) and not isinstance(constraint, AttrEq | SameShape | Distinct):
        return True
    match constraint:
        case OnlyUsedBy():
            return _only_used_by(state, constraint) and _used_by(state, constraint)
        case UsedBy():
            return _used_by(state, constraint)
        case AttrEq():
            made = all(state.user_node(pattern) is not None for pattern in bound)
            return made and attribute_clash(state, bound, constraint.names) is None
        case SameShape():
            shapes = [dims_of(state.bound[pattern]) for pattern in bound]
            return all(shape is not None and None not in shape and shape == shapes[0] for shape in shapes)
        case Distinct():
            return len({state.bound[pattern] for pattern in bound}) == len(set(bound))
        case Relation():
            return bool(constraint.test(*(state.bound[pattern] for pattern in constraint.values)))
        case Uniq():
            return has_one_user(state, constraint.value)
        case NoConsumer() if state.plan.is_closed(constraint.excluded):
            return excluded_user(state, constraint) is None
        case Dominates() if state.plan.is_closed(constraint.path):
            return _dominates(state, constraint)
        case _:
            return True


def complete(state: SearchState) -> bool:
    """Return True if an assignment without gaps meets the constraints on the whole match.

    A part of a match can only show that a value has no use outside, if all its users are in the part.
    """
    if state.is_partial:
        return _external_uses_are_as_wanted(state)
    return (
        _nothing_is_skipped_and_matched(state)
        and _what_refers_to_the_match_holds(state)
        and _external_uses_are_as_wanted(state)
    )


def _nothing_is_skipped_and_matched(state: SearchState) -> bool:
    if not state.scope.fuzzy_ops:
        return True
    for node in state.skipped:
        if node in state.claimed:
            return _refuse(state, "skipped", state.claimed[node], node)
    for pattern, _ in state.found():
        for edge in state.plan.edges(pattern):
            if edge.producer is pattern and edge.user in state.bound and not _skip_along(state, edge):
                return _refuse(state, "constraint", pattern, state.bound[pattern], edge)
    return True


def _what_refers_to_the_match_holds(state: SearchState) -> bool:
    """Refusals, exclusions and paths that share patterns with the match are judged once it is whole."""
    for pattern, value in state.found():
        if isinstance(pattern, NotPattern) and state.matches_anew(pattern.refused, value):
            return _refuse(state, "refused", pattern, value)
        for constraint in state.plan.constraints.get(pattern, ()):
            match constraint:
                case NoConsumer():
                    holds_now = excluded_user(state, constraint) is None
                case Dominates(child=child) if child is pattern and not state.plan.is_closed(constraint.path):
                    holds_now = constraint.parent not in state.bound or _dominates(state, constraint)
                case _:
                    continue
            if not holds_now:
                return _refuse(state, "constraint", pattern, value, constraint)
    return True


def _external_uses_are_as_wanted(state: SearchState) -> bool:
    inside = state.inside
    exempt: set[ir.Node] = set()
    for pattern, value in state.found():
        for constraint in state.plan.constraints.get(pattern, ()):
            if isinstance(constraint, ExternUse):
                if pattern in state.node_of:
                    exempt.add(state.node_of[pattern])
                if not _external_use_is(state, state.sources(pattern), inside, constraint.must):
                    return _refuse(state, "constraint", pattern, value, constraint)
    return state.plan.non_leaf is None or bool(state.given) or _inner_nodes_keep(state, inside, exempt)


def external_users(state: SearchState, values: tuple[ir.Value, ...], inside: Any) -> list[ir.Node | str]:
    """List the users of values outside a set of nodes: nodes, those of other graphs too, and ``graph output``."""
    found: list[ir.Node | str] = [u for value in values for u in state.scope.users(value) if u not in inside]
    found += [user for value in values for user in state.scope.outsiders(value)]
    found += ["graph output" for value in values if state.scope.leaves(value)]
    return list(dict.fromkeys(found))


def excluded_user(state: SearchState, constraint: NoConsumer) -> ir.Node | None:
    """The first user of a value that matches the excluded pattern. A user in another graph is judged in that graph."""
    values, scope = state.sources(constraint.value), state.scope
    for user in dict.fromkeys(u for value in values for u in (*scope.users(value), *scope.outsiders(value))):
        if state.matches_anew(constraint.excluded, user.outputs[0], any_output=True, scope=scope.of(user)):
            return user
    return None


def has_one_user(state: SearchState, pattern: Pattern) -> bool:
    """Return True if exactly one node, and not an output of the graph, uses the value of a pattern."""
    values = state.sources(pattern)
    return len(external_users(state, values, ())) == 1 and not any(map(state.scope.leaves, values))


def _dominates(state: SearchState, constraint: Dominates) -> bool:
    region = _dominance.region_of(state, constraint)
    if region.culprit is None:
        state.enclose(region.nodes)
    return region.culprit is None


def _used_by(state: SearchState, edge: UsedBy) -> bool:
    """Return True if there is a path from producer to user."""
    return next(_ways(state, edge), None) is not None


def _ways(state: SearchState, edge: UsedBy) -> Iterator[Path]:
    """The skipped nodes between producer and user, nearest ways first; an empty one where they touch."""
    user = state.user_node(edge.user)
    sources = state.sources(edge.producer)
    if user is None:
        return
    if edge.index is None:
        yield from (path for node, path in state.scope.downstream(sources) if node is user)
    elif edge.index < len(user.inputs) and (used := user.inputs[edge.index]) is not None:
        yield from (path for value, path in state.scope.upstream(used) if value in sources)


def _only_used_by(state: SearchState, edge: OnlyUsedBy) -> bool:
    """Return True if the only users of the producer are the user and skippable nodes that only the user uses in turn."""
    return _only_ways(state, edge) is not None


def _only_ways(state: SearchState, edge: OnlyUsedBy) -> Path | None:
    """The skipped nodes on all ways from producer to user; None if there is a way to something else."""
    user = state.user_node(edge.user)
    between: dict[ir.Node, None] = {}
    pending = list(state.sources(edge.producer))
    for value in pending:
        if state.scope.leaves(value) or state.scope.outsiders(value):
            return None
        for other in state.scope.users(value):
            if other is user or other in between:
                continue
            if not state.scope.skips(other, value):
                return None
            between[other] = None
            pending.extend(other.outputs)
    return tuple(between)


def _skip_along(state: SearchState, edge: UsedBy) -> bool:
    """Note what an edge skips; False if every way leads over a node that a pattern lies on."""
    only = _only_ways(state, edge) or () if isinstance(edge, OnlyUsedBy) else ()
    way = next((path for path in _ways(state, edge) if state.claimed.keys().isdisjoint((*only, *path))), None)
    state.skip((*only, *(way or ())))
    return way is not None


def attribute_clash(
    state: SearchState, patterns: Sequence[Pattern], names: tuple[str, ...] | None
) -> tuple[Pattern, str, Any, Any] | None:
    """The first pattern whose node differs from the first one's in an attribute: pattern, name, and both values."""
    found = [state.scope.attributes(node) for p in patterns if (node := state.user_node(p)) is not None]
    for pattern, attributes in zip(patterns[1:], found[1:], strict=True):
        first = found[0]
        for name in names or sorted({*first, *attributes}):
            if first.get(name) != attributes.get(name):
                return pattern, name, first.get(name), attributes.get(name)
    return None


def _external_use_is(state: SearchState, values: tuple[ir.Value, ...], inside: Any, must: bool | None) -> bool:
    if must is None or (state.is_partial and not must):
        return True
    return bool(external_users(state, values, inside)) == must


def _inner_nodes_keep(state: SearchState, inside: Any, exempt: set[ir.Node]) -> bool:
    for node, pattern in state.claimed.items():
        values = tuple(node.outputs)
        is_inner = any(user in inside for value in values for user in state.scope.users(value))
        if is_inner and node not in exempt and not _external_use_is(state, values, inside, state.plan.non_leaf):
            return _refuse(state, "non-leaf", pattern, node)
    return True


def _refuse(state: SearchState, reason: str, pattern: Pattern, subject: Any, detail: Any = None) -> bool:
    state.note(reason, pattern, subject, detail)
    return False
