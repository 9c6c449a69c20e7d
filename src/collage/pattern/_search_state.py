"""The state of a search: which pattern lies where. Constraints are judged on it, and the solver changes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import onnx_ir as ir

from collage.pattern._base import Pattern
from collage.pattern._plan import Plan
from collage.pattern._scope import Scope

ABSENT = ir.Value(name="absent operand")
"""The binding of an operand that is not given."""


class Trace(Protocol):
    """Called with every failure of a search."""

    def note(self, state: SearchState, reason: str, pattern: Pattern, subject: Any, detail: Any) -> None:
        """Take note of one failure, while the state is the one that failed."""


class SearchState(ABC):
    """The assignments of a search so far, and the way back from them.

    Attributes:
        plan: The pattern that is looked for.
        scope: The graph that it is looked for in.
        trace: Called with every failure; None costs nothing.
        bound: The value of each pattern that has a place; of a node pattern, the node's first output.
        node_of: The node of each node pattern that has a place.
        claimed: The pattern that lies on a node.
        skipped: Nodes that an edge skips.
        between: Nodes that lie inside the match without a pattern.
        given: Patterns that an outer search bound.
        active: Patterns that take part.
        is_partial: True if a part of the match is looked for alone.
    """

    def __init__(self, plan: Plan, scope: Scope, trace: Trace | None, only: tuple[Pattern, ...] | None) -> None:
        self.plan, self.scope, self.trace = plan, scope, trace
        self.bound: dict[Pattern, ir.Value] = {}
        self.node_of: dict[Pattern, ir.Node] = {}
        self.claimed: dict[ir.Node, Pattern] = {}
        self.skipped: dict[ir.Node, None] = {}
        self.between: dict[ir.Node, None] = {}
        self.given: set[Pattern] = set()
        self.active: dict[Pattern, None] = dict.fromkeys(plan.always if only is None else only)
        self.is_partial = only is not None
        self._trail: list[tuple[dict[Any, Any], Any]] = []

    @abstractmethod
    def matches_anew(
        self, pattern: Pattern, value: ir.Value, any_output: bool = False, scope: Scope | None = None
    ) -> bool:
        """Return True if an inner pattern (refused, excluded, path) matches at a value, given what is bound already."""

    def note(self, reason: str, pattern: Pattern, subject: Any, detail: Any = None) -> None:
        """Record a failure, if an explanation is wanted."""
        if self.trace is not None:
            self.trace.note(self, reason, pattern, subject, detail)

    def skip(self, path: Iterable[ir.Node]) -> None:
        """Note nodes that an edge skips, on which no pattern may lie then."""
        for node in path:
            self._set(self.skipped, node, None)

    def enclose(self, region: Iterable[ir.Node]) -> None:
        """Note nodes that lie inside the match, whether patterns lie on them or not."""
        for node in region:
            self._set(self.between, node, None)

    def found(self) -> Iterator[tuple[Pattern, ir.Value]]:
        """Give the bindings of this search itself. Bindings that were given to it are judged by the outer search."""
        return ((pattern, value) for pattern, value in self.bound.items() if pattern not in self.given)

    @property
    def inside(self) -> dict[ir.Node, Any]:
        """All nodes of the match."""
        return {**self.claimed, **self.skipped, **self.between}

    def sources(self, pattern: Pattern) -> tuple[ir.Value, ...]:
        """The values that a bound pattern gives to its users: all outputs of a node, or the one value."""
        node = self.node_of.get(pattern)
        return (self.bound[pattern],) if node is None else tuple(node.outputs)

    def user_node(self, pattern: Pattern) -> ir.Node | None:
        """The node of a bound pattern that uses something."""
        return self.node_of.get(pattern) or self.bound[pattern].producer()

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        if key not in table:
            table[key] = value
            self._trail.append((table, key))

    def _undo(self, mark: int) -> None:
        while len(self._trail) > mark:
            table, key = self._trail.pop()
            del table[key]

    def _is_at(self, pattern: Pattern, value: ir.Value, any_output: bool) -> bool:
        """Return True if a bound pattern lies at a value."""
        node = self.node_of.get(pattern)
        return self.bound[pattern] is value or (any_output and node is not None and node is value.producer())
