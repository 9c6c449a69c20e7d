"""When constraints hold, given what the solver has bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from collage.graph import used_values
from collage.pattern._base import Pattern
from collage.pattern._constraints import (
    AttrEq,
    Constraint,
    Distinct,
    ExternUse,
    NoConsumer,
    OnlyUsedBy,
    SameShape,
    Uniq,
    UsedBy,
)
from collage.pattern._nodes import DominatorPattern, NotPattern
from collage.pattern._predicates import dims_of

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
            return _attributes_equal(solver, bound, constraint.names)
        case SameShape():
            shapes = [dims_of(solver.bound[pattern]) for pattern in bound]
            return all(shape is not None and None not in shape and shape == shapes[0] for shape in shapes)
        case Distinct():
            return len({solver.bound[pattern] for pattern in bound}) == len(set(bound))
        case Uniq():
            return has_one_user(solver, constraint.value)
        case NoConsumer() if solver.plan.is_closed(constraint.excluded):
            return excluded_user(solver, constraint) is None
        case _:
            return True


def complete(solver: Solver) -> bool:
    """Whether an assignment without gaps keeps what only the whole match can tell."""
    if solver.is_partial:
        return True
    inside = {**solver.claimed, **solver.passed}
    for node in solver.passed:
        if node in solver.claimed:
            return _refuse(solver, "passed", solver.claimed[node], node)
    exempt: set[ir.Node] = set()
    for pattern in solver.bound:
        if isinstance(pattern, NotPattern) and solver.matches_anew(pattern.refused, solver.bound[pattern]):
            return _refuse(solver, "refused", pattern, solver.bound[pattern])
        for constraint in solver.plan.constraints.get(pattern, ()):
            if isinstance(constraint, NoConsumer) and excluded_user(solver, constraint) is not None:
                return _refuse(solver, "constraint", pattern, solver.bound[pattern], constraint)
            if isinstance(constraint, ExternUse):
                if pattern in solver.node_of:
                    exempt.add(solver.node_of[pattern])
                if not _external_use_is(solver, solver.sources(pattern), inside, constraint.must):
                    return _refuse(solver, "constraint", pattern, solver.bound[pattern], constraint)
    return solver.plan.non_leaf is None or _inner_nodes_keep(solver, inside, exempt)


def external_users(solver: Solver, values: tuple[ir.Value, ...], inside: Any) -> list[ir.Node | str]:
    """Who uses values outside a set of nodes: nodes, and ``graph output``."""
    found: list[ir.Node | str] = [u for value in values for u in solver.scope.users(value) if u not in inside]
    found += ["graph output" for value in values if solver.scope.leaves(value)]
    return list(dict.fromkeys(found))


def excluded_user(solver: Solver, constraint: NoConsumer) -> ir.Node | None:
    """The first user of a value that matches what is excluded."""
    for user in dict.fromkeys(u for value in solver.sources(constraint.value) for u in solver.scope.users(value)):
        if solver.matches_anew(constraint.excluded, user.outputs[0], any_output=True):
            return user
    return None


def has_one_user(solver: Solver, pattern: Pattern) -> bool:
    """Whether exactly one node, and no graph output, uses what a pattern stands for."""
    values = solver.sources(pattern)
    return len(external_users(solver, values, ())) == 1 and not any(map(solver.scope.leaves, values))


def dominates(solver: Solver, pattern: DominatorPattern) -> bool:
    """Whether all computed inputs of the child come from the parent, and nothing between is used elsewhere."""
    child, parent = solver.user_node(pattern.child), solver.user_node(pattern.parent)
    if child is None or parent is None or child is parent:
        return _refuse(solver, "dominator", pattern, child)
    region: dict[ir.Node, None] = {}
    pending = [child]
    reached = False
    while pending:
        for value in used_values(pending.pop()):
            node = value.producer()
            if node is parent:
                reached = True
            elif node is not None and node not in region and node.graph is solver.scope.graph:
                if node.op_type == "Constant":
                    continue
                if not solver.matches_anew(pattern.path, value, any_output=True):
                    return _refuse(solver, "dominator", pattern, node)
                region[node] = None
                pending.append(node)
    inside = {*region, child}
    for node in (parent, *region):
        if external_users(solver, tuple(node.outputs), inside):
            return _refuse(solver, "dominator", pattern, node)
    solver.pass_over(region)
    return reached


def ancestors(solver: Solver, pattern: DominatorPattern) -> Iterator[ir.Node]:
    """Nodes that might be the parent of a dominator pattern whose child is bound, nearest first."""
    child = solver.user_node(pattern.child)
    known = solver.node_of.get(pattern.parent)
    if known is not None or child is None:
        yield from () if known is None else (known,)
        return
    seen = {child}
    pending = [child]
    for node in pending:
        for value in used_values(node):
            producer = value.producer()
            if producer is None or producer in seen or producer.graph is not solver.scope.graph:
                continue
            seen.add(producer)
            yield producer
            if solver.matches_anew(pattern.path, value, any_output=True):
                pending.append(producer)


def _used_by(solver: Solver, constraint: UsedBy) -> bool:
    user = solver.user_node(constraint.user)
    sources = solver.sources(constraint.producer)
    if user is None:
        return False
    if constraint.index is not None:
        if constraint.index >= len(user.inputs) or (used := user.inputs[constraint.index]) is None:
            return False
        path = next((path for value, path in solver.scope.upstream(used) if value in sources), None)
    else:
        path = next((path for node, path in solver.scope.downstream(sources) if node is user), None)
    solver.pass_over(path or ())
    return path is not None


def _only_used_by(solver: Solver, constraint: OnlyUsedBy) -> bool:
    user = solver.user_node(constraint.user)
    values = solver.sources(constraint.producer)
    while True:
        users = external_users(solver, values, ())
        if len(users) != 1:
            return False
        if users[0] is user:
            return True
        if isinstance(users[0], str) or not solver.scope.is_fuzzy(users[0]):
            return False
        values = tuple(users[0].outputs)


def _attributes_equal(solver: Solver, patterns: list[Pattern], names: tuple[str, ...] | None) -> bool:
    found: list[dict[str, Any]] = []
    for node in map(solver.user_node, patterns):
        if node is None:
            return False
        attributes = solver.scope.attributes(node)
        if names is not None:
            attributes = {name: attributes.get(name) for name in names}
        found.append(attributes)
    return all(attributes == found[0] for attributes in found)


def _external_use_is(solver: Solver, values: tuple[ir.Value, ...], inside: Any, must: bool | None) -> bool:
    return must is None or bool(external_users(solver, values, inside)) == must


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
