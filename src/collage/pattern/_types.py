"""Types and shapes of the nodes that a rule builds: ONNX's own inference finds them, before anything is put into the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from collage._errors import ModelError
from collage.frontend import bodies_of, infer_shapes, inferable, is_contributed
from collage.graph import bodies, clone_node, constant_tensor, needed_functions, tensor_handle, used_values
from collage.pattern._builder import NotApplicable
from collage.pattern._operators import is_standard, type_fault
from collage.pattern._scope import Scope

_SMALL_BYTES = 1024
"""Larger constants are not given to inference, which reads the small ones: shapes, axes, sizes."""
_KEPT_BYTES = 1 << 16
"""Of larger models the answer of inference is not kept."""

Dims = tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """Type and dimensions of a value, as far as they are known.

    Attributes:
        type: Its type, None if unknown.
        dims: Its dimensions: lengths, symbols of the model, None for one that is unknown. None if the rank is.
    """

    type: ir.TypeProtocol | None = None
    dims: Dims | None = None

    @property
    def dtype(self) -> ir.DataType | None:
        """The element type of a tensor."""
        return self.type.dtype if isinstance(self.type, ir.TensorType) else None

    @property
    def shape(self) -> ir.Shape | None:
        """The dimensions as a shape."""
        return None if self.dims is None else ir.Shape(self.dims)

    def refined(self, other: Fact) -> Fact:
        """Fill in from another fact what is unknown here, where the two agree."""
        if self.type is not None and other.type is not None and self.type != other.type:
            return self
        dims = self.dims if self.dims is not None else other.dims
        if self.dims is not None and other.dims is not None and len(self.dims) == len(other.dims):
            pairs = zip(self.dims, other.dims, strict=True)
            dims = tuple(a if isinstance(a, int) or b is None else b for a, b in pairs)
        return Fact(self.type or other.type, dims)

    def says_more_than(self, other: Fact) -> bool:
        """Return True if this has a type, rank or length that the other lacks."""
        if (self.type is not None and other.type is None) or (self.dims is not None and other.dims is None):
            return True
        pairs = zip(self.dims or (), other.dims or (), strict=False)
        return any(isinstance(a, int) and not isinstance(b, int) for a, b in pairs)


def claim_of(value: ir.Value) -> Fact:
    """Return the type and shape that a value states."""
    tensor = constant_tensor(value)
    if tensor is not None:
        return Fact(ir.TensorType(tensor.dtype), tuple(tensor.shape.numpy()))
    dims = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
    return Fact(value.type, dims)


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

    def ask(self, model: onnx.ModelProto, strict: bool) -> onnx.GraphProto:
        """Ask ONNX's inference, once for all small models that are equal: a rule makes the same of each of its matches."""
        key = (model.SerializeToString(deterministic=True), strict)
        answer = self._answers.get(key)
        if answer is None:
            answer = infer_shapes(model, strict=strict).graph
            if len(key[0]) <= _KEPT_BYTES:
                self._answers[key] = answer
        return answer

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
            return _Piece(self, nodes, context, claims).infer(imports, strict)
        except RuntimeError:
            found = _Piece(self, nodes, context, claims).infer(imports, strict=False)
            known = Context(context.graph, {**context.known, **found, **(claims or {})}, context.attributes)
            typed = [node for node in nodes if all(known.of(value).type is not None for value in used_values(node))]
            if len(typed) == len(nodes):
                raise
            for node in nodes:
                dtypes = [None if value is None else known.of(value).dtype for value in node.inputs]
                if fault := type_fault(node, dtypes, imports):
                    raise RuntimeError(fault) from None
            _Piece(self, typed, known, claims).infer(imports, strict)
            return found

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
                    attributes.update((a.name, a) for a in _resolved(call.attributes.values(), caller.attributes))
                    if (key := f"{given} {attributes}") not in seen:
                        seen.add(key)
                        known = dict(zip(function.inputs, given, strict=False))
                        yield Context(function.graph, known, attributes)


class _Piece:
    """Nodes cut out of a model, as a model that inference reads.

    Args:
        types: The types of the model that the nodes are from. It holds the functions that they call.
        nodes: The nodes, in order.
        context: The known facts about the values that they read.
        claims: Results that are taken for inputs, and what is known of them then.
    """

    def __init__(
        self,
        types: Types,
        nodes: Sequence[ir.Node],
        context: Context,
        claims: Mapping[ir.Value, Fact] | None = None,
    ) -> None:
        self.types, self.claims = types, claims or {}
        self.values: dict[ir.Value, ir.Value] = {}
        self.symbols: set[str] = set()
        made = {value for node in nodes for value in node.outputs}
        self.inputs: list[ir.Value] = []
        self.weights: list[ir.Value] = []
        for value in dict.fromkeys(value for node in nodes for value in used_values(node)):
            if value not in made:
                self._take_in(value, self.claims.get(value) or context.of(value))
        given = set(self.values)
        self.nodes = [self._cloned(node) for node in nodes]
        for old, new in self.values.items():
            if old not in given and old not in self.claims:
                self._claim(old, new)
        for index, new in enumerate(self.values.values()):
            if new.const_value is not None:
                new.const_value = tensor_handle(new.const_value)
            if new.name != "":
                new.name = f"v{index}"
        for node in self.nodes:
            _resolve(node, context.attributes)

    def _take_in(self, value: ir.Value, fact: Fact) -> None:
        self._note_symbols(fact)
        new = self.values[value] = ir.Value(name="input", type=fact.type, shape=fact.shape)
        tensor = constant_tensor(value)
        if tensor is not None and not isinstance(tensor, ir.ExternalTensor) and tensor.nbytes <= _SMALL_BYTES:
            new.const_value = tensor
            self.weights.append(new)
        else:
            self.inputs.append(new)

    def _cloned(self, node: ir.Node) -> ir.Node:
        """A copy of a node. Readers of its claimed results read an input instead."""
        copy = clone_node(node, self.values)
        for old in node.outputs:
            if old in self.claims:
                self.values[old].name, self.values[old].type, self.values[old].shape = f"cut_{old.name}", None, None
                self._take_in(old, self.claims[old])
        return copy

    def _claim(self, old: ir.Value, new: ir.Value) -> None:
        """Keep the stated type of a result only if nothing is inferred, or if it is an output of the graph."""
        maker = old.producer()
        if maker is not None and is_standard(maker.domain) and not old.is_graph_output():
            new.shape = None
        self._note_symbols(claim_of(new))

    def _note_symbols(self, fact: Fact) -> None:
        self.symbols.update(dim for dim in fact.dims or () if isinstance(dim, str))

    def infer(self, imports: Mapping[str, int], strict: bool) -> dict[ir.Value, Fact]:
        graph = ir.Graph(
            self.inputs, [], nodes=self.nodes, initializers=self.weights, opset_imports=dict(imports), name="piece"
        )
        functions = needed_functions(self.types.model, self.nodes)
        proto = ir.to_proto(ir.Model(graph, ir_version=10, functions=functions))
        version = imports.get("", 0)
        strict = strict and not any(is_contributed(node.domain, node.op_type, version) for node in graph.all_nodes())
        found = dict(_type_protos(self.types.ask(inferable(proto), strict)))
        names = {old: new.name for old, new in self.values.items()}
        return {old: self._fact(found[name]) for old, name in names.items() if name in found}

    def _fact(self, proto: onnx.TypeProto) -> Fact:
        if proto.WhichOneof("value") == "tensor_type" and not proto.denotation:  # As nearly all are, without a detour.
            tensor = proto.tensor_type
            told = (d.dim_value if d.HasField("dim_value") else self._symbol(d.dim_param) for d in tensor.shape.dim)
            return Fact(ir.TensorType(ir.DataType(tensor.elem_type)), tuple(told) if tensor.HasField("shape") else None)
        shape = ir.serde.deserialize_type_proto_for_shape(proto)
        dims = None if shape is None else tuple(d if isinstance(d, int) else self._symbol(d.value) for d in shape)
        return Fact(ir.serde.deserialize_type_proto_for_type(proto), dims)

    def _symbol(self, name: str | None) -> str | None:
        """A symbol of the model; None for one that inference made up."""
        return name if name in self.symbols else None


def _type_protos(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TypeProto]]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.WhichOneof("value"):
            yield value.name, value.type
    for node in graph.node:
        for body in bodies_of(node):
            yield from _type_protos(body)


def _resolve(node: ir.Node, attributes: Mapping[str, ir.Attr]) -> None:
    """Put the attributes of a call in place of references to them, in bodies too; those that it lacks are left out."""
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        resolved = list(_resolved(list(node.attributes.values()), attributes))
        node.attributes.clear()
        node.attributes.update((attribute.name, attribute) for attribute in resolved)
    for body in bodies(node):
        for inner in body:
            _resolve(inner, attributes)


def _resolved(given: Iterable[ir.Attr], attributes: Mapping[str, ir.Attr]) -> Iterator[ir.Attr]:
    for attribute in given:
        if not attribute.is_ref():
            yield attribute
        elif (meant := attributes.get(str(attribute.ref_attr_name))) is not None and meant.value is not None:
            yield ir.Attr(attribute.name, meant.type, meant.value)


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
