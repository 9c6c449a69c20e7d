"""The structural hash: a digest of a kernel's computation that does not depend on names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from collage.graph._calibrated import NODE_PRECISION
from collage.graph._extract import COMPOSITE
from collage.graph._lengths import FROM_LENGTHS
from collage.graph._op_kind import is_shape_operand
from collage.graph._traversal import GraphLike, bodies, constant_tensor, post_dfs

__all__ = ["is_part_of_structure", "structural_hash", "weight_class"]

_VERSION = "collage-structure-1"
_SMALL = 64
_SAMPLES = 4096


def structural_hash(model: ir.Model, *, classify_weights: bool = True) -> str:
    """The sha256, in hexadecimal digits, of the computation of an extracted kernel.

    It depends on operators with their domains and opset versions, attributes with control-flow bodies, how values
    connect nodes, the order, types and shapes of inputs and outputs (names of symbolic dimensions included), on which
    inputs follow from lengths, on the labels of labelled parts, on the precision noted for nodes, and on small
    constants (see :func:`is_part_of_structure`). Other weights count by type, shape and :func:`weight_class`. It does
    not depend on names of nodes, values, functions or graphs, on doc strings, on the order of the node list, on nodes
    that reach no output, on ranges noted for values, or on types noted for inner values, which follow from the rest.

    Args:
        model: An extracted kernel, or any other model.
        classify_weights: True if the class of weights counts.
    """
    hasher = _Hasher(model, classify_weights)
    hasher.add_graph(model.graph, model.opset_imports)
    return hasher.hexdigest()


def is_part_of_structure(value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    """Return True if the value of a constant counts, not only its type and shape.

    So do integers, booleans and strings of at most 64 elements (axes, shapes, indices), numbers of one element
    (epsilons, bounds, scales), and whatever a node reads as a shape (the scales of a Resize).
    """
    if tensor.dtype == ir.DataType.STRING or tensor.dtype.is_integer() or tensor.dtype == ir.DataType.BOOL:
        return tensor.size <= _SMALL
    return tensor.size <= 1 or any(is_shape_operand(use.node, use.idx) for use in value.uses())


def weight_class(tensor: ir.TensorProtocol) -> str:
    """Return the facts, besides type and shape, that make kernels with this weight fast or slow.

    Looks at no more than 4096 evenly spaced elements: ``sparse`` if half of them or more are zero, ``denormal`` if
    any is too small for the format's normal range; ``plain`` otherwise, and for anything but floats of 16 bits or
    more.
    """
    if not tensor.dtype.is_floating_point() or tensor.dtype.bitwidth < 16 or tensor.size == 0:
        return "plain"
    flat = tensor.numpy().reshape(-1)
    sample = np.abs(flat[:: -(-flat.size // _SAMPLES)].astype(np.float64))
    words = []
    if 2 * np.count_nonzero(sample) <= sample.size:
        words.append("sparse")
    if np.any((sample > 0) & (sample < float(tensor.dtype.tiny))):
        words.append("denormal")
    return "+".join(words) or "plain"


class _Hasher:
    """Writes a model down in canonical form: values are numbered in the order in which they are first met."""

    def __init__(self, model: ir.Model, classify_weights: bool) -> None:
        self._model = model
        self._classify_weights = classify_weights
        self._digest = hashlib.sha256()
        self._number: dict[ir.Value, int] = {}
        self._functions: dict[ir.OperatorIdentifier, str] = {}
        self._write(_VERSION)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def add_graph(self, graph: GraphLike, opsets: dict[str, int]) -> None:
        self._write("graph", len(graph.inputs))
        for value in graph.inputs:
            self._number[value] = len(self._number)
            self._write(*_type_of(value))
            if FROM_LENGTHS in value.metadata_props:
                self._write("lengths")
        for node in post_dfs(graph):
            if constant_tensor(node.outputs[0]) is None:
                self._add_node(node, opsets)
        self._write("outputs", len(graph.outputs))
        for value in graph.outputs:
            self._add_use(value)
            self._write(*_type_of(value))

    def _add_node(self, node: ir.Node, opsets: dict[str, int]) -> None:
        function = self._function_digest(node)
        # Foreign operators may be written out in ONNX's own, of the model's version.
        versions = [opsets.get(domain) for domain in dict.fromkeys((node.domain, ""))]
        self._write("node", *([function] if function else [node.domain, node.op_type, *versions]))
        self._write(node.metadata_props.get(COMPOSITE, ""), len(node.outputs), len(node.inputs))
        if (precision := node.metadata_props.get(NODE_PRECISION)) is not None:
            self._write("precision", precision)
        for value in node.inputs:
            self._add_use(value)
        for name in sorted(node.attributes):
            self._add_attribute(node.attributes[name])
        for body in bodies(node):
            self.add_graph(body, opsets)
        for output in node.outputs:
            self._number[output] = len(self._number)

    def _add_use(self, value: ir.Value | None) -> None:
        if value is None:
            self._write("absent")
            return
        if value not in self._number:
            self._number[value] = len(self._number)
            tensor = constant_tensor(value)
            if tensor is not None:
                self._add_constant(value, tensor)
            else:
                self._write("free", *_type_of(value))
        self._write("value", self._number[value])

    def _add_constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        self._write("constant", tensor.dtype.name, *tensor.shape.numpy())
        if is_part_of_structure(value, tensor):
            self._write(_content(tensor))
        elif self._classify_weights:
            self._write(weight_class(tensor))

    def _add_attribute(self, attribute: ir.Attr) -> None:
        self._write("attribute", attribute.name, attribute.type.name)
        if attribute.is_ref():
            self._write("reference", attribute.ref_attr_name)
        elif attribute.type in (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS):
            tensors = [attribute.value] if attribute.type == ir.AttributeType.TENSOR else attribute.as_tensors()
            for tensor in tensors:
                self._write(tensor.dtype.name, *tensor.shape.numpy(), _content(tensor))
        elif attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            self._write(repr(attribute.value))

    def _function_digest(self, node: ir.Node) -> str | None:
        """The digest of the local function that a node calls; None if it calls an operator."""
        name = node.op_identifier()
        function = self._model.functions.get(name)
        if function is None:
            return None
        if name not in self._functions:
            inner = _Hasher(self._model, self._classify_weights)
            inner.add_graph(function, function.opset_imports)
            self._functions[name] = inner.hexdigest()
        return self._functions[name]

    def _write(self, *words: object) -> None:
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            self._digest.update(b"%d:" % len(data))
            self._digest.update(data)


def _type_of(value: ir.Value) -> Iterable[object]:
    return str(value.type), "unknown" if value.shape is None else ",".join(map(str, value.shape))


def _content(tensor: ir.TensorProtocol) -> bytes:
    if tensor.dtype == ir.DataType.STRING:
        return repr(tensor.numpy().tolist()).encode()
    return tensor.tobytes()
