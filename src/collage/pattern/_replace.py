"""Putting a replacement in place of a match: everything is checked first, then nothing can fail.

All external uses must be satisfied. Cycles, order, types, names, and operators that the opset does not have are checked
too: other rewriters pay for the absence of these checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from collage._errors import PatternError
from collage.graph import constant_tensor, used_values
from collage.pattern import _operators
from collage.pattern._builder import Builder, NotApplicable
from collage.pattern._constants import settle
from collage.pattern._match import Match
from collage.pattern._scope import Scope, label
from collage.pattern._types import Fact, Found, Types, conclude, refused_if_invalid

RULE_KEY = "collage.rewrite.rule"
"""Metadata of new nodes: the rule that made them."""
SOURCE_KEY = "collage.rewrite.from"
"""Metadata of new nodes: names of the nodes that they replace, comma-separated."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A checked replacement.

    Attributes:
        graph: The graph that changes.
        new_nodes: Nodes to add, in order.
        constants: Initializers to add.
        replaced: New values by old ones.
        removed: Nodes to take out.
        after: The last node of the graph that the new nodes depend on, None if on none.
        breaks_order: True if a user of a replaced value comes before that node in the graph.
        found: The known facts about the new values, in each context of the graph.
        imports: Versions of the domains of the new nodes.
    """

    graph: ir.Graph
    new_nodes: tuple[ir.Node, ...]
    constants: tuple[ir.Value, ...]
    replaced: Mapping[ir.Value, ir.Value]
    removed: tuple[ir.Node, ...]
    after: ir.Node | None
    breaks_order: bool
    found: Found
    imports: Mapping[str, int]

    @property
    def touched(self) -> set[ir.Value]:
        """Values whose maker or users the edit changes."""
        inputs = (v for node in (*self.new_nodes, *self.removed) for v in node.inputs if v is not None)
        return {*self.replaced, *inputs, *(v for node in self.removed for v in node.outputs)}


def plan_edit(
    match: Match,
    builder: Builder,
    replaced: Mapping[ir.Value, ir.Value],
    scope: Scope,
    types: Types,
    *,
    keeps_used_nodes: bool,
) -> Edit:
    """Check a replacement.

    Raises:
        NotApplicable: It would make a wrong or invalid model; the message has the reason.
        PatternError: It uses a value that is neither in the graph nor built by the callback.
    """
    inside = dict.fromkeys(match.nodes)
    for old in replaced:
        if old.producer() not in inside:
            raise NotApplicable(f"value {old.name!r} is to be replaced, but no matched node makes it")
    builder.keep_only(replaced.values())
    _check_visible(builder, replaced, scope)
    imports = dict(scope.opset_imports)
    for domain in dict.fromkeys(node.domain for node in builder.nodes):
        imports.setdefault(domain, _operators.version_of(domain, imports))
    for node in builder.nodes:
        _check_operator(node, imports)
    replaced = _with_typed_constants(builder, replaced, imports, scope, types)
    removed = _removable(match, builder, replaced, scope)
    if not keeps_used_nodes:
        _check_external_uses(match, builder, replaced, removed, scope)
    for old, new in replaced.items():
        if new.producer() in removed:
            raise NotApplicable(f"value {new.name!r}, which replaces {old.name!r}, is itself removed")
    after = _check_order(builder, replaced, removed, scope)
    users = [u for old in replaced for u in scope.users(old) if u in scope.position and u not in removed]
    breaks_order = after is not None and any(scope.position[u] <= scope.position[after] for u in users)
    found = conclude(types, builder.nodes, replaced, scope, imports)
    nodes, constants = tuple(builder.nodes), tuple(builder.constants)
    return Edit(scope.graph, nodes, constants, replaced, removed, after, breaks_order, found, imports)


def _with_typed_constants(
    builder: Builder, replaced: Mapping[ir.Value, ir.Value], imports: Mapping[str, int], scope: Scope, types: Types
) -> Mapping[ir.Value, ir.Value]:
    if not builder.plain:
        return replaced
    context = types.contexts(scope)[0]
    made = {value for node in builder.nodes for value in node.outputs}
    known: dict[int, Mapping[ir.Value, Fact]] = {}

    def dtype_of(value: ir.Value, count: int) -> ir.DataType | None:
        if value not in made:
            return context.of(value).dtype
        if count not in known:
            with refused_if_invalid("the new nodes are not valid"):
                known[count] = types.infer(builder.nodes[:count], context, imports)
        return known[count].get(value, Fact()).dtype

    replaced = settle(builder, replaced, imports, dtype_of)
    builder.keep_only(replaced.values())
    return replaced


def commit(
    edit: Edit,
    rule: str,
    opset_imports: Iterable[dict[str, int]],
    fresh: Callable[[str], str],
    scope: Scope,
    has_initializers: bool,
) -> Scope:
    """Carries out a checked replacement. Returns a scope of the changed graph."""
    graph = edit.graph
    sources = ",".join(label(node) for node in edit.removed)
    nodes = list(edit.new_nodes)
    replaced = dict(edit.replaced)
    _learn(edit, scope)
    for old, new in edit.replaced.items():
        if old.is_graph_output() and not _can_take_name(new, nodes, replaced):
            copy = ir.Value(name=fresh(f"{rule}_output"), type=old.type, shape=old.shape)
            nodes.append(ir.Node("", "Identity", [new], outputs=[copy], name=fresh(f"{rule}_Identity")))
            replaced[old] = copy
    if scope.is_function or not has_initializers:
        nodes[:0] = [_constant_node(value, fresh) for value in edit.constants]
    else:
        for constant in edit.constants:
            graph.register_initializer(constant)
    for node in nodes:
        node.metadata_props.update({RULE_KEY: rule, SOURCE_KEY: sources})
        for imports in opset_imports:
            imports.setdefault(node.domain, edit.imports.get(node.domain, 1))
    if edit.after is not None:
        graph.insert_after(edit.after, nodes)
    elif len(graph):
        graph.insert_before(graph[0], nodes)
    _redirect(replaced, set(nodes), graph, fresh)
    read = dict.fromkeys(value for node in edit.removed for value in used_values(node))
    graph.remove(edit.removed, safe=True)
    removed = [*edit.removed, *_remove_unread(read, graph)]
    if edit.breaks_order:
        graph.sort()
        return scope.renewed()
    scope.record(edit.after, nodes, removed, {*edit.touched, *(v for node in nodes for v in node.outputs)})
    return scope


def _learn(edit: Edit, scope: Scope) -> None:
    """Enter the inferred types and shapes of new values; declared types of outputs stay."""
    for context, facts in edit.found:
        context.known.update(facts)
    if len(edit.found) == 1 and not scope.outermost.is_function:
        ((_, facts),) = edit.found
        for value in (value for node in edit.new_nodes for value in node.outputs):
            fact = facts.get(value, Fact())
            value.type = value.type or fact.type
            value.shape = fact.shape if value.shape is None else value.shape


def _remove_unread(values: Iterable[ir.Value], graph: ir.Graph) -> list[ir.Node]:
    """Take out constants that nothing reads any more. Returns the Constant nodes among them."""
    removed: list[ir.Node] = []
    for value in values:
        if value.uses() or value.is_graph_output() or constant_tensor(value) is None:
            continue
        node = value.producer()
        if node is None and value.graph is not None:
            del value.graph.initializers[str(value.name)]
        elif node is not None and node.graph is graph:
            removed.append(node)
    graph.remove(removed, safe=True)
    return removed


def _constant_node(value: ir.Value, fresh: Callable[[str], str]) -> ir.Node:
    assert value.const_value is not None
    content = ir.AttrTensor("value", value.const_value)
    return ir.Node("", "Constant", [], [content], outputs=[value], name=fresh(f"{value.name}_Constant"))


def _redirect(
    replaced: Mapping[ir.Value, ir.Value], new_nodes: set[ir.Node], graph: ir.Graph, fresh: Callable[[str], str]
) -> None:
    for old, new in replaced.items():
        for user, index in old.uses():
            if user not in new_nodes:
                user.replace_input_with(index, new)
        if old.is_graph_output():
            name = old.name
            old.name = fresh(f"{name}_replaced")
            new.name = name
            new.type = old.type or new.type
            new.shape = new.shape if old.shape is None else old.shape.copy()
            owner = old.graph or graph
            owner.outputs[:] = [new if value is old else value for value in owner.outputs]


def _can_take_name(new: ir.Value, nodes: list[ir.Node], replaced: Mapping[ir.Value, ir.Value]) -> bool:
    made_here = new.producer() in nodes
    return made_here and not new.is_graph_output() and list(replaced.values()).count(new) == 1


def _check_visible(builder: Builder, replaced: Mapping[ir.Value, ir.Value], scope: Scope) -> None:
    built = {*builder.constants, *(value for node in builder.nodes for value in node.outputs)}
    for value in (*(v for node in builder.nodes for v in node.inputs if v is not None), *replaced.values()):
        if value not in built and not scope.sees(value):
            raise PatternError(
                f"rule {builder.label!r} uses value {value.name!r}, which is not in this graph; "
                "take values from the match, or make them with op"
            )


def _check_operator(node: ir.Node, imports: Mapping[str, int]) -> None:
    """Refuses nodes that the opset does not know in this form."""
    if not _operators.is_standard(node.domain):
        return
    schema = _operators.schema_of(node, imports)
    version = imports[node.domain] if node.domain in imports else _operators.version_of(node.domain, imports)
    if schema is None or schema.deprecated:
        of = f" of {node.domain}" if node.domain else ""
        raise NotApplicable(f"opset {version}{of} of the model has no operator {node.op_type}")
    operator = f"{node.op_type} of opset {version}"
    unknown = sorted(set(node.attributes) - set(schema.attributes))
    missing = sorted(name for name, a in schema.attributes.items() if a.required and name not in node.attributes)
    if unknown:
        raise NotApplicable(f"{operator} has no attribute {unknown[0]!r}")
    if missing:
        raise NotApplicable(f"{operator} needs the attribute {missing[0]!r}")
    for name, attribute in node.attributes.items():
        wanted = schema.attributes[name].type.name
        if attribute.type.name != wanted:
            raise NotApplicable(f"attribute {name!r} of {operator} is of type {wanted}, not {attribute.type.name}")
    if not schema.min_input <= len(node.inputs) <= schema.max_input:
        raise NotApplicable(f"{operator} does not take {len(node.inputs)} operands")
    for index, (formal, value) in enumerate(zip(schema.inputs, node.inputs, strict=False)):
        if value is None and formal.option != onnx.defs.OpSchema.FormalParameterOption.Optional:
            raise NotApplicable(f"operand {index} of {operator}, {formal.name}, may not be absent")
    if not schema.min_output <= len(node.outputs) <= schema.max_output:
        raise NotApplicable(f"{operator} does not give {len(node.outputs)} outputs")


def _removable(
    match: Match, builder: Builder, replaced: Mapping[ir.Value, ir.Value], scope: Scope
) -> tuple[ir.Node, ...]:
    """Return matched nodes that are unused once the replaced values are redirected, users first."""
    gone: dict[ir.Node, None] = {}
    new_nodes = set(builder.nodes)
    kept_values = {value for node in new_nodes for value in node.inputs} | set(replaced.values())
    for node in reversed(match.nodes):
        needed = False
        for value in node.outputs:
            users = [user for user in scope.users(value) if user not in gone and user not in new_nodes]
            is_used = bool(users) or value.is_graph_output()
            needed |= value in kept_values or (value not in replaced and is_used)
        if not needed:
            gone[node] = None
    return tuple(gone)


def _check_external_uses(
    match: Match,
    builder: Builder,
    replaced: Mapping[ir.Value, ir.Value],
    removed: tuple[ir.Node, ...],
    scope: Scope,
) -> None:
    wanted = {value for node in builder.nodes for value in node.inputs} | set(replaced.values())
    inside = {*match.nodes, *builder.nodes}
    for node in match.nodes:
        if node in removed or any(value in wanted for value in node.outputs):
            continue
        for value in node.outputs:
            outside = [label(user) for user in scope.users(value) if user not in inside]
            outside += ["the graph's outputs"] if value.is_graph_output() else []
            if outside and value not in replaced:
                raise NotApplicable(f"value {value.name!r} of {label(node)!r} is used by {', '.join(outside)} too")


def _check_order(
    builder: Builder, replaced: Mapping[ir.Value, ir.Value], removed: tuple[ir.Node, ...], scope: Scope
) -> ir.Node | None:
    """Find the last node that the new ones need, and refuse cycles.

    Raises:
        NotApplicable: A new node would depend on itself; names the way.
    """
    new_nodes = set(builder.nodes)
    needed = [
        producer
        for value in (*(v for n in builder.nodes for v in used_values(n)), *replaced.values())
        if (producer := value.producer()) is not None and producer in scope.position
    ]
    gone = set(removed)
    horizon = min((scope.position[p] for old in replaced if (p := old.producer()) is not None), default=(0,))

    def before(node: ir.Node) -> Iterator[ir.Node]:
        for value in used_values(node):
            current = value if node in new_nodes else replaced.get(value, value)
            producer = current.producer()
            if producer in new_nodes or (producer is not None and scope.position.get(producer, ()) >= horizon):
                yield producer

    done: set[ir.Node] = set()
    existing = (p for value in replaced.values() if (p := value.producer()) is not None and p in scope.position)
    for start in dict.fromkeys((*builder.nodes, *existing)):
        if start in done:
            continue
        stack = [(start, before(start))]
        path = {start}
        while stack:
            node, remaining = stack[-1]
            following = next((n for n in remaining if n not in done and n not in gone), None)
            if following is None:
                done.add(node)
                path.discard(node)
                stack.pop()
            elif following in path:
                way = " <- ".join(label(n) for n, _ in stack)
                raise NotApplicable(f"the new nodes would depend on themselves: {label(following)} <- {way}"[:500])
            else:
                path.add(following)
                stack.append((following, before(following)))
    alive = [node for node in needed if node not in gone]
    return max(alive, key=scope.position.__getitem__, default=None)
