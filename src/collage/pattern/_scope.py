"""One graph as the matcher sees it: users of values, the order of nodes, and the nodes between them.

A scope is a graph, the body of a control-flow node, or a function. Patterns match inside one scope. A use inside a
nested body counts as a use by the node that owns the body. A use in a graph around the scope, or in a body beside it,
counts as a use outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import onnx_ir as ir

from collage._errors import PatternError
from collage.graph import bodies
from collage.pattern import _operators

GraphLike = ir.Graph | ir.Function
Path = tuple[ir.Node, ...]


class Scope:
    """A read-only view of one graph or function.

    Args:
        graph: The graph to look at. It must not change while the scope is in use, unless ``record`` is told.
        fuzzy_ops: Operator types that an edge may skip, such as ``Cast``, or ``domain::type`` for other domains.
        outer: For a body, the scope around it.
    """

    def __init__(self, graph: GraphLike, fuzzy_ops: Iterable[str] = (), outer: Scope | None = None) -> None:
        self.graph = graph.graph if isinstance(graph, ir.Function) else graph
        self._given = graph
        self._outer = outer
        around = {} if outer is None else outer.opset_imports  # bodies have no imports of their own
        self.opset_imports: dict[str, int] = self.graph.opset_imports or around
        self.fuzzy_ops = frozenset([fuzzy_ops] if isinstance(fuzzy_ops, str) else fuzzy_ops)
        for op_type in self.fuzzy_ops:
            if not isinstance(op_type, str):
                raise PatternError(f"fuzzy_ops are operator types such as 'Cast', not {op_type!r}")
        self._attributes: dict[ir.Node, dict[str, Any]] = {}
        self._makers: dict[ir.Node, tuple[ir.Node, ...]] = {}
        self._users: dict[ir.Value, tuple[ir.Node, ...]] = {}
        self._changes = 0

    def renewed(self) -> Scope:
        """A scope of the same graph as it is now."""
        return Scope(self._given, self.fuzzy_ops, self._outer)

    @property
    def outermost(self) -> Scope:
        """The scope of the main graph or function that this one belongs to."""
        return self if self._outer is None else self._outer.outermost

    @property
    def is_function(self) -> bool:
        """True if this is a function, which holds no initializers."""
        return isinstance(self._given, ir.Function)

    def sees(self, value: ir.Value) -> bool:
        """Return True if nodes of this graph may use a value: one of this graph, or of one around it."""
        return home_of(value) is self.graph or (self._outer is not None and self._outer.sees(value))

    @cached_property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes in a topological order: the graph's own order where that is one."""
        listed = tuple(self.graph)
        seen: set[ir.Node] = set()
        for node in listed:
            if any(p is not None and p.graph is node.graph and p not in seen for p in node.predecessors()):
                return _sorted(listed)
            seen.add(node)
        return listed

    @cached_property
    def position(self) -> dict[ir.Node, tuple[int, ...]]:
        """Sort keys of the nodes in the order of ``nodes``."""
        return {node: (index,) for index, node in enumerate(self.nodes)}

    def record(
        self,
        after: ir.Node | None,
        added: Sequence[ir.Node],
        removed: Sequence[ir.Node],
        touched: Iterable[ir.Value],
    ) -> None:
        """Follows a change of the graph: nodes put in after another (or first), nodes taken out, values touched."""
        self._changes += 1
        base = (-1,) if after is None else self.position[after]
        for index, node in enumerate(added):
            self.position[node] = (*base, -self._changes, index)
        for node in removed:
            del self.position[node]
        for value in touched:
            self._users.pop(value, None)
        self._makers.clear()
        for stale in ("nodes", "by_type", "values", "_owners", "_body_outputs"):
            self.__dict__.pop(stale, None)

    @cached_property
    def by_type(self) -> Mapping[tuple[str, str], list[ir.Node]]:
        """Nodes by (domain, operator type)."""
        index: dict[tuple[str, str], list[ir.Node]] = {}
        for node in self.nodes:
            index.setdefault((_operators.normal_domain(node.domain), node.op_type), []).append(node)
        return index

    @cached_property
    def values(self) -> tuple[ir.Value, ...]:
        """Every value that can be seen by name in this graph: inputs, initializers, then results."""
        found = dict.fromkeys((*self.graph.inputs, *self.graph.initializers.values()))
        for node in self.nodes:
            found.update(dict.fromkeys(value for value in node.inputs if value is not None))
            found.update(dict.fromkeys(value for value in node.outputs if value.name != "" or value.uses()))
        return tuple(found)

    @cached_property
    def _owners(self) -> Mapping[Any, ir.Node]:
        owners: dict[Any, ir.Node] = {}
        for node in self.graph:
            for body in bodies(node):
                owners[body] = node
                owners.update(dict.fromkeys(body.subgraphs(), node))
        return owners

    @cached_property
    def _body_outputs(self) -> Mapping[ir.Value, list[ir.Node]]:
        found: dict[ir.Value, list[ir.Node]] = {}
        for body, owner in self._owners.items():
            for value in body.outputs:
                found.setdefault(value, []).append(owner)
        return found

    def users(self, value: ir.Value) -> tuple[ir.Node, ...]:
        """Nodes of this scope that use a value, each once, in order; captured values are used by the body's owner."""
        found = self._users.get(value)
        if found is None:
            users: dict[ir.Node, None] = {}
            for use in value.uses():
                owner = self._owner(use.node)
                if owner is not None:
                    users[owner] = None
            if value.is_graph_output() and value not in self.graph.outputs:
                users.update(dict.fromkeys(self._body_outputs.get(value, ())))
            found = tuple(users if len(users) < 2 else sorted(users, key=self.position.__getitem__))
            self._users[value] = found
        return found

    def _owner(self, node: ir.Node) -> ir.Node | None:
        if node.graph is self.graph:
            return node
        return self._owners.get(node.graph)

    def makers(self, node: ir.Node) -> tuple[ir.Node, ...]:
        """The nodes that make a node's operands."""
        found = self._makers.get(node)
        if found is None:
            made = (value.producer() for value in node.inputs if value is not None)
            found = self._makers[node] = tuple(maker for maker in made if maker is not None)
        return found

    def outsiders(self, value: ir.Value) -> tuple[ir.Node, ...]:
        """Nodes that use a captured value elsewhere: in the graphs around this one, or in other bodies of theirs."""
        if home_of(value) is self.graph:
            return ()
        users = dict.fromkeys(use.node for use in value.uses() if use.node.graph is not None)
        return tuple(user for user in users if self._owner(user) is None)

    def leaves(self, value: ir.Value) -> bool:
        """Return True if a value is an output of this graph, or of one that is not inside this one."""
        return value.is_graph_output() and value.graph not in self._owners

    def of(self, node: ir.Node) -> Scope:
        """Return the scope of a node's own graph, which may be another one than this."""
        scope: Scope | None = self
        while scope is not None and scope.graph is not node.graph:
            scope = scope._outer
        return scope or (self if node.graph is None else scope_of(node.graph, self.fuzzy_ops))

    def attributes(self, node: ir.Node) -> dict[str, Any]:
        """The node's attributes with defaults applied."""
        found = self._attributes.get(node)
        if found is None:
            found = self._attributes[node] = _operators.attributes(node, self.opset_imports)
        return found

    def skips(self, node: ir.Node, value: ir.Value) -> bool:
        """Return True if an edge may skip a node on its way from this operand of the node."""
        return value in self._passed_on(node)

    def _passed_on(self, node: ir.Node | None) -> tuple[ir.Value, ...]:
        """The operands whose content a skippable node passes on: the first one, or all if they commute."""
        if node is None or not self.fuzzy_ops or _spelled(node) not in self.fuzzy_ops:
            return ()
        operands = node.inputs if _operators.commutes(node) else node.inputs[:1]
        return tuple(operand for operand in operands if operand is not None)

    def upstream(self, value: ir.Value) -> Iterator[tuple[ir.Value, Path]]:
        """The value itself, then the values before the skippable nodes that made it; nearer ones first."""
        found: dict[ir.Value, Path] = {value: ()}
        pending = [value]
        for current in pending:
            yield current, found[current]
            node = current.producer()
            if node is None or node.graph is not self.graph or current.index() != 0:
                continue
            for operand in self._passed_on(node):
                if operand not in found:
                    found[operand] = (*found[current], node)
                    pending.append(operand)

    def downstream(self, values: Iterable[ir.Value]) -> Iterator[tuple[ir.Node, Path]]:
        """Each user of the values with the skippable nodes between; nearer users first."""
        found: dict[ir.Value, Path] = dict.fromkeys(values, ())
        pending = list(found)
        for value in pending:
            for user in self.users(value):
                yield user, found[value]
                if self.skips(user, value) and user.outputs[0] not in found:
                    found[user.outputs[0]] = (*found[value], user)
                    pending.append(user.outputs[0])


def _spelled(node: ir.Node) -> str:
    domain = _operators.normal_domain(node.domain)
    return f"{domain}::{node.op_type}" if domain else node.op_type


def scopes_of(
    where: GraphLike | ir.Model, fuzzy_ops: Iterable[str] = (), within: GraphLike | ir.Model | None = None
) -> Iterator[Scope]:
    """One graph or function; of a model the main graph, functions, and every body nested in them, outer ones first."""
    if not isinstance(where, ir.Model | ir.Graph | ir.Function):
        hint = "; ir.from_proto() makes one of it" if hasattr(where, "SerializeToString") else ""
        raise PatternError(
            f"patterns match in an onnx_ir Model, Graph or Function, not in a {type(where).__name__}{hint}"
        )
    if not isinstance(where, ir.Model):
        yield scope_of(where, fuzzy_ops, within)
        return
    tops: list[GraphLike] = [where.graph, *where.functions.values()]
    for top in tops:
        yield from _nested(Scope(top, fuzzy_ops))


def scope_of(graph: GraphLike, fuzzy_ops: Iterable[str] = (), within: GraphLike | ir.Model | None = None) -> Scope:
    """Return the scope of one graph together with the scopes around it.

    Args:
        graph: The graph, body or function.
        fuzzy_ops: Operator types that an edge may skip.
        within: A model or graph that holds it. Without one, graphs around a body are found by what it captures: a body
            has no link to its owner.

    Raises:
        PatternError: ``within`` does not hold the graph.
    """
    own = graph.graph if isinstance(graph, ir.Function) else graph
    around = _outermost(own) if within is None else within
    if around is own:
        return Scope(graph, fuzzy_ops)
    for scope in scopes_of(around, fuzzy_ops) if isinstance(around, ir.Model) else _nested(Scope(around, fuzzy_ops)):
        if scope.graph is own:
            return scope
    if within is None:
        return Scope(graph, fuzzy_ops)
    raise PatternError(f"{own.name!r} is not a graph, body or function of the model that is given as within=")


def _outermost(graph: ir.Graph) -> ir.Graph:
    """The graph itself, or the outermost graph that it captures values from, directly or by way of others."""
    while True:
        own = {graph, *graph.subgraphs()}
        used = (value for node in graph.all_nodes() for value in node.inputs)
        outputs = (value for body in own for value in body.outputs)
        outer = (home_of(value) for value in chain(used, outputs) if value is not None)
        found = next((other for other in outer if other is not None and other not in own), None)
        if found is None:
            return graph
        graph = found


def _nested(scope: Scope) -> Iterator[Scope]:
    yield scope
    for node in scope.graph:
        for body in bodies(node):
            yield from _nested(Scope(body, scope.fuzzy_ops, scope))


def _sorted(listed: tuple[ir.Node, ...]) -> tuple[ir.Node, ...]:
    """A topological order that keeps the listed order where it can; nodes on a cycle come last."""
    order: dict[ir.Node, None] = {}
    own = set(listed)
    for start in listed:
        stack: list[tuple[ir.Node, Iterator[ir.Node]]] = [(start, iter(start.predecessors()))]
        entered = {start}
        while stack and start not in order:
            node, remaining = stack[-1]
            following = next((p for p in remaining if p in own and p not in order and p not in entered), None)
            if following is None:
                order[node] = None
                stack.pop()
            else:
                entered.add(following)
                stack.append((following, iter(following.predecessors())))
    return tuple(order)


def home_of(value: ir.Value) -> ir.Graph | None:
    """Return the graph that defines a value. ``value.graph`` is the graph that has it as an output, if there is one."""
    producer = value.producer()
    return value.graph if producer is None else producer.graph


def label(node: ir.Node) -> str:
    """The node's name; without one, that of its first output."""
    return node.name or next((value.name for value in node.outputs if value.name), "") or "?"
