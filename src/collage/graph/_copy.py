"""Copies of models that share only the bytes of weights with the original."""

from __future__ import annotations

import copy
import dataclasses

import onnx_ir as ir

from collage.graph._handle import tensor_handle

__all__ = ["Copier", "copy_model"]

_Store = ir.Model | ir.Graph | ir.Function | ir.Node | ir.Value | ir.Attr


def copy_model(model: ir.Model) -> ir.Model:
    """Return a copy of a model in which everything may be changed, in place too; the model stays as it is."""
    made = ir.Model.__new__(ir.Model)
    Copier().fill_model(made, model)
    return made


class Copier:
    """Copies one model, graph by graph.

    ``onnx_ir``'s ``clone`` wants sorted nodes, and shares types and attributes, which can be changed in place. This
    one takes a model in any state that can be built, so that TopologicalSort gets to see one that needs it. Tensors get
    handles: their bytes alone are shared. Values that share a tensor share its handle.

    Attributes:
        graphs: Copy of each graph of the original. A copy that is entered beforehand is filled.
        functions: The same for functions.
        nodes: Copy of each node of the original.
    """

    def __init__(self) -> None:
        self.graphs: dict[ir.Graph, ir.Graph] = {}
        self.functions: dict[ir.Function, ir.Function] = {}
        self.nodes: dict[ir.Node, ir.Node] = {}
        self._values: dict[ir.Value, ir.Value] = {}
        self._handles: dict[int, ir.TensorProtocol] = {}

    def fill_model(self, into: ir.Model, original: ir.Model) -> None:
        """Make a model without fields a copy."""
        ir.Model.__init__(
            into,
            self._graph(original.graph),
            ir_version=original.ir_version,
            producer_name=original.producer_name,
            producer_version=original.producer_version,
            domain=original.domain,
            model_version=original.model_version,
            doc_string=original.doc_string,
            functions=[self._function(function) for function in original.functions.values()],
            metadata_props=dict(original.metadata_props),
            device_configurations=original.device_configurations,
        )
        _copy_meta(original, into)

    def _graph(self, original: ir.Graph) -> ir.Graph:
        into = self.graphs.setdefault(original, ir.Graph.__new__(ir.Graph))
        ir.Graph.__init__(
            into,
            [self._value(value) for value in original.inputs],
            [self._value(value) for value in original.outputs],
            nodes=[self._node(node) for node in original],
            initializers=[self._value(value) for value in original.initializers.values()],
            doc_string=original.doc_string,
            opset_imports=dict(original.opset_imports),
            name=original.name,
            metadata_props=dict(original.metadata_props),
        )
        _copy_meta(original, into)
        return into

    def _function(self, original: ir.Function) -> ir.Function:
        into = self.functions.setdefault(original, ir.Function.__new__(ir.Function))
        ir.Function.__init__(
            into,
            original.domain,
            original.name,
            original.overload,
            graph=self._graph(original.graph),
            attributes=[self._attribute(attribute) for attribute in original.attributes.values()],
        )
        return into

    def _node(self, original: ir.Node) -> ir.Node:
        made = ir.Node(
            original.domain,
            original.op_type,
            [None if value is None else self._value(value) for value in original.inputs],
            [self._attribute(attribute) for attribute in original.attributes.values()],
            overload=original.overload,
            outputs=[self._value(value) for value in original.outputs],
            version=original.version,
            name=original.name,
            doc_string=original.doc_string,
            metadata_props=dict(original.metadata_props),
            device_configurations=tuple(map(self._sharded, original.device_configurations)),
        )
        _copy_meta(original, made)
        self.nodes[original] = made
        return made

    def _value(self, original: ir.Value) -> ir.Value:
        """The copy of a value, made where it is first met: its producer may come later."""
        made = self._values.get(original)
        if made is None:
            made = self._values[original] = ir.Value(
                name=original.name,
                shape=None if original.shape is None else original.shape.copy(),
                type=None if original.type is None else _copy_type(original.type),
                doc_string=original.doc_string,
                const_value=None if original.const_value is None else self._handle(original.const_value),
                metadata_props=dict(original.metadata_props),
            )
            _copy_meta(original, made)
        return made

    def _attribute(self, original: ir.Attr) -> ir.Attr:
        content = original.value
        if not original.is_ref() and original.type == ir.AttributeType.GRAPH:
            content = self._graph(content)
        elif not original.is_ref() and original.type == ir.AttributeType.GRAPHS:
            content = [self._graph(graph) for graph in content]
        elif not original.is_ref() and original.type == ir.AttributeType.TENSOR:
            content = self._handle(content)
        elif not original.is_ref() and original.type == ir.AttributeType.TENSORS:
            content = [self._handle(tensor) for tensor in content]
        made = ir.Attr(original.name, original.type, content, original.ref_attr_name, doc_string=original.doc_string)
        _copy_meta(original, made)
        return made

    def _handle(self, original: ir.TensorProtocol) -> ir.TensorProtocol:
        made = self._handles.get(id(original))
        if made is None:
            made = self._handles[id(original)] = tensor_handle(original)
        return made

    def _sharded(self, original: ir.NodeDeviceConfiguration) -> ir.NodeDeviceConfiguration:
        """ONNX's own device annotations point to values, which have to be those of the copy."""
        specs = [
            spec if spec.value is None else dataclasses.replace(spec, value=self._value(spec.value))
            for spec in original.sharding_specs
        ]
        return dataclasses.replace(original, sharding_specs=tuple(specs))


def _copy_type(original: ir.TypeProtocol) -> ir.TypeProtocol:
    """The same type; the plain one, which nearly all values have, without a detour."""
    if type(original) is ir.TensorType:
        return ir.TensorType(original.dtype, denotation=original.denotation)
    return copy.deepcopy(original)


def _copy_meta(original: _Store, made: _Store) -> None:
    """Return the notes that passes left for each other. The notes themselves are shared."""
    if original.meta:
        made.meta.update(original.meta)
        for key in original.meta:
            if not original.meta.is_valid(key):
                made.meta.invalidate(key)
