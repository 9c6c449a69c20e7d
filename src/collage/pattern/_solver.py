"""The search: one assignment of patterns to nodes and values after another, with full backtracking.

The solver keeps an agenda of goals (a linked list) and a stack of choices. A goal fails, succeeds, or offers choices;
on failure the latest choice is taken back, whatever it was: an alternative, an operand order, a sibling, an optional
part. Nothing is committed, so what is found does not depend on the order in which things are tried. There is no
recursion over the pattern, so its size is not bounded by the interpreter's stack.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from collage._errors import PatternError
from collage.graph import used_values
from collage.pattern import _checks, _dominance
from collage.pattern._base import Pattern, PatternLike
from collage.pattern._constraints import OnlyUsedBy
from collage.pattern._nodes import (
    AbsentPattern,
    AndPattern,
    NotPattern,
    OpPattern,
    OrPattern,
    OutputPattern,
)
from collage.pattern._plan import Plan, is_node_pattern
from collage.pattern._scope import Scope
from collage.pattern._search_state import ABSENT, SearchState, Trace

Agenda = tuple[Any, ...]
Outcome = Agenda | Iterator[Agenda] | None


class MatchBudgetExceeded(PatternError):
    """The search for matches grew beyond its budget.

    Attributes:
        found: Matches found before.
    """

    found: list[Any]


class Budget:
    """The number of steps that a search may take.

    Args:
        pattern: The pattern to find.
        scope: The graph to search.
        steps: Steps allowed; None allows a second or two, and more in a large graph.
    """

    def __init__(self, pattern: PatternLike, scope: Scope, steps: int | None = None) -> None:
        self.steps = self.left = 200_000 + 300 * len(scope.graph) if steps is None else steps
        self.pattern = pattern

    def spend(self) -> None:
        """Take one step.

        Raises:
            MatchBudgetExceeded: There was none left.
        """
        self.left -= 1
        if self.left < 0:
            error = MatchBudgetExceeded(
                f"matching {self.pattern!r} took more than {self.steps} steps and was stopped. Patterns whose parts are "
                "not connected, or alike and interchangeable, have many assignments: connect them (^, >>, a common "
                "operand), look for fewer at a time, or raise the budget. Modes 'maximal' and 'disjoint' of find_all take one "
                "assignment of what is interchangeable."
            )
            error.found = []
            raise error


class Solver(SearchState):
    """One search over one scope.

    Args:
        plan: The pattern to find.
        scope: The graph to search.
        budget: Steps left, shared with inner searches.
        domains: Nodes that a pattern can lie on at all; patterns that are missing may lie anywhere.
        trace: Called with every failure; None costs nothing.
        only: Looks for these patterns alone; conditions that need a whole match are then not checked.
        orders: By pattern, pairs of patterns of which the first lies before the second in the graph.
        rooms: By pattern of a group that lies in order, a pattern that all of it use, its rank, and the group's size.
    """

    def __init__(
        self,
        plan: Plan,
        scope: Scope,
        budget: Budget,
        domains: Mapping[Pattern, Mapping[ir.Node, None]] | None = None,
        trace: Trace | None = None,
        only: tuple[Pattern, ...] | None = None,
        orders: Mapping[Pattern, list[tuple[Pattern, Pattern]]] | None = None,
        rooms: Mapping[Pattern, tuple[Pattern, int, int]] | None = None,
    ) -> None:
        super().__init__(plan, scope, trace, only)
        self.budget = budget
        self.domains = domains or {}
        self.orders = orders or {}
        self.rooms = (rooms or {}) if not scope.fuzzy_ops else {}

    # ------------------------------------------------------------------ the machine

    def solutions(self, starts: Iterable[Agenda]) -> Iterator[None]:
        """Run the search; at each yield, the attributes hold a solution."""
        choices: list[tuple[Iterator[Agenda], int]] = [(iter(starts), len(self._trail))]
        agenda: Agenda | None = None
        while choices:
            if agenda is None:
                remaining, mark = choices[-1]
                self._undo(mark)
                agenda = next(remaining, None)
                if agenda is None:
                    choices.pop()
                    continue
            self.budget.spend()
            outcome = self._step(agenda) if agenda else self._continue()
            if outcome == "solved":
                yield
                agenda = None
            elif outcome is None or isinstance(outcome, tuple):
                agenda = outcome
            else:
                choices.append((outcome, len(self._trail)))
                agenda = None

    def start(self, pattern: Pattern, value: ir.Value, any_output: bool = True) -> Agenda:
        """An agenda that begins with a pattern at a value."""
        return (("unify", pattern, value, any_output), ())

    def _refuse(self, reason: str, pattern: Pattern, subject: Any, detail: Any = None) -> Agenda | None:
        """End a goal that failed."""
        self.note(reason, pattern, subject, detail)
        return None

    def _step(self, agenda: Agenda) -> Outcome:
        goal, rest = agenda
        match goal:
            case ("unify", pattern, value, any_output):
                return self._unify(pattern, value, any_output, rest)
            case ("operand", pattern, value):
                return self._operand(pattern, value, rest)
            case ("lift", pattern, parts, value):
                node = next((self.node_of[part] for part in parts if part in self.node_of), None)
                return rest if self._bind(pattern, self.bound[parts[0]] if node else value, node) else None
            case ("gaps", pattern, operands, values):
                return self._gaps(pattern, operands, values, rest)
            case _:
                _, pattern, operands, values = goal
                return self._commute(pattern, operands, values, rest)

    # ------------------------------------------------------------------ a pattern meets a value

    def _unify(self, pattern: Pattern, value: ir.Value, any_output: bool, rest: Agenda) -> Outcome:
        if pattern in self.bound:
            if self._is_at(pattern, value, any_output):
                return rest
            return self._refuse("other place", pattern, value, self.bound[pattern])
        if isinstance(pattern, OrPattern):
            return self._alternatives(pattern, value, any_output, rest)
        if isinstance(pattern, AbsentPattern) != (value is ABSENT):
            return self._refuse("presence", pattern, value)
        if isinstance(pattern, OpPattern):
            return self._operator(pattern, value, any_output, rest)
        if isinstance(pattern, AndPattern):
            rest = (("lift", pattern, pattern.parts, value), rest)
            for part in reversed(pattern.parts):
                rest = (("unify", part, value, any_output), rest)
            return rest
        if isinstance(pattern, OutputPattern):
            return self._output(pattern, value, any_output, rest)
        if isinstance(pattern, NotPattern) and self._is_refused(pattern, value, any_output):
            return self._refuse("refused", pattern, value)
        return rest if self._bind(pattern, value, None) else None

    def _alternatives(self, pattern: OrPattern, value: ir.Value, any_output: bool, rest: Agenda) -> Iterator[Agenda]:
        for index, alternative in enumerate(pattern.alternatives):
            if self.trace is None and not self._is_plausible(alternative, value):
                continue
            for part in self.plan.chosen[pattern, index]:
                self._set(self.active, part, None)
            yield (
                ("unify", alternative, value, any_output),
                (("lift", pattern, (alternative,), value), rest),
            )

    def _is_plausible(self, alternative: Pattern, value: ir.Value) -> bool:
        """Return True if an alternative is worth opening. This saves most of the work that alternatives cause."""
        if not isinstance(alternative, OpPattern):
            return isinstance(alternative, OrPattern) or (value is ABSENT) == isinstance(alternative, AbsentPattern)
        node = value.producer()
        if node is None or not alternative.accepts_type(node):
            return False
        return bool(self.scope.fuzzy_ops) or alternative.fits_operands(self.scope.makers(node))

    def _output(self, pattern: OutputPattern, value: ir.Value, any_output: bool, rest: Agenda) -> Outcome:
        node = value.producer()
        if node is None:
            return self._refuse("no node", pattern, value)
        if isinstance(pattern.base, OpPattern) and not pattern.base.accepts_type(node):
            return self._refuse("type", pattern.base, node)
        if len(node.outputs) <= pattern.index:
            return self._refuse("output", pattern, value)
        if any_output:
            value = node.outputs[pattern.index]
        elif value.index() != pattern.index:
            return self._refuse("output", pattern, value)
        if not self._bind(pattern, value, None):
            return None
        return (("unify", pattern.base, node.outputs[0], True), rest)

    def _operator(self, pattern: OpPattern, value: ir.Value, any_output: bool, rest: Agenda) -> Outcome:
        node = value.producer()
        if node is None or node.graph is not self.scope.graph:
            return self._refuse("no node", pattern, value)
        if not any_output and value.index() != 0:
            return self._refuse("output", pattern, value)
        if not pattern.accepts_type(node):
            return self._refuse("type", pattern, node)
        holder = self.claimed.get(node)
        claim = self.plan.claims.get(pattern, pattern)
        if holder is not None and holder is not claim:
            return self._refuse("taken", pattern, node, holder)
        if pattern in self.domains and node not in self.domains[pattern]:
            return None
        self._set(self.claimed, node, claim)
        if not self._bind(pattern, node.outputs[0], node) or not self._is_in_order(pattern):
            return None
        if not self._leaves_room(pattern, node):
            return None
        return rest if pattern.operands is None else self._operands(pattern, node, rest)

    def _is_in_order(self, pattern: Pattern) -> bool:
        position, node_of = self.scope.position, self.node_of
        return all(
            position[node_of[first]] < position[node_of[second]]
            for first, second in self.orders.get(pattern, ())
            if first in node_of and second in node_of
        )

    def _leaves_room(self, pattern: OpPattern, node: ir.Node) -> bool:
        """Return True if the rest of the pattern's group finds enough users before and after a node."""
        hub, rank, size = self.rooms.get(pattern, (None, 0, 0))
        if hub is None or hub not in self.bound:
            return True
        users = dict.fromkeys(user for value in self.sources(hub) for user in self.scope.users(value))
        places = sorted(self.scope.position[user] for user in users if pattern.accepts_type(user))
        index = bisect_left(places, self.scope.position[node])
        return rank <= index <= len(places) - size + rank

    def _bind(self, pattern: Pattern, value: ir.Value, node: ir.Node | None) -> bool:
        producer = node or (None if value is ABSENT else value.producer())
        for predicate in pattern.predicates:
            if value is ABSENT or not predicate.test(self.scope, value, producer):
                self.note("predicate", pattern, node or value, predicate)
                return False
        self._set(self.bound, pattern, value)
        if node is not None:
            self._set(self.node_of, pattern, node)
        for constraint in self.plan.constraints.get(pattern, ()):
            if not _checks.holds(self, constraint):
                self.note("constraint", pattern, node or value, constraint)
                return False
        return True

    def _is_refused(self, pattern: NotPattern, value: ir.Value, any_output: bool) -> bool:
        return self.plan.is_closed(pattern.refused) and self.matches_anew(pattern.refused, value, any_output)

    def matches_anew(
        self, pattern: Pattern, value: ir.Value, any_output: bool = False, scope: Scope | None = None
    ) -> bool:
        """Return True if an inner pattern (refused, excluded, path) matches at a value, given the bindings so far."""
        if pattern in self.bound:
            return self._is_at(pattern, value, any_output)
        plan = self.plan.inner[pattern]
        inner = Solver(plan, scope or self.scope, self.budget)
        inner.given = {shared for shared in plan.order if shared in self.bound}
        for shared in plan.order:
            if shared in self.bound:
                inner.bound[shared] = self.bound[shared]
            if shared in self.node_of:
                inner.node_of[shared] = self.node_of[shared]
                inner.claimed[self.node_of[shared]] = plan.claims.get(shared, shared)
        return next(inner.solutions([inner.start(pattern, value, any_output)]), self) is None

    # ------------------------------------------------------------------ operands

    def _operands(self, pattern: OpPattern, node: ir.Node, rest: Agenda) -> Outcome:
        values = [ABSENT if value is None else value for value in node.inputs]
        while values and values[-1] is ABSENT:
            values.pop()
        operands = pattern.operands or ()
        patterns = pattern.children
        if len(values) > len(patterns) and not pattern.has_gaps:
            return self._refuse("operand count", pattern, node, len(values))
        values += [ABSENT] * (len(patterns) - len(values))
        if pattern.commutes(node) and len(values) > 1:
            return (("commute", pattern, patterns, tuple(values)), rest)
        if pattern.has_gaps:
            return (("gaps", pattern, operands, tuple(values)), rest)
        for operand, value in zip(reversed(patterns), reversed(values), strict=True):
            rest = (("operand", operand, value), rest)
        return rest

    def _operand(self, pattern: Pattern, value: ir.Value, rest: Agenda) -> Outcome:
        if not self.scope.fuzzy_ops or value is ABSENT:
            return self._unify(pattern, value, False, rest)
        return self._through(pattern, value, rest)

    def _through(self, pattern: Pattern, value: ir.Value, rest: Agenda) -> Iterator[Agenda]:
        for source, path in self.scope.upstream(value):
            self.skip(path)
            yield (("unify", pattern, source, False), rest)

    def _gaps(
        self, pattern: OpPattern, operands: tuple[Any, ...], values: tuple[ir.Value, ...], rest: Agenda
    ) -> Outcome:
        if not operands:
            return self._refuse("operand count", pattern, self.node_of[pattern]) if values else rest
        head, following = operands[0], operands[1:]
        if head is ...:
            needed = sum(operand is not ... for operand in following)
            return iter([(("gaps", pattern, following, values[n:]), rest) for n in range(len(values) - needed + 1)])
        if not values:
            return self._refuse("operand count", pattern, self.node_of[pattern])
        return (("operand", head, values[0]), (("gaps", pattern, following, values[1:]), rest))

    def _commute(
        self, pattern: OpPattern, operands: tuple[Pattern, ...], values: tuple[ir.Value, ...], rest: Agenda
    ) -> Outcome:
        if not operands:
            return rest
        are_plain = all(operand in self.plan.plain and operand not in self.bound for operand in operands)
        if are_plain and not self.scope.fuzzy_ops:  # which of them gets which value makes no other match
            for operand, value in zip(reversed(operands), reversed(values), strict=True):
                rest = (("operand", operand, value), rest)
            return rest
        distinct = [value for n, value in enumerate(values) if value not in values[:n]]
        fitting = {operand: [v for v in distinct if self._may_lie_on(operand, v)] for operand in operands}
        chosen = min(operands, key=lambda o: (o in self.plan.plain, len(fitting[o]), o not in self.bound))
        at = operands.index(chosen)
        others = operands[:at] + operands[at + 1 :]

        def without(value: ir.Value) -> tuple[ir.Value, ...]:
            index = values.index(value)
            return values[:index] + values[index + 1 :]

        return iter(
            [(("operand", chosen, v), (("commute", pattern, others, without(v)), rest)) for v in fitting[chosen]]
        )

    def _may_lie_on(self, operand: Pattern, value: ir.Value) -> bool:
        if self.trace is not None or self.scope.fuzzy_ops:
            return True
        known = self.bound.get(operand)
        return known is value if known is not None else self._is_plausible(operand, value)

    # ------------------------------------------------------------------ what is left to find

    def _continue(self) -> Any:
        best: tuple[Pattern, list[tuple[ir.Value, bool]]] | None = None
        unlinked: list[Pattern] = []
        for pattern in self.active:
            if pattern in self.bound:
                continue
            candidates = self._candidates(pattern)
            if candidates is None:
                unlinked.append(pattern)
            elif best is None or len(candidates) < len(best[1]):
                best = pattern, candidates
                if len(candidates) <= 1:
                    break
        if best is None and unlinked:
            best = min(((p, self.places(p)) for p in unlinked), key=lambda item: len(item[1]))
        if best is None:
            return "solved" if _checks.complete(self) else None
        pattern, candidates = best
        if not candidates:
            return self._refuse("nothing near", pattern, None)
        return iter([self.start(pattern, value, any_output) for value, any_output in candidates])

    def places(self, pattern: Pattern) -> list[tuple[ir.Value, bool]]:
        """Return the places in the whole scope at which a pattern may lie."""
        if pattern in self.domains:
            return [(node.outputs[0], True) for node in self.domains[pattern] if node not in self.claimed]
        if is_node_pattern(pattern):
            return [(node.outputs[0], True) for node in self.scope.nodes if node.outputs]
        return [(value, False) for value in self.scope.values]

    def _candidates(self, pattern: Pattern) -> list[tuple[ir.Value, bool]] | None:
        """Return the places at which a pattern may lie beside its bound neighbours, None without such neighbours."""
        if isinstance(pattern, OutputPattern) and pattern.base in self.node_of:
            outputs = self.node_of[pattern.base].outputs
            return [(value, False) for value in outputs[pattern.index : pattern.index + 1]]
        if isinstance(pattern, AndPattern):
            for part in pattern.parts:
                if part in self.bound:
                    return [(self.bound[part], part in self.node_of)]
        found: list[tuple[ir.Value, bool]] | None = None
        for near in self._near(pattern):
            if found is None or len(near) < len(found):
                found = near
        return found

    def _near(self, pattern: Pattern) -> Iterator[list[tuple[ir.Value, bool]]]:
        for edge in self.plan.edges(pattern):
            if edge.user is pattern and edge.producer in self.bound:
                users = dict.fromkeys(user for user, _ in self.scope.downstream(self.sources(edge.producer)))
                if isinstance(edge, OnlyUsedBy) and len(users) > 1 and not self.scope.fuzzy_ops:
                    users.clear()
                yield self._at_nodes(pattern, users)
            elif edge.producer is pattern and edge.user in self.bound:
                node = self.user_node(edge.user)
                yield [] if node is None else self._at_operands(pattern, node)
        for domination in self.plan.dominations(pattern):
            if domination.parent is pattern and domination.child in self.bound:
                yield self._at_nodes(pattern, _dominance.ancestors(self, domination))
            elif domination.child is pattern and domination.parent in self.bound:
                yield self._at_nodes(pattern, _dominance.descendants(self, domination))
        if isinstance(pattern, OpPattern):
            for child in pattern.children:
                if child in self.bound and self.bound[child] is not ABSENT:
                    users = dict.fromkeys(user for user, _ in self.scope.downstream((self.bound[child],)))
                    yield self._at_nodes(pattern, users)

    def _at_nodes(self, pattern: Pattern, nodes: Iterable[ir.Node]) -> list[tuple[ir.Value, bool]]:
        if is_node_pattern(pattern):
            domain = self.domains.get(pattern)
            return [(n.outputs[0], True) for n in nodes if n not in self.claimed and (domain is None or n in domain)]
        return [(value, False) for node in nodes for value in node.outputs]

    def _at_operands(self, pattern: Pattern, node: ir.Node) -> list[tuple[ir.Value, bool]]:
        values = dict.fromkeys(v for used in used_values(node) for v, _ in self.scope.upstream(used))
        if not is_node_pattern(pattern):
            return [(value, True) for value in values]
        producers = dict.fromkeys(p for value in values if (p := value.producer()) is not None)
        return self._at_nodes(pattern, producers)
