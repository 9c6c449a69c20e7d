"""Domination: everything that leads from a parent leads to a child, through nodes of one kind (Relay's dominator)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from collage.graph import used_values
from collage.pattern._constraints import Dominates
from collage.pattern._predicates import is_constant
from collage.pattern._search_state import SearchState


@dataclass(frozen=True, slots=True)
class Region:
    """The nodes between parent and child.

    Attributes:
        nodes: The nodes between them.
        culprit: The node at which the domination fails, None if it holds.
        fault: The fault there.
    """

    nodes: dict[ir.Node, None]
    culprit: ir.Node | None = None
    fault: str = ""


def region_of(state: SearchState, constraint: Dominates) -> Region:
    """Return the region between parent and child, which are both bound, or the reason why it is not valid."""
    child, parent = state.user_node(constraint.child), state.user_node(constraint.parent)
    if child is None or parent is None or child is parent:
        return Region({}, child or parent, "is not a different node from the other")
    between: dict[ir.Node, None] = {}
    pending = [child]
    while pending:
        for value in _computed(state, pending.pop()):
            node = value.producer()
            if node is None or node is parent or node in between:
                continue
            if not state.matches_anew(constraint.path, value, any_output=True):
                return Region(between, node, "is not allowed on the path")
            between[node] = None
            pending.append(node)
    inside = {**between, child: None}
    reached = {parent}
    pending = [parent]
    while pending:
        for value in pending.pop().outputs:
            outside = [user for user in state.scope.users(value) if user not in inside]
            if outside or state.scope.leaves(value):
                return Region(between, value.producer(), "is used elsewhere too")
            fresh = [user for user in state.scope.users(value) if user not in reached]
            reached.update(fresh)
            pending.extend(user for user in fresh if user is not child)
    for node in inside:
        if node not in reached:
            return Region(between, node, "does not come from the parent")
    return Region(between)


def ancestors(state: SearchState, constraint: Dominates) -> Iterator[ir.Node]:
    """Nodes that might be the parent of a bound child, nearest first."""
    child = state.user_node(constraint.child)
    pending = [] if child is None else [child]
    seen = set(pending)
    for node in pending:
        for value in _computed(state, node):
            producer = value.producer()
            if producer is not None and producer not in seen:
                seen.add(producer)
                yield producer
                if state.trace is not None or state.matches_anew(constraint.path, value, any_output=True):
                    pending.append(producer)


def descendants(state: SearchState, constraint: Dominates) -> Iterator[ir.Node]:
    """Nodes that might be the child of a bound parent, nearest first."""
    parent = state.user_node(constraint.parent)
    pending = [] if parent is None else [parent]
    seen = set(pending)
    for node in pending:
        for value in node.outputs:
            for user in state.scope.users(value):
                if user in seen or not user.outputs:
                    continue
                seen.add(user)
                yield user
                if state.matches_anew(constraint.path, user.outputs[0], any_output=True):
                    pending.append(user)


def _computed(state: SearchState, node: ir.Node) -> Iterator[ir.Value]:
    """The operands of a node that other nodes of the scope compute; inputs and constants are left out."""
    for value in used_values(node):
        producer = value.producer()
        if producer is not None and producer.graph is state.scope.graph and not is_constant(value):
            yield value
