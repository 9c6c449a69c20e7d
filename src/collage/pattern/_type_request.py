"""Nodes of a model as a request to ONNX's inference. It is written straight into protobuf: no node is copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir

from collage.frontend import bodies_of
from collage.graph import constant_tensor, used_values
from collage.pattern._facts import Fact, claim_of
from collage.pattern._operators import is_standard

_SMALL_BYTES = 1024
"""Larger constants are not given to inference, which reads the small ones: shapes, axes, sizes."""
_IR_VERSION = 10


class TypeRequest:
    """Nodes cut out of a model, as a model of their own. Each value has a name of its own in it, in bodies too.

    Args:
        nodes: The nodes, in order.
        fact_of: Returns the known facts about a value that they read.
        attributes: The values of references to attributes of a function.
        claims: Results that are taken for inputs, and what is known of them then.

    Attributes:
        model: The request.
    """

    def __init__(
        self,
        nodes: Sequence[ir.Node],
        fact_of: Callable[[ir.Value], Fact],
        attributes: Mapping[str, ir.Attr],
        claims: Mapping[ir.Value, Fact],
    ) -> None:
        self.model = onnx.ModelProto(ir_version=_IR_VERSION)
        self.model.graph.name = "piece"
        self._attributes, self._claims = attributes, claims
        self._names: dict[ir.Value, str] = {}
        self._taken: dict[ir.Value, Fact] = {}
        self._symbols: set[str] = set()
        made = {value for node in nodes for value in node.outputs}
        for value in dict.fromkeys(value for node in nodes for value in used_values(node)):
            if value not in made:
                self._take_in(value, claims.get(value) or fact_of(value))
        for node in nodes:
            self._write(self.model.graph, node)

    def facts(self, answer: onnx.GraphProto) -> dict[ir.Value, Fact]:
        """Return the facts in an answer to this request, by value."""
        values = {name: value for value, name in self._names.items()}
        known: dict[bytes, Fact] = {}
        found: dict[ir.Value, Fact] = {}
        for name, proto in _type_protos(answer):
            if name in values:
                key = proto.SerializeToString()
                if key not in known:
                    known[key] = self._fact(proto)
                found[values[name]] = known[key]
        return found

    def _name(self, value: ir.Value) -> str:
        name = self._names.get(value)
        if name is None:
            name = self._names[value] = f"v{len(self._names)}"
        return name

    def _take_in(self, value: ir.Value, fact: Fact) -> None:
        tensor = constant_tensor(value)
        if tensor is not None and not isinstance(tensor, ir.ExternalTensor) and tensor.nbytes <= _SMALL_BYTES:
            _write_constant(self.model.graph, self._name(value), tensor)
        else:
            self._taken[value] = fact
            self._describe(self.model.graph.input.add(), value)

    def _write(self, graph: onnx.GraphProto, node: ir.Node) -> None:
        """Write a node. Readers of its claimed results read an input instead."""
        proto = graph.node.add()
        proto.op_type = node.op_type
        if node.domain:
            proto.domain = node.domain
        if node.overload:
            proto.overload = node.overload
        proto.input.extend(["" if value is None else self._name(value) for value in node.inputs])
        for attribute in resolved(node.attributes.data.values(), self._attributes):
            self._write_attribute(proto.attribute.add(), attribute)
        names: list[str] = []
        for value in node.outputs:
            if value.name == "":
                names.append("")
            elif value in self._claims:
                names.append(f"cut{len(self._names)}")
                self._take_in(value, self._claims[value])
            else:
                names.append(self._name(value))
                self._claim(graph, node, value)
        while names and not names[-1]:
            names.pop()
        proto.output.extend(names)

    def _claim(self, graph: onnx.GraphProto, node: ir.Node, value: ir.Value) -> None:
        """Keep the stated type of a result only if nothing is inferred, or if it is an output of the graph."""
        is_own_output = value.is_graph_output()
        if is_own_output and graph is not self.model.graph:
            return  # It is written with the outputs of the body.
        if is_own_output or not is_standard(node.domain):
            self._describe(graph.value_info.add(), value)
        elif value.type is not None:
            _describe(graph.value_info.add(), self._name(value), Fact(value.type))

    def _write_attribute(self, proto: onnx.AttributeProto, attribute: ir.Attr) -> None:
        if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            ir.serde.serialize_attribute_into(proto, attribute)
            return
        proto.name = attribute.name
        if attribute.type == ir.AttributeType.GRAPH:
            proto.type = onnx.AttributeProto.GRAPH
            self._write_body(proto.g, attribute.as_graph())
        else:
            proto.type = onnx.AttributeProto.GRAPHS
            for body in attribute.as_graphs():
                self._write_body(proto.graphs.add(), body)

    def _write_body(self, proto: onnx.GraphProto, body: ir.Graph) -> None:
        proto.name = body.name or "body"
        for value in body.inputs:
            self._describe(proto.input.add(), value)
        for value in body.initializers.values():
            if value.const_value is not None:
                _write_constant(proto, self._name(value), value.const_value)
        for node in body:
            self._write(proto, node)
        for value in body.outputs:
            self._describe(proto.output.add(), value)

    def _describe(self, proto: onnx.ValueInfoProto, value: ir.Value) -> None:
        fact = self._taken.get(value) or claim_of(value)
        self._symbols.update(dim for dim in fact.dims or () if isinstance(dim, str))
        _describe(proto, self._name(value), fact)

    def _fact(self, proto: onnx.TypeProto) -> Fact:
        shape = ir.serde.deserialize_type_proto_for_shape(proto)
        dims = None if shape is None else tuple(d if isinstance(d, int) else self._symbol(d.value) for d in shape)
        return Fact(ir.serde.deserialize_type_proto_for_type(proto), dims)

    def _symbol(self, name: str | None) -> str | None:
        """A symbol of the model; None for one that inference made up."""
        return name if name in self._symbols else None


def _describe(proto: onnx.ValueInfoProto, name: str, fact: Fact) -> None:
    proto.name = name
    if type(fact.type) is ir.TensorType and not fact.type.denotation:  # As nearly all are, without a detour.
        tensor = proto.type.tensor_type
        tensor.elem_type = fact.type.dtype.value
        if fact.dims is not None:
            tensor.shape.SetInParent()
            for dim in fact.dims:
                made = tensor.shape.dim.add()
                if isinstance(dim, int):
                    made.dim_value = dim
                elif dim is not None:
                    made.dim_param = dim
    elif fact.type is not None:
        ir.serde.serialize_type_into(proto.type, fact.type)
        if (shape := fact.shape) is not None:
            ir.serde.serialize_shape_into(proto.type, shape)


def _write_constant(graph: onnx.GraphProto, name: str, tensor: ir.TensorProtocol) -> None:
    proto = graph.initializer.add()
    ir.serde.serialize_tensor_into(proto, tensor)
    proto.name = name


def _type_protos(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TypeProto]]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.WhichOneof("value"):
            yield value.name, value.type
    for node in graph.node:
        for body in bodies_of(node):
            yield from _type_protos(body)


def resolved(given: Iterable[ir.Attr], attributes: Mapping[str, ir.Attr]) -> Iterator[ir.Attr]:
    """Yield attributes with those of a call in place of references to them; references that it lacks are left out."""
    for attribute in given:
        if not attribute.is_ref():
            yield attribute
        elif (meant := attributes.get(str(attribute.ref_attr_name))) is not None and meant.value is not None:
            yield ir.Attr(attribute.name, meant.type, meant.value)
