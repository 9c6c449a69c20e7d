"""Limits on the cost of a model, checked before anything is allocated for it.

Function calls are counted as if they were expanded, without expanding them: a file of two kilobytes can stand for
2^25 nodes. Every product is a Python integer, so none overflows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx
import onnx_ir as ir

from collage._errors import ModelError
from collage.frontend._inferable import inferable
from collage.frontend._nodes import bodies_of, node_label
from collage.frontend._proto import forget_claims
from collage.frontend._sandbox import infer_shapes
from collage.frontend._sparse import check_sparse_tensor
from collage.frontend._tensors import TensorFacts, check_tensor

__all__ = ["Budgets", "NotUnicode", "check_budgets", "check_inferred_shapes"]

FunctionId = tuple[str, str, str]


class NotUnicode(ModelError):
    """A name is not Unicode. The model may be fine where its texts are read in another encoding."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Upper bounds on what a model may hold; generous for real models, small for a machine.

    Attributes:
        file_bytes: Size of the model file itself; a protobuf message cannot exceed 2 GiB.
        structure_bytes: The rest of that file without weights and long strings. Each byte may become forty in memory.
        nodes: Nodes of all graphs and bodies together, after functions are expanded.
        items: Initializers, described values, metadata entries, and inputs and outputs of nodes, all together.
        functions: Functions of the model itself.
        bodies: Bodies of control flow, after functions are expanded. Each is a graph, and costs as much as tens of nodes.
        nesting: Depth of control-flow bodies within each other, after functions are expanded.
        weight_bytes: All constants together.
        value_bytes: Any single value whose shape is known, weights included.
        dense_bytes: Bytes of all sparse constants as dense arrays. They are built in memory, however small the file is.
        inner_bytes: Constants of control-flow bodies in external files, which are loaded rather than mapped.
        name_bytes: Any single name, of a symbolic dimension too.
        text_bytes: Long strings of a large file: names, documentation, metadata, unknown fields.
        string_bytes: Any single string attribute or documentation string.
        list_items: Items of any list attribute.
        rank: Number of dimensions of any tensor.
    """

    file_bytes: int = 2**31
    structure_bytes: int = 3 * 2**23
    nodes: int = 50_000
    items: int = 500_000
    functions: int = 10_000
    bodies: int = 4_096
    nesting: int = 16
    weight_bytes: int = 2**38
    value_bytes: int = 2**33
    dense_bytes: int = 2**30
    inner_bytes: int = 2**28
    name_bytes: int = 2**13
    text_bytes: int = 2**26
    string_bytes: int = 2**24
    list_items: int = 2**24
    rank: int = 32


class _Size(NamedTuple):
    nodes: int
    nesting: int
    bodies: int


def check_budgets(model: onnx.ModelProto, budgets: Budgets) -> list[TensorFacts]:
    """Refuse a model that exceeds a budget, and return the types and sizes that its tensors claim.

    Raises:
        ModelError: A budget is exceeded, functions call each other in a circle, or a tensor's data does not fit its
            shape.
    """
    counter = _Counter(model, budgets)
    counter.measure_model()
    return counter.tensors


def check_inferred_shapes(proto: onnx.ModelProto, budgets: Budgets) -> None:
    """Refuse a model that would compute a value too large for any machine, as far as shapes are known.

    Checked twice: with the claims of the model itself, and with inferred shapes alone. It is changed: its claims are removed,
    and operators that ONNX does not know are replaced.

    Raises:
        ModelError: Names the value; or it takes too much to find the shapes out; or a node cannot have the results that it lists.
    """
    _check_values(proto.graph, "the model", budgets)
    forget_claims(proto.graph)
    try:
        inferred = infer_shapes(inferable(proto))
    except RuntimeError as error:  # A node whose inputs do not fit is passed over; this one does not fit its own body.
        raise ModelError(f"is not a valid model: {' '.join(str(error).split())[:400]}") from None
    _check_values(inferred.graph, "the model", budgets)


def _check_values(graph: onnx.GraphProto, place: str, budgets: Budgets) -> None:
    for value in graph.value_info:
        _check_value(value, place, budgets)
    for node in graph.node:
        for body in bodies_of(node):
            _check_values(body, f"a body of {node_label(node)}", budgets)


def _check_value(value: onnx.ValueInfoProto, place: str, budgets: Budgets) -> None:
    if not value.type.HasField("tensor_type"):
        return
    shape = value.type.tensor_type.shape
    if len(shape.dim) > budgets.rank:
        raise ModelError(f"value {value.name[:80]!r} of {place} has {len(shape.dim)} dimensions")
    elements = 1
    for dim in shape.dim:
        if dim.HasField("dim_value"):
            if dim.dim_value < -1:
                raise ModelError(f"value {value.name[:80]!r} of {place} has the negative dimension {dim.dim_value}")
            # A length of 0 does not help: NumPy and runtimes multiply the others all the same.
            elements *= dim.dim_value if dim.dim_value > 0 else 1
    nbytes = elements * _bits(value.type.tensor_type.elem_type) // 8
    if nbytes > budgets.value_bytes:
        raise ModelError(f"value {value.name[:80]!r} of {place} would have {elements:,} elements, {nbytes:,} bytes")


def _bits(element_type: int) -> int:
    try:
        return ir.DataType(element_type).bitwidth
    except (ValueError, TypeError):
        return 8


class _Counter:
    """Walks every message of a model once, and every function once however often it is called."""

    def __init__(self, model: onnx.ModelProto, budgets: Budgets) -> None:
        self.model = model
        self.budgets = budgets
        self.tensors: list[TensorFacts] = []
        self._weight_bytes = 0
        self._dense_bytes = 0
        self._items = 0
        if len(model.functions) > budgets.functions:
            raise ModelError(f"the model has more than {budgets.functions:,} functions")
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        if len(self._functions) != len(model.functions):
            raise ModelError("two functions of the model have the same domain, name and overload")
        self._sizes: dict[FunctionId, _Size] = {}

    def measure_model(self) -> None:
        self._count_items(len(self.model.metadata_props))
        for opset in self.model.opset_import:
            self._check_name(opset.domain, "an operator set")
        for identifier in self._bottom_up():
            function = self._functions[identifier]
            domains = (opset.domain for opset in function.opset_import)
            for name in (*identifier, *function.input, *function.output, *function.attribute, *domains):
                self._check_name(name, "a function")
            self._sizes[identifier] = self._measure(function.node, f"function {function.name!r}")
        self._measure_graph(self.model.graph, f"graph {self.model.graph.name[:80]!r}")

    def _bottom_up(self) -> list[FunctionId]:
        """Functions, callees first; an explicit stack, because a chain of calls may be thousands long."""
        order: list[FunctionId] = []
        state: dict[FunctionId, bool] = {}
        for root in self._functions:
            stack = [(root, self._callees(root))] if root not in state else []
            state.setdefault(root, False)
            while stack:
                current, callees = stack[-1]
                callee = next(callees, None)
                if callee is None:
                    stack.pop()
                    state[current] = True
                    order.append(current)
                elif callee not in state:
                    state[callee] = False
                    stack.append((callee, self._callees(callee)))
                elif not state[callee]:
                    raise ModelError(f"function {callee[1]!r} calls itself, directly or through others")
        return order

    def _callees(self, identifier: FunctionId) -> Iterator[FunctionId]:
        waiting = list(self._functions[identifier].node)
        depth_guard = self.budgets.nodes
        while waiting:
            node = waiting.pop()
            depth_guard -= 1
            if depth_guard < 0:
                raise ModelError(f"function {identifier[1]!r} has more than {self.budgets.nodes:,} nodes")
            called = (node.domain, node.op_type, node.overload)
            if called in self._functions:
                yield called
            for body in bodies_of(node):
                waiting.extend(body.node)

    def _measure_graph(self, graph: onnx.GraphProto, place: str, depth: int = 0) -> _Size:
        self._check_name(graph.name, place)
        described = (
            len(graph.initializer)
            + len(graph.sparse_initializer)
            + len(graph.value_info)
            + len(graph.input)
            + len(graph.output)
        )
        self._count_items(described + len(graph.metadata_props) + len(graph.quantization_annotation))
        for tensor in graph.initializer:
            self._account(tensor, f"initializer {tensor.name!r} of {place}")
        for value in (*graph.input, *graph.output, *graph.value_info):
            self._check_name(value.name, place)
            for dim in value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ():
                self._check_name(dim.dim_param, place)
            _check_value(value, place, self.budgets)
        for sparse in graph.sparse_initializer:
            self._account_sparse(sparse, f"initializer {sparse.values.name!r} of {place}")
        return self._measure(graph.node, place, depth)

    def _measure(self, nodes: Sequence[onnx.NodeProto], place: str, depth: int = 0) -> _Size:
        if depth > self.budgets.nesting:
            raise ModelError(f"{place} is nested more than {self.budgets.nesting} bodies deep")
        if len(nodes) > self.budgets.nodes:
            raise ModelError(f"{place} has more than {self.budgets.nodes:,} nodes")
        total, deepest, bodies = 0, depth, 0
        for node in nodes:
            where = f"{node_label(node)} of {place}"
            inner = self._measure_node(node, where, depth)
            total += inner.nodes
            deepest = max(deepest, inner.nesting)
            bodies += inner.bodies
            if bodies > self.budgets.bodies:
                raise ModelError(f"{place} has more than {self.budgets.bodies:,} bodies of control flow")
            if total > self.budgets.nodes:
                raise ModelError(f"{place} has more than {self.budgets.nodes:,} nodes once its functions are expanded")
            if deepest > self.budgets.nesting:
                raise ModelError(f"{where} is nested more than {self.budgets.nesting} bodies deep")
        return _Size(total, deepest, bodies)

    def _measure_node(self, node: onnx.NodeProto, where: str, depth: int) -> _Size:
        self._count_items(len(node.input) + len(node.output) + len(node.attribute) + len(node.metadata_props))
        called = self._sizes.get((node.domain, node.op_type, node.overload))
        total, deepest, bodies = (called.nodes, depth + called.nesting, called.bodies) if called else (1, depth, 0)
        for name in (node.name, node.op_type, node.domain, *node.input, *node.output):
            self._check_name(name, where)
        self._check_string(node.doc_string, where)
        for attribute in node.attribute:
            self._check_attribute(attribute, where)
        for body in bodies_of(node):
            inner = self._measure_graph(body, f"a body of {node_label(node)}", depth + 1)
            total += inner.nodes
            deepest = max(deepest, inner.nesting)
            bodies += 1 + inner.bodies
        return _Size(total, deepest, bodies)

    def _count_items(self, count: int) -> None:
        self._items += count
        if self._items > self.budgets.items:
            raise ModelError(
                f"the model has more than {self.budgets.items:,} values, tensors, inputs and metadata entries"
            )

    def _check_attribute(self, attribute: onnx.AttributeProto, where: str) -> None:
        self._check_name(attribute.name, where)
        self._check_string(attribute.s, where)
        for items in (attribute.ints, attribute.floats, attribute.strings, attribute.tensors):
            if len(items) > self.budgets.list_items:
                raise ModelError(f"attribute {attribute.name!r} of {where} has {len(items):,} items")
        for text in attribute.strings:
            self._check_string(text, where)
        if attribute.sparse_tensors or (attribute.HasField("sparse_tensor") and attribute.name != "sparse_value"):
            raise ModelError(f"{where} has the sparse attribute {attribute.name!r}, which is not supported")
        if attribute.HasField("sparse_tensor"):
            self._account_sparse(attribute.sparse_tensor, f"attribute {attribute.name!r} of {where}")
        if attribute.HasField("t"):
            self._account(attribute.t, f"attribute {attribute.name!r} of {where}")
        for tensor in attribute.tensors:
            self._account(tensor, f"attribute {attribute.name!r} of {where}")

    def _account(self, tensor: onnx.TensorProto, where: str) -> None:
        for name in (tensor.name, *(text for entry in tensor.external_data for text in (entry.key, entry.value))):
            self._check_name(name, where)
        facts = check_tensor(tensor, where, max_rank=self.budgets.rank, max_bytes=self.budgets.value_bytes)
        self._weight_bytes += facts.nbytes
        if self._weight_bytes > self.budgets.weight_bytes:
            raise ModelError(f"the constants of the model exceed {self.budgets.weight_bytes:,} bytes at {where}")
        self.tensors.append(facts)

    def _account_sparse(self, tensor: onnx.SparseTensorProto, where: str) -> None:
        self._check_name(tensor.values.name, where)
        budgets = self.budgets
        self._dense_bytes += check_sparse_tensor(tensor, where, max_rank=budgets.rank, max_bytes=budgets.dense_bytes)
        if self._dense_bytes > budgets.dense_bytes:
            raise ModelError(
                f"the sparse constants of the model, made dense, exceed {budgets.dense_bytes:,} bytes at {where}"
            )

    def _check_name(self, name: str | bytes, where: str) -> None:
        if isinstance(name, bytes):
            raise NotUnicode(f"{where[:200]} has a name that is not valid UTF-8")
        if len(name) > self.budgets.name_bytes:
            raise ModelError(f"{where[:200]} has a name of {len(name):,} characters")

    def _check_string(self, text: str | bytes, where: str) -> None:
        if len(text) > self.budgets.string_bytes:
            raise ModelError(f"{where[:200]} has a string of {len(text):,} bytes")
