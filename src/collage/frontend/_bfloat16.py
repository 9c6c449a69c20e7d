"""Bfloat16 in a model: operators compute in float32 in its place.

Few toolchains compute in bfloat16 on a processor; ONNX Runtime does not. Results are nearer to those of exact arithmetic: they
are rounded once, at the outputs. So this is a part of reading a model: the original is compared in float32, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from collage.graph import NameSupply

__all__ = ["widen_bfloat16"]

_NARROW, _WIDE = ir.DataType.BFLOAT16, ir.DataType.FLOAT
_TYPE_ATTRIBUTES = frozenset(("to", "dtype", "output_dtype", "softmax_precision"))
"""Attributes of ONNX's operators that name an element type."""
_READ_BITS = frozenset(("BitCast", "SequenceEmpty", "Optional"))
"""Operators whose results depend on the bits of a type, or that make no tensors."""


def widen_bfloat16(model: ir.Model) -> bool:
    """Compute in float32, in place, what a model computes in bfloat16. Inputs and outputs keep their type.

    Models with operators of a domain other than ONNX's, or with a sequence of bfloat16, stay as they are.

    Returns:
        True if the model is another one now.
    """
    if not any(map(_is_narrow, _values(model))) or not _can_widen(model):
        return False
    graph = model.graph
    interface = {*graph.inputs, *graph.outputs}
    inputs = [value for value in graph.inputs if _is_narrow(value) and not value.is_initializer()]
    outputs = [(place, value) for place, value in enumerate(graph.outputs) if _is_narrow(value)]
    names = NameSupply(reserved=[str(value.name) for value in _values(model) if value.name])
    for value in list(_values(model)):
        if _is_narrow(value) and (value not in interface or value.is_initializer()):
            _widen(value, names)
    for node in _nodes(model):
        _widen_attributes(node)
    for value in inputs:
        _take_in(graph, value, names)
    for place, value in outputs:
        _hand_out(graph, place, value, names)
    return True


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the values of a model's graph and of bodies in it."""
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs


def _is_narrow(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType) and value.dtype == _NARROW


def _can_widen(model: ir.Model) -> bool:
    own = {(domain, name) for domain, name, _ in model.functions}
    if any(
        (node.domain not in ("", "ai.onnx") and (node.domain, node.op_type) not in own) or node.op_type in _READ_BITS
        for node in _nodes(model)
    ):
        return False
    kinds = (value.type for value in _values(model))
    return not any(kind is not None and not isinstance(kind, ir.TensorType) and kind.dtype == _NARROW for kind in kinds)


def _widen(value: ir.Value, names: NameSupply) -> None:
    """Make a value one of float32, under a name of its own: it is not the value that the model has."""
    value.type = ir.TensorType(_WIDE)
    if not value.is_initializer():
        value.name = names.fresh(f"{value.name}_f32")
    if value.const_value is not None:
        value.const_value = _wide(value.const_value)


def _wide(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _widen_attributes(node: ir.Node) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.INT and name in _TYPE_ATTRIBUTES and attribute.as_int() == _NARROW:
            node.attributes[name] = ir.AttrInt64(name, _WIDE)
        elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == _NARROW:
            node.attributes[name] = ir.AttrTensor(name, _wide(attribute.as_tensor()))


def _take_in(graph: ir.Graph, value: ir.Value, names: NameSupply) -> None:
    """Have everything that reads an input read it as float32."""
    cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", _WIDE)])
    wide = cast.outputs[0]
    wide.name, wide.type, wide.shape = names.fresh(f"{value.name}_f32"), ir.TensorType(_WIDE), value.shape
    cast.name = f"{wide.name}_cast"
    for use in list(value.uses()):
        if use.node is not cast:
            use.node.replace_input_with(use.idx, wide)
    first = next(iter(graph), None)
    if first is None:
        graph.append(cast)
    else:
        graph.insert_before(first, cast)


def _hand_out(graph: ir.Graph, place: int, value: ir.Value, names: NameSupply) -> None:
    """Have an output be a value of float32, rounded."""
    if value.is_graph_input():
        return
    name, wide = value.name, value
    rounded = ir.Node("", "Cast", [wide], [ir.AttrInt64("to", _NARROW)])
    made = rounded.outputs[0]
    rounded.name = names.fresh(f"{name}_rounded")
    _widen(wide, names)
    made.name, made.type, made.shape = name, ir.TensorType(_NARROW), wide.shape
    graph.append(rounded)
    graph.outputs[place] = made
