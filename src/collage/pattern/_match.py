"""Matches of patterns, and the functions that find them."""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from collage._errors import PatternError
from collage.pattern import _domains, _symmetry
from collage.pattern._base import Pattern, PatternLike
from collage.pattern._nodes import OpPattern
from collage.pattern._plan import Plan, compile_pattern, is_node_pattern
from collage.pattern._scope import GraphLike, Scope, label, scope_of, scopes_of
from collage.pattern._search_state import ABSENT
from collage.pattern._solver import Agenda, Budget, MatchBudgetExceeded, Solver

SETS = "sets"
"""As ``all``, but of matches that differ only in the places of interchangeable patterns only one."""
MODES = ("all", SETS, "disjoint", "maximal")


class NotInMatch(PatternError, KeyError):
    """A match is asked for a name or a pattern that is not a part of it."""

    def __str__(self) -> str:
        return Exception.__str__(self)


@dataclass(frozen=True, eq=False, slots=True)
class Match:
    """The place of a pattern in a graph.

    Attributes:
        root: The value that the pattern's root matched.
        nodes: The matched nodes in the graph's order: those of node patterns, and those that were skipped or lie
            between a pattern and one that dominates it.
        captures: Values by the names given in the pattern.
        skipped: The nodes among ``nodes`` that no pattern of its own matched.
        scope: The graph, body or function it was found in.
        bound: The value of every pattern that takes part; of a node pattern, the node's first output.
        node_of: The node of every node pattern that takes part.
    """

    root: ir.Value
    nodes: tuple[ir.Node, ...]
    captures: Mapping[str, ir.Value]
    skipped: tuple[ir.Node, ...]
    scope: ir.Graph
    bound: Mapping[Pattern, ir.Value]
    node_of: Mapping[Pattern, ir.Node]

    def __getitem__(self, key: str | PatternLike) -> ir.Value:
        """The value of a capture or pattern; of a node, its first output.

        Raises:
            NotInMatch: No such name or pattern takes part in this match.
        """
        if isinstance(key, str):
            if key not in self.captures:
                raise NotInMatch(_no_capture(key, self.captures))
            return self.captures[key]
        if key.last not in self.bound:
            raise NotInMatch(f"{key!r} is not a part of {self!r}")
        return self.bound[key.last]

    def __contains__(self, key: object) -> bool:
        """True if a capture or pattern takes part. Those of other alternatives do not."""
        return key in self.captures or (isinstance(key, PatternLike) and key.last in self.bound)

    def node(self, pattern: PatternLike) -> ir.Node:
        """The node of a node pattern.

        Raises:
            NotInMatch: The pattern stands for a value, or is not a part of this match.
        """
        if isinstance(pattern, str):
            raise NotInMatch(f"node() takes a pattern; match[{pattern!r}].producer() is the node behind a name")
        if pattern.last not in self.node_of:
            why = "matches a value, not a node" if pattern.last in self.bound else f"is not a part of {self!r}"
            raise NotInMatch(f"{pattern!r} {why}")
        return self.node_of[pattern.last]

    def __repr__(self) -> str:
        return f"<match of {', '.join(f'{node.op_type} {label(node)!r}' for node in self.nodes)}>"


def _no_capture(name: str, captures: Mapping[str, ir.Value]) -> str:
    near = difflib.get_close_matches(name, captures, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(map(repr, captures)) or 'none'}"
    return f"no capture of this match is called {name!r}{hint}"


def match(
    pattern: PatternLike,
    at: ir.Node | ir.Value,
    fuzzy_ops: Iterable[str],
    budget: int | None,
    within: GraphLike | ir.Model | None,
) -> Match | None:
    """See ``PatternLike.match``."""
    if not isinstance(at, ir.Node | ir.Value):
        raise PatternError(
            f"match() asks about one node or value, not a {type(at).__name__}; find_all() searches a graph"
        )
    value = at.outputs[0] if isinstance(at, ir.Node) else at
    node = value.producer()
    graph = node.graph if node is not None else value.graph
    if graph is None:
        raise PatternError(f"{at!r} belongs to no graph, so its users are not known")
    plan = compile_pattern(pattern)
    scope = scope_of(graph, fuzzy_ops, within)
    # Only the set of nodes ranks a match, so that one order of interchangeable patterns is enough.
    orders = _symmetry.orders(plan, fixed=plan.root)
    solver = Solver(plan, scope, Budget(pattern, scope, budget), orders=orders)
    found = matches_at(solver, value, isinstance(at, ir.Node))
    return min(found, key=lambda m: _rank(m, solver.scope), default=None)


def find_all(
    pattern: PatternLike,
    where: GraphLike | ir.Model,
    mode: str,
    fuzzy_ops: Iterable[str],
    budget: int | None,
    within: GraphLike | ir.Model | None,
) -> list[Match]:
    """See ``PatternLike.find_all``."""
    if mode not in MODES:
        raise PatternError(f"unknown mode {mode!r}; known are {', '.join(MODES)}")
    plan = compile_pattern(pattern)
    found: list[Match] = []
    for scope in scopes_of(where, fuzzy_ops, within):
        found += find_in(plan, scope, mode, Budget(pattern, scope, budget))
    return found


def find_in(plan: Plan, scope: Scope, mode: str, budget: Budget) -> list[Match]:
    """All matches of a compiled pattern in one scope, in the graph's order; see ``PatternLike.find_all``."""
    found: list[Match] = []
    try:
        found.extend(iterate_in(plan, scope, mode, budget))
    except MatchBudgetExceeded as error:
        error.found = found
        raise
    return _select(found, mode, scope)


def iterate_in(
    plan: Plan, scope: Scope, mode: str, budget: Budget, barred: Container[ir.Node] = frozenset()
) -> Iterator[Match]:
    """Yield the matches of a compiled pattern in one scope as they are found.

    Args:
        plan: The pattern.
        scope: The scope.
        mode: ``all``, or another one for one order of what is interchangeable.
        budget: Search steps allowed.
        barred: Nodes that no pattern may lie on.
    """
    domains = _domains.find_domains(plan, scope)
    if domains is None or not all(_possible(part, plan, scope, domains, budget) for part in plan.parts()):
        return
    orders, rooms = None, None
    if mode != "all":
        orders, rooms = _symmetry.orders(plan), _symmetry.rooms(plan)
        domains = _domains.in_order(domains, _symmetry.classes(plan), scope)
    if barred:
        domains = {p: {node: None for node in nodes if node not in barred} for p, nodes in domains.items()}
        rooms = None  # They count nodes that are barred too.
    solver = Solver(plan, scope, budget, domains, orders=orders, rooms=rooms)
    yield from _matches(solver, _starts(solver, plan.always))


def matches_at(solver: Solver, value: ir.Value, any_output: bool = False) -> Iterator[Match]:
    """Matches with the pattern's root at a value, or, with ``any_output``, at the node that makes it."""
    return _matches(solver, [solver.start(solver.plan.root, value, any_output)])


def _matches(solver: Solver, starts: Iterable[Agenda]) -> Iterator[Match]:
    """Solutions as matches, one for each assignment of node patterns and root."""
    seen: set[tuple[object, ...]] = set()
    root, node_patterns = solver.plan.root, [p for p in solver.plan.order if isinstance(p, OpPattern)]
    for _ in solver.solutions(starts):
        key = (solver.bound[root], *map(solver.node_of.get, node_patterns))
        if key not in seen:
            seen.add(key)
            yield _match(solver)


def _match(solver: Solver) -> Match:
    ordered = tuple(sorted(solver.inside, key=solver.scope.position.__getitem__))
    bound = {p: v for p, v in solver.bound.items() if v is not ABSENT}
    return Match(
        root=solver.bound[solver.plan.root],
        nodes=ordered,
        captures={pattern.name: value for pattern, value in bound.items() if pattern.name},
        skipped=tuple(node for node in ordered if node not in solver.claimed),
        scope=solver.scope.graph,
        bound=bound,
        node_of=dict(solver.node_of),
    )


def _starts(solver: Solver, patterns: Iterable[Pattern]) -> list[Agenda]:
    """Give the beginnings of a search: the places of the pattern that has the fewest."""
    anchored = [p for p in patterns if p in solver.domains]
    if anchored:
        anchor = min(anchored, key=lambda p: len(solver.domains[p]))
    else:
        anchor = next((p for p in patterns if is_node_pattern(p)), next(iter(patterns)))
    return [solver.start(anchor, value, any_output) for value, any_output in solver.places(anchor)]


def _possible(
    part: tuple[Pattern, ...], plan: Plan, scope: Scope, domains: Mapping[Pattern, _domains.Domain], budget: Budget
) -> bool:
    """Return True if a part that nothing connects to the rest could match alone. If not, no combination is tried."""
    solver = Solver(plan, scope, budget, domains, only=part)
    return next(solver.solutions(_starts(solver, part)), part) is None


def ranked(found: Iterable[Match], scope: Scope) -> list[Match]:
    """Matches in the order in which they take precedence: larger ones first, then as the graph has them."""
    return sorted(found, key=lambda m: _rank(m, scope))


def _select(found: list[Match], mode: str, scope: Scope) -> list[Match]:
    if mode in ("all", SETS):
        return sorted(found, key=lambda m: _order(m, scope))
    found = ranked(found, scope)
    kept: list[Match] = []
    if mode == "disjoint":
        taken: set[ir.Node] = set()
        for candidate in found:
            if taken.isdisjoint(candidate.nodes):
                taken.update(candidate.nodes)
                kept.append(candidate)
    else:
        holders: dict[ir.Node, list[frozenset[ir.Node]]] = {}
        for candidate in found:
            nodes = frozenset(candidate.nodes)
            larger = holders.get(candidate.nodes[0], ()) if nodes else ()
            if not any(nodes <= other for other in larger):
                kept.append(candidate)
                for node in nodes:
                    holders.setdefault(node, []).append(nodes)
    return sorted(kept, key=lambda m: _order(m, scope))


def _order(found: Match, scope: Scope) -> tuple[tuple[int, ...], ...]:
    return tuple(scope.position[node] for node in reversed(found.nodes))


def _rank(found: Match, scope: Scope) -> tuple[int, tuple[tuple[int, ...], ...]]:
    return -len(found.nodes), _order(found, scope)
