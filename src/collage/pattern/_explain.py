"""The reason why a pattern did not match: the furthest attempt, the constraint that failed, and the place.

Nothing is recorded while matching; ``explain`` searches again with a trace. Messages are put into words only for the
attempt that is shown.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from collage.pattern import _checks, _dominance
from collage.pattern._base import Pattern, PatternLike
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
from collage.pattern._nodes import OpPattern
from collage.pattern._plan import compile_pattern, is_node_pattern
from collage.pattern._predicates import Predicate
from collage.pattern._scope import GraphLike, Scope, label, scopes_of
from collage.pattern._search_state import ABSENT, SearchState
from collage.pattern._solver import Agenda, Budget, MatchBudgetExceeded, Solver


@dataclass(frozen=True, slots=True)
class Explanation:
    """The result of the attempt that went furthest.

    Attributes:
        matched: True if the pattern does match; the rest then describes that match.
        pattern: The pattern's root as text.
        nodes: Number of node patterns in that attempt, with those of the alternatives that it chose.
        bound: The nodes found, as (pattern, node name).
        failed: The demand at which the attempt ended; empty if the pattern matched.
        at: Name of the node or value concerned, None if there was none.
        message: One sentence that says it all.
        complete: False if the search was stopped by its budget.
    """

    matched: bool
    pattern: str
    nodes: int
    bound: tuple[tuple[str, str], ...]
    failed: str
    at: str | None
    message: str
    complete: bool = True

    def to_json(self) -> str:
        """The explanation as a JSON object with the attributes' names."""
        return json.dumps(asdict(self), ensure_ascii=False)

    def to_text(self) -> str:
        """The explanation for people, one line per fact."""
        lines = [self.message]
        lines += [f"  matched {pattern} at {node}" for pattern, node in self.bound]
        if not self.complete:
            lines.append("  the search was stopped by its budget; further attempts were not made")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text()


class FurthestFailure:
    """Remembers the failure before which most nodes were matched; of equals, the first in the graph's order."""

    def __init__(self) -> None:
        self.depth: tuple[int, int] = (-1, -1)
        self.bound: tuple[tuple[str, str], ...] = ()
        self.nodes = 0
        self.subject: Any = None
        self.text = ""

    def note(self, state: SearchState, reason: str, pattern: Pattern, subject: Any, detail: Any) -> None:
        """Called by the solver at each failure."""
        settled = reason in ("constraint", "non-leaf", "skipped", "predicate", "operand count")
        depth = (len(state.node_of) - (settled and pattern in state.node_of), int(settled))
        if depth <= self.depth:
            return
        self.depth, self.subject = depth, subject
        self.bound, self.nodes = _found(state), _taking_part(state)
        self.text = _wording(state, reason, pattern, subject, detail)


def explain(
    pattern: PatternLike,
    where: GraphLike | ir.Model,
    near: ir.Node | ir.Value | None = None,
    *,
    fuzzy_ops: Iterable[str] = (),
    budget: int | None = None,
) -> Explanation:
    """Tells why a pattern does not match, by the attempt that matched most nodes.

    Args:
        pattern: The pattern.
        where: The graph or model it should match in.
        near: Only tries to put the pattern's root there.
        fuzzy_ops: As for ``match``.
        budget: Search steps per graph, None takes the default; when they are spent, the best attempt so far is explained.
    """
    tried = [_explain_in(pattern, scope, near, budget) for scope in scopes_of(where, fuzzy_ops)]
    return max(tried, key=lambda e: (e.matched, len(e.bound), bool(e.at)))


def closest(
    patterns: Mapping[str, PatternLike], where: GraphLike | ir.Model, *, fuzzy_ops: Iterable[str] = ()
) -> list[tuple[str, Explanation]]:
    """Rank named patterns by how nearly they match: fully matching ones first, then by the share of nodes found.

    Args:
        patterns: Patterns by name.
        where: The graph or model in which they should match.
        fuzzy_ops: As for ``match``.

    Returns:
        Names with the explanation of the furthest attempt.
    """
    explained = [(name, explain(pattern, where, fuzzy_ops=fuzzy_ops)) for name, pattern in patterns.items()]
    return sorted(explained, key=lambda item: (-item[1].matched, -len(item[1].bound) / max(1, item[1].nodes), item[0]))


def _explain_in(pattern: PatternLike, scope: Scope, near: ir.Node | ir.Value | None, budget: int | None) -> Explanation:
    plan = compile_pattern(pattern)
    trace = FurthestFailure()
    solver = Solver(plan, scope, Budget(pattern, scope, budget), trace=trace)
    trace.nodes = _taking_part(solver)
    complete = True
    for start in _starts(solver, near):
        try:
            for _ in solver.solutions([start]):
                found, root = _found(solver), solver.bound[plan.root]
                message = f"it matches at {_name(root)}"
                return Explanation(True, _text(plan.root), len(found), found, "", _plain_name(root), message)
        except MatchBudgetExceeded:
            complete = False
            break
    at = _plain_name(trace.subject)
    message = f"matched {len(trace.bound)} of {trace.nodes} nodes; {trace.text or 'there is no value to start from'}"
    return Explanation(False, _text(plan.root), trace.nodes, trace.bound, trace.text, at, message, complete)


def _found(state: SearchState) -> tuple[tuple[str, str], ...]:
    return tuple((_text(p), _name(node)) for p, node in state.node_of.items() if isinstance(p, OpPattern))


def _taking_part(state: SearchState) -> int:
    return len([pattern for pattern in state.active if isinstance(pattern, OpPattern)])


def _starts(solver: Solver, near: ir.Node | ir.Value | None) -> list[Agenda]:
    """Give the beginnings of attempts: each node pattern at each node, so that no good attempt is missed."""
    plan = solver.plan
    if near is not None:
        value = near.outputs[0] if isinstance(near, ir.Node) else near
        return [solver.start(plan.root, value, isinstance(near, ir.Node))]
    anchors = [p for p in plan.always if is_node_pattern(p)] or [plan.root]
    return [solver.start(p, value, any_output) for p in anchors for value, any_output in solver.places(p)]


def _wording(state: SearchState, reason: str, pattern: Pattern, subject: Any, detail: Any) -> str:
    what, where = _text(pattern), _name(subject)
    match reason:
        case "type":
            return f"{what} was wanted, but {where} is a {subject.op_type}{_meant(state, pattern)}"
        case "no node":
            return f"{what} was wanted, but {where} is not a result of a node of this graph"
        case "output":
            return f"{what} was wanted, but {where} is another output of its node"
        case "presence":
            there = "absent" if subject is ABSENT else where
            user = next((_at(state, p) for p in state.plan.parents.get(pattern, ()) if p in state.node_of), "its user")
            return f"{what} was wanted, but that operand of {user} is {there}"
        case "other place":
            return f"{what} was found at {_name(detail)} already, so it cannot be {where} too"
        case "taken":
            return f"{what} cannot be {where}: {_text(detail)} is there (distinct patterns match distinct nodes)"
        case "operand count":
            return f"{what} at {where}: {len([v for v in subject.inputs if v is not None])} operands are there"
        case "refused":
            return f"{where} is what {what} refuses"
        case "predicate":
            return _predicate_wording(state, what, subject, detail)
        case "constraint":
            return _constraint_wording(state, pattern, where, detail)
        case "nothing near":
            return f"no place is left for {what}: {_neighbours(state, pattern)}"
        case "non-leaf":
            wanted = "must" if state.plan.non_leaf else "must not"
            return f"{where} {wanted} be used outside the match, but {_outside(state, (subject.outputs[0],))}"
        case _:
            return f"{where} would be skipped and matched at once"


def _predicate_wording(state: SearchState, what: str, subject: Any, predicate: Predicate) -> str:
    value = subject.outputs[0] if isinstance(subject, ir.Node) else subject
    found = predicate.found(state.scope, value, value.producer()) if predicate.found else "it is not so"
    place = "" if what == predicate.text else f"{what} at "
    return f"{place}{_name(subject)}: {predicate.text} was wanted, but {found}"


def _meant(state: SearchState, pattern: Pattern) -> str:
    """A hint if no node has the wanted operator type, but some have one of similar spelling."""
    there = {op_type.lower(): op_type for _, op_type in state.scope.by_type}
    wanted = pattern.op_types if isinstance(pattern, OpPattern) else ()
    if any(op_type in there.values() for op_type in wanted):
        return ""
    near = [there[m] for op in wanted for m in difflib.get_close_matches(op.lower(), there, n=1, cutoff=0.8)]
    return f" (did you mean {near[0]!r}?)" if near else ""


def _constraint_wording(state: SearchState, pattern: Pattern, where: str, constraint: Constraint) -> str:
    match constraint:
        case OnlyUsedBy(producer=producer, user=user):
            values = state.sources(producer)
            users = ", ".join(_name(u) for u in _checks.external_users(state, values, ())) or "nobody"
            return f"{_at(state, producer)} must be used by {_at(state, user)} alone; it is used by {users}"
        case UsedBy(producer=producer, user=user, index=index):
            place = "" if index is None else f" as operand {index}"
            return f"{_at(state, producer)} must be used by {_at(state, user)}{place}"
        case AttrEq(nodes=nodes, names=names):
            return _attribute_difference(state, nodes, names)
        case SameShape(values=values):
            shapes = ", ".join(
                f"{_at(state, p)}: {state.bound[p].shape or 'unknown'}" for p in values if p in state.bound
            )
            return f"shapes must be known and equal ({shapes})"
        case Relation(values=values, text=text):
            return f"{', '.join(_at(state, p) for p in values if p in state.bound)} must be so that {text}"
        case Distinct():
            return f"{where} matches two patterns that must be distinct"
        case Dominates(child=child, parent=parent):
            region = _dominance.region_of(state, constraint)
            culprit = f"{_name(region.culprit)} {region.fault}"
            return f"{_at(state, child)} must dominate {_at(state, parent)}, but {culprit}"
        case Uniq(value=value):
            return f"{_at(state, value)} must have one user; it has {_users(state, value)}"
        case NoConsumer(value=value, excluded=excluded):
            culprit = _name(_checks.excluded_user(state, constraint))
            return f"{_at(state, value)} must not be used by {_text(excluded)}, but by {culprit} it is"
        case ExternUse(value=value, must=must):
            wanted = "must" if must else "must not"
            outside = _outside(state, state.sources(value))
            return f"{_at(state, value)} {wanted} be used outside the match, but {outside}"
        case _:
            return f"a constraint failed at {_text(pattern)}"


def _attribute_difference(state: SearchState, nodes: tuple[Pattern, ...], names: tuple[str, ...] | None) -> str:
    found = [p for p in nodes if p in state.bound and state.user_node(p) is not None]
    clash = _checks.attribute_clash(state, found, names)
    if clash is None:
        return "attributes are compared, but no node makes a value that is matched"
    other, name, here, there = clash
    return f"{name} must be equal: {here!r} at {_at(state, found[0])}, {there!r} at {_at(state, other)}"


def _outside(state: SearchState, values: tuple[ir.Value, ...]) -> str:
    users = _checks.external_users(state, values, state.inside)
    return f"{', '.join(map(_name, users))} does" if users else "no node outside does"


def _users(state: SearchState, pattern: Pattern) -> str:
    return ", ".join(map(_name, _checks.external_users(state, state.sources(pattern), ()))) or "none"


def _neighbours(state: SearchState, pattern: Pattern) -> str:
    for edge in state.plan.edges(pattern):
        if edge.user is pattern and edge.producer in state.bound:
            return f"the users of {_at(state, edge.producer)} are {_users(state, edge.producer)}"
        if edge.producer is pattern and edge.user in state.bound:
            return f"no operand of {_at(state, edge.user)} fits"
    return "nothing near it fits"


def _at(state: SearchState, pattern: Pattern) -> str:
    if pattern in state.node_of:
        return _name(state.node_of[pattern])
    return _name(state.bound[pattern]) if pattern in state.bound else _text(pattern)


def _text(pattern: Pattern) -> str:
    return f"{pattern.name} ({pattern.describe()})" if pattern.name else pattern.describe()


def _plain_name(thing: Any) -> str | None:
    return label(thing) if isinstance(thing, ir.Node) else thing.name if isinstance(thing, ir.Value) else None


def _name(thing: Any) -> str:
    if thing is None:
        return "nothing"
    if isinstance(thing, ir.Node):
        return f"{thing.op_type} {label(thing)!r}"
    return thing if isinstance(thing, str) else f"value {thing.name!r}"
