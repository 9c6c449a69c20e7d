"""Types and shapes of the nodes that a rule builds: ONNX's own inference finds them, before anything is put into the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from collage._errors import ModelError
from collage.frontend import infer_shapes, inferable, is_contributed
from collage.graph import all_nodes, needed_functions, used_values
from collage.pattern._builder import NotApplicable
from collage.pattern._facts import Fact, claim_of
from collage.pattern._operators import is_standard, type_fault
from collage.pattern._scope import Scope
from collage.pattern._type_request import TypeRequest, resolved

_KEPT_BYTES = 1 << 16
"""Of larger models the answer of inference is not kept."""


@dataclass(slots=True, eq=False)
class Context:
    """One way in which a graph is run: the main graph by itself, a function by one of its calls.

    Attributes:
        graph: The main graph, or that of the function.
        known: The facts that follow from the inputs.
        attributes: Values of the function's attributes, by name.
        is_valid: True if ONNX's inference finds no fault in the graph as it is; None as long as it was not asked.
    """

    graph: ir.Graph
    known: dict[ir.Value, Fact] = field(default_factory=dict)
    attributes: Mapping[str, ir.Attr] = field(default_factory=dict)
    is_valid: bool | None = None

    def of(self, value: ir.Value) -> Fact:
        """Return the inferred type and shape of a value, completed by those that it states."""
        return self.known.get(value, Fact()).refined(claim_of(value))


Found = tuple[tuple[Context, Mapping[ir.Value, Fact]], ...]
"""Facts that inference found about the values of a replacement, in every context."""


class Types:
    """Types and shapes in one model that is being rewritten.

    Args:
        model: The model.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._contexts: dict[ir.Graph, list[Context]] = {}
        self._answers: dict[tuple[bytes, bool], onnx.GraphProto] = {}

    def contexts(self, scope: Scope) -> list[Context]:
        """Return the contexts of a scope: one for the main graph, one for each kind of call of a function."""
        return self._contexts_of(scope.outermost.graph, frozenset())

    def is_foreign(self, node: ir.Node, imports: Mapping[str, int]) -> bool:
        """Return True for an operator of whose results nothing follows: ONNX does not know it, nor does the model."""
        known = is_standard(node.domain) or node.op_identifier() in self.model.functions
        return not known and not is_contributed(node.domain, node.op_type, imports.get("", 0))

    def forget_calls(self, nodes: Sequence[ir.Node]) -> None:
        """Forget the contexts of functions if new nodes call one."""
        if any(node.op_identifier() in self.model.functions for node in nodes):
            main = self.model.graph
            self._contexts = {graph: found for graph, found in self._contexts.items() if graph is main}

    def infer(
        self,
        nodes: Sequence[ir.Node],
        context: Context,
        imports: Mapping[str, int],
        strict: bool = False,
        claims: Mapping[ir.Value, Fact] | None = None,
    ) -> dict[ir.Value, Fact]:
        """Infer the results of nodes that are listed in order.

        Args:
            nodes: The nodes.
            context: The known facts about the values that they read.
            imports: Versions of their domains.
            strict: Fail if a node gets an operand that it does not take, among nodes whose operands all have known types.
            claims: Results that are taken for inputs, and what is known of them then.

        Raises:
            RuntimeError: With ``strict``, a node gets an operand that it does not take.
            ModelError: Inference takes more memory or time than any real model needs.
        """
        # ONNX's inference tells of no fault behind an operator that it does not know.
        nodes = [node for node in nodes if not self.is_foreign(node, imports)]
        if not nodes:
            return {}
        try:
            return self._asked(nodes, context, imports, strict, claims or {})
        except RuntimeError:
            found = self._asked(nodes, context, imports, False, claims or {})
            known = Context(context.graph, {**context.known, **found, **(claims or {})}, context.attributes)
            typed = [node for node in nodes if all(known.of(value).type is not None for value in used_values(node))]
            if len(typed) == len(nodes):
                raise
            for node in nodes:
                dtypes = [None if value is None else known.of(value).dtype for value in node.inputs]
                if fault := type_fault(node, dtypes, imports):
                    raise RuntimeError(fault) from None
            self._asked(typed, known, imports, strict, claims or {})
            return found

    def _asked(
        self,
        nodes: Sequence[ir.Node],
        context: Context,
        imports: Mapping[str, int],
        strict: bool,
        claims: Mapping[ir.Value, Fact],
    ) -> dict[ir.Value, Fact]:
        """Ask ONNX's inference, once for all small requests that are equal: a rule makes the same of each of its matches."""
        request = TypeRequest(nodes, context.of, context.attributes, claims)
        model = request.model
        model.opset_import.extend(onnx.OperatorSetIdProto(domain=name, version=imports[name]) for name in imports)
        model.functions.extend(map(ir.serde.serialize_function, needed_functions(self.model, nodes)))
        version = imports.get("", 0)
        strict = strict and not any(is_contributed(node.domain, node.op_type, version) for node in all_nodes(nodes))
        key = (model.SerializeToString(deterministic=True), strict)
        answer = self._answers.get(key)
        if answer is None:
            answer = infer_shapes(inferable(model), strict=strict).graph
            if len(key[0]) <= _KEPT_BYTES:
                self._answers[key] = answer
        return request.facts(answer)

    def accept(self, changed: Mapping[ir.Value, Fact], context: Context) -> dict[ir.Value, Fact]:
        """Check that the users of values accept the types and shapes that are known now and were not before.

        Returns what follows for the graph then.

        Raises:
            RuntimeError: They do not. A graph in which inference already finds a fault is not checked.
        """
        nodes, imports = Scope(context.graph).nodes, self._imports(context.graph)
        if context.is_valid is None:
            try:
                self.infer(nodes, context, imports, strict=True)
                context.is_valid = True
            except (RuntimeError, ModelError):
                context.is_valid = False
        return self.infer(nodes, context, imports, strict=context.is_valid, claims=changed)

    def _contexts_of(self, graph: ir.Graph, callers: frozenset[ir.Graph]) -> list[Context]:
        found = self._contexts.get(graph)
        if found is None:
            function = next((f for f in self.model.functions.values() if f.graph is graph), None)
            found = [Context(graph)] if function is None else list(self._calls(function, callers | {graph}))
            for context in found:
                try:
                    known = self.infer(Scope(graph).nodes, context, self._imports(graph))
                except (RuntimeError, ModelError):
                    continue
                context.known.update(known)
            found = self._contexts[graph] = found or [Context(graph)]
        return found

    def _imports(self, graph: ir.Graph) -> Mapping[str, int]:
        return graph.opset_imports or self.model.graph.opset_imports

    def _calls(self, function: ir.Function, callers: frozenset[ir.Graph]) -> Iterator[Context]:
        """A context for each combination of argument types and attributes that the function is called with."""
        seen: set[str] = set()
        for top in (self.model.graph, *(f.graph for f in self.model.functions.values())):
            calls = [node for node in top.all_nodes() if node.op_identifier() == function.identifier()]
            for caller in self._contexts_of(top, callers) if calls and top not in callers else ():
                for call in calls:
                    given = [Fact() if value is None else caller.of(value) for value in call.inputs]
                    attributes = dict(function.attributes)
                    attributes.update((a.name, a) for a in resolved(call.attributes.values(), caller.attributes))
                    if (key := f"{given} {attributes}") not in seen:
                        seen.add(key)
                        known = dict(zip(function.inputs, given, strict=False))
                        yield Context(function.graph, known, attributes)


def conclude(
    types: Types,
    nodes: Sequence[ir.Node],
    replaced: Mapping[ir.Value, ir.Value],
    scope: Scope,
    imports: Mapping[str, int],
) -> Found:
    """Infer the types of a replacement's new values, and compare them with those that they replace.

    Raises:
        NotApplicable: They differ in type, rank or a length; or an operator is given what it does not take.
    """
    return tuple((context, _concluded(types, nodes, replaced, context, imports)) for context in types.contexts(scope))


def _concluded(
    types: Types,
    nodes: Sequence[ir.Node],
    replaced: Mapping[ir.Value, ir.Value],
    context: Context,
    imports: Mapping[str, int],
) -> Mapping[ir.Value, Fact]:
    with refused_if_invalid("the new nodes are not valid"):
        facts = types.infer(nodes, context, imports, strict=True)
    changed: dict[ir.Value, Fact] = {}
    for old, new in replaced.items():
        before, after = context.of(old), facts.get(new) or context.of(new)
        maker = new.producer()
        if after.type is None and maker is not None and maker in nodes and types.is_foreign(maker, imports):
            after = facts[new] = before  # It is what the rule says, nothing contradicts it, and users need a type.
        _compare(old, before, after)
        if after.says_more_than(before):
            changed[old] = after
    if changed:
        names = ", ".join(repr(value.name) for value in changed)
        with refused_if_invalid(f"a user of {names} does not accept the replacement"):
            return {**types.accept(changed, context), **facts}
    return facts


@contextmanager
def refused_if_invalid(what: str) -> Iterator[None]:
    """Turn a fault that inference finds into a refusal, whose text begins with ``what``."""
    try:
        yield
    except (RuntimeError, ModelError) as error:
        told = " ".join(str(error).replace("[ShapeInferenceError]", "").split())
        raise NotApplicable(f"{what}: {told}"[:400]) from None


def _compare(value: ir.Value, before: Fact, after: Fact) -> None:
    if before.type is not None and after.type is not None and before.type != after.type:
        raise NotApplicable(f"value {value.name!r} is {_named(before)}, its replacement {_named(after)}")
    if before.dims is None or after.dims is None:
        return
    pairs = zip(before.dims, after.dims, strict=False)
    if len(before.dims) != len(after.dims) or any(
        a != b for a, b in pairs if isinstance(a, int) and isinstance(b, int)
    ):
        raise NotApplicable(f"value {value.name!r} has shape {before.shape}, its replacement {after.shape}")


def _named(fact: Fact) -> str:
    return fact.dtype.name if fact.dtype is not None else str(fact.type)
