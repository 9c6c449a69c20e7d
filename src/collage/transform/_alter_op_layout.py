"""AlterOpLayout: operators get the layout that a toolchain wants, between few Transposes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.graph import OpKind, op_kind
from collage.target import Target
from collage.transform._context import PassContext
from collage.transform._info import PassInfo
from collage.transform._linear import add_constant, constant_of
from collage.transform._pass_kinds import FunctionLike, FunctionPass

__all__ = ["AlterOpLayout", "Layout", "LayoutRequest", "register_layout_request"]

Permutation = tuple[int, ...]

_WITH_AXES = frozenset(
    {"BitCast", "DequantizeLinear", "Expand", "QuantizeLinear", "RotaryEmbedding", "SwiGLU", "Trilu"}
)
"""Elementwise or broadcasting operators to which axes are not alike."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The wanted layout of an operator: its replacement, and the permutations of its operands and results.

    Attributes:
        inputs: ``perm`` of the Transpose of an operand, by index of the operand; others stay.
        outputs: ``perm`` from the old result to that of the new operator, by index of the result.
        op_type: The new operator; None for the same.
        domain: Its domain; None for the same.
        attributes: Attributes that differ.
    """

    inputs: Mapping[int, Permutation] = field(default_factory=dict)
    outputs: Mapping[int, Permutation] = field(default_factory=dict)
    op_type: str | None = None
    domain: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


LayoutRequest = Callable[[ir.Node], Layout | None]
"""Asked about every node; None leaves the node as it is."""

LAYOUTS_GROUP = "collage.layouts"
"""Entry points of this group are requests, each under the name of a toolchain, found without an import."""

_REQUESTS: dict[str, LayoutRequest] = {}


def register_layout_request(toolchain: str, request: LayoutRequest) -> None:
    """Has ``AlterOpLayout`` ask ``request`` wherever a target of the toolchain is current."""
    _REQUESTS[toolchain] = request


class AlterOpLayout(FunctionPass):
    """Gives operators the requested layouts, and moves or cancels the Transposes between them.

    Each altered operator stands between Transposes at first. Transposes after it then sink through elementwise
    operators and cancel with opposite ones. So a chain of altered operators has Transposes at its ends only.
    Constants are permuted here and now. Other Transposes of the model, and model-local functions, are not touched.

    Args:
        request: Returns the layout that a node should have. None takes the request that the toolchain of the current
            target registered, with ``register_layout_request`` or as an entry point; without any, nothing is altered.
    """

    def __init__(self, request: LayoutRequest | None = None) -> None:
        super().__init__(PassInfo("AlterOpLayout", opt_level=3, required=("InferType",)))
        self._request = request

    def transform_function(self, function: FunctionLike, model: ir.Model, context: PassContext) -> FunctionLike:
        """Alters in place."""
        request = self._request or _registered_request(Target.current())
        if request is not None and isinstance(function, ir.Graph):
            _Alteration(function, model).run(request)
        return function


def _registered_request(target: Target | None) -> LayoutRequest | None:
    if target is None:
        return None
    if target.toolchain not in _REQUESTS:
        for entry in entry_points(group=LAYOUTS_GROUP, name=target.toolchain):
            register_layout_request(target.toolchain, entry.load())
    return _REQUESTS.get(target.toolchain)


class _Alteration:
    """The work on one graph.

    Attributes:
        graph: The graph.
        transposed: For each result of a Transpose that this pass made: the Transpose's input and permutation.
        made: The same, the other way round.
    """

    def __init__(self, graph: ir.Graph, model: ir.Model) -> None:
        self.graph = graph
        self.model = model
        self.transposed: dict[ir.Value, tuple[ir.Value, Permutation]] = {}
        self.made: dict[tuple[ir.Value, Permutation], ir.Value] = {}

    def run(self, request: LayoutRequest) -> None:
        for node in list(self.graph):
            layout = request(node)
            if layout is not None:
                self._alter(node, layout)
            else:
                self._sink_through(node)
        for node in reversed(list(self.graph)):
            if node.outputs[0] in self.transposed and not _is_used(node.outputs[0]):
                self.graph.remove(node, safe=True)

    def _alter(self, node: ir.Node, layout: Layout) -> None:
        inputs = list(node.inputs)
        for index, perm in layout.inputs.items():
            operand = inputs[index] if index < len(inputs) else None
            if operand is not None:
                inputs[index] = self._permute(operand, tuple(perm), before=node)
        domain = node.domain if layout.domain is None else layout.domain
        attributes = {**node.attributes, **{a.name: a for a in ir.convenience.convert_attributes(layout.attributes)}}
        new = ir.Node(
            domain, layout.op_type or node.op_type, inputs, attributes.values(), num_outputs=len(node.outputs)
        )
        self._replace(node, new, layout.outputs)
        self.model.opset_imports.setdefault(domain, 1)

    def _sink_through(self, node: ir.Node) -> None:
        """Move the Transposes before an elementwise operator to its output."""
        perms = {perm for value in node.inputs if value is not None and (perm := self._perm_of(value))}
        if len(perms) != 1 or len(node.outputs) != 1 or not _is_elementwise(node):
            return
        (perm,) = perms
        inputs = [self._before(value, perm) for value in node.inputs]
        if any(old is not None and new is None for old, new in zip(node.inputs, inputs, strict=True)):
            return
        new = ir.Node(node.domain, node.op_type, inputs, node.attributes.values())
        self._replace(node, new, {0: _inverse(perm)})

    def _perm_of(self, value: ir.Value) -> Permutation | None:
        return self.transposed[value][1] if value in self.transposed else None

    def _before(self, value: ir.Value | None, perm: Permutation) -> ir.Value | None:
        """Return the value that ``value`` is a Transpose by ``perm`` of, None if there is none for free."""
        if value is None or value in self.transposed:
            return None if value is None else self.transposed[value][0]
        array = constant_of(value)
        if array is None or array.ndim > len(perm):
            return None
        if array.size == 1:
            return value
        wide = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
        return add_constant(self.graph, f"{value.name}_permuted", np.transpose(wide, _inverse(perm)))

    def _permute(self, value: ir.Value, perm: Permutation, before: ir.Node) -> ir.Value:
        """``value`` transposed by ``perm``, by a new Transpose only if there is no other way."""
        if value in self.transposed:
            value, first = self.transposed[value]
            perm = tuple(first[axis] for axis in perm)
        if perm == tuple(range(len(perm))):
            return value
        array = constant_of(value)
        if array is not None:
            return add_constant(self.graph, f"{value.name}_permuted", np.ascontiguousarray(np.transpose(array, perm)))
        if (value, perm) in self.made:
            return self.made[value, perm]
        name = f"{value.name}_{''.join(map(str, perm))}"
        transpose = ir.node("Transpose", [value], {"perm": list(perm)}, name=f"Transpose_{name}")
        self.graph.insert_before(before, transpose)
        (result,) = transpose.outputs
        result.name, result.type, result.shape = name, value.type, _permuted(value.shape, perm)
        self.transposed[result] = (value, perm)
        self.made[value, perm] = result
        return result

    def _replace(self, node: ir.Node, new: ir.Node, outputs: Mapping[int, Sequence[int]]) -> None:
        """Put ``new`` in the place of ``node``; results listed in ``outputs`` come permuted and are turned back."""
        new.name = node.name
        new.metadata_props.update(node.metadata_props)
        self.graph.insert_before(node, new)
        for index, (old, fresh) in enumerate(zip(node.outputs, new.outputs, strict=True)):
            perm = tuple(outputs.get(index, ()))
            fresh.type, fresh.shape = old.type, _permuted(old.shape, perm)
            result = fresh
            if perm:
                fresh.name = f"{old.name}_{''.join(map(str, perm))}"
                result = self._permute(fresh, _inverse(perm), before=node)
            name = old.name
            old.replace_all_uses_with(result, replace_graph_outputs=True)
            result.name = name
        self.graph.remove(node, safe=True)


def _is_elementwise(node: ir.Node) -> bool:
    """Return True if permuting all operands permutes the result."""
    if node.domain != "" or "axis" in node.attributes or node.op_type in _WITH_AXES:
        return False
    return op_kind(node) in (OpKind.ELEMWISE, OpKind.BROADCAST)


def _inverse(perm: Sequence[int]) -> Permutation:
    return tuple(int(axis) for axis in np.argsort(perm))


def _permuted(shape: ir.Shape | None, perm: Permutation) -> ir.Shape | None:
    if shape is None or not perm:
        return shape
    return ir.Shape([shape[axis] for axis in perm])


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
