"""Kernels as ncnn networks: each operator becomes layers, or is refused with a reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from collage.toolchains import Unsupported
from collage.toolchains.sdk.model_files import elem_type
from collage_ncnn import convolutions, elementwise, layouts, windows
from collage_ncnn.layers import Blob, Layer, Network, fused, with_copies, with_splits
from collage_ncnn.operator import Lowering, Operator, shape_in_ncnn, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Lowered", "lowered", "refuse_node"]

_LOWERINGS: Mapping[str, Lowering] = {
    **convolutions.LOWERINGS,
    **elementwise.LOWERINGS,
    **layouts.LOWERINGS,
    **windows.LOWERINGS,
}


@dataclass(frozen=True)
class Lowered:
    """A kernel as layers.

    Attributes:
        layers: Layers in order, each blob with one reader.
        inputs: A blob for each input of the kernel, with the shape that it is given in. None is an input that nothing reads.
        outputs: A blob for each output of the kernel.
    """

    layers: tuple[Layer, ...]
    inputs: tuple[Blob | None, ...]
    outputs: tuple[Blob, ...]


def lowered(graph: ir.Graph) -> Lowered:
    """Return a kernel's layers.

    Raises:
        Unsupported: An operator, a type or a shape is not taken.
    """
    network = Network()
    blobs: dict[ir.Value, Blob] = {}
    given = [_given(network, blobs, value) for value in graph.inputs]
    groups = {match.root: match for node in graph if (match := _group_norm_at(node)) is not None}
    inside = {node for match in groups.values() for node in match.nodes}
    for node in graph:
        if node in groups:
            blobs[node.outputs[0]] = groups[node].lower(network, blobs)
        elif node not in inside:
            _lower(node, network, blobs)
    outputs = [_output(network, blobs, value) for value in graph.outputs]
    names = [blob.name for blob in outputs]
    layers, found = with_splits(with_copies(fused(network.layers, names)), names)
    present = {name for layer in layers for name in layer.outputs}
    inputs = tuple(blob if blob is not None and blob.name in present else None for blob in given)
    return Lowered(
        tuple(layers), inputs, tuple(Blob(name, blob.shape) for name, blob in zip(found, outputs, strict=True))
    )


def refuse_node(node: ir.Node) -> str | None:
    """Return the reason why an operator is not taken as it stands, None if it is."""
    network = Network()
    blobs: dict[ir.Value, Blob] = {}
    try:
        for value in dict.fromkeys(node.inputs):
            if value is not None and value.const_value is None:
                _given(network, blobs, value)
        _lower(node, network, blobs)
    except Unsupported as refusal:
        return str(refusal)
    return None


def _given(network: Network, blobs: dict[ir.Value, Blob], value: ir.Value) -> Blob | None:
    dtype = elem_type(value)
    if dtype is None or dtype.name != "FLOAT":
        # An operator that reads it is refused.
        return None
    blobs[value] = network.given(shape_in_ncnn(shape_of(value)))
    return blobs[value]


def _lower(node: ir.Node, network: Network, blobs: dict[ir.Value, Blob]) -> None:
    operator = Operator(node, network, blobs)
    lowering = _LOWERINGS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if lowering is None:
        raise Unsupported(f"ncnn is not used for {node.domain or 'ONNX'} {node.op_type}")
    operator.refuse_types()
    made = lowering(operator)
    for value, blob in zip(node.outputs, made, strict=False):
        if math.prod(shape_of(value)) != math.prod(blob.shape):
            raise operator.refuse(f"makes {list(shape_of(value))}, and {list(blob.shape)} in ncnn")
        blobs[value] = blob


def _output(network: Network, blobs: Mapping[ir.Value, Blob], value: ir.Value) -> Blob:
    blob = blobs.get(value)
    if blob is None:
        raise Unsupported(f"ncnn is not used for outputs that are constant or not float32 ({value.name!r})")
    return blob


@dataclass(frozen=True)
class _GroupNorm:
    """A group normalisation in the operators that exporters write it in.

    Attributes:
        root: The last operator.
        nodes: The others.
        x: The operand.
        groups: Number of groups.
        epsilon: Epsilon of the instance normalisation inside it.
        scale: One number for each channel.
        bias: One number for each channel.
    """

    root: ir.Node
    nodes: tuple[ir.Node, ...]
    x: ir.Value
    groups: int
    epsilon: float
    scale: np.ndarray
    bias: np.ndarray

    def lower(self, network: Network, blobs: Mapping[ir.Value, Blob]) -> Blob:
        """Add the layer that replaces the whole pattern."""
        shape = shape_of(self.x)
        blob = network.reshaped(blobs[self.x], (shape[1], 1, shape[2]) if len(shape) == 3 else shape[1:])
        parameters = {0: self.groups, 1: shape[1], 2: self.epsilon, 3: 1}
        return network.add("GroupNorm", [blob], blob.shape, parameters, [self.scale, self.bias])


def _group_norm_at(last: ir.Node) -> _GroupNorm | None:
    """Return the group normalisation that ends with an operator.

    It is a Reshape of groups to channels, an InstanceNormalization, a Reshape back, and a scale and a bias by channel.
    """
    if last.op_type != "Add" or len(last.inputs) != 2:
        return None
    nodes: list[ir.Node] = []
    factors = []
    node: ir.Node | None = last
    for kind in ("Add", "Mul"):
        assert node is not None
        operands = list(node.inputs)
        if node.op_type != kind or len(operands) != 2:
            return None
        constants = [i for i, value in enumerate(operands) if value is not None and value.const_value is not None]
        if len(constants) != 1:
            return None
        factors.append(operands[constants[0]])
        inner = operands[1 - constants[0]]
        node = _only_maker(inner)
        if node is None:
            return None
        nodes.append(node)
    back = node
    norm = _only_maker(back.inputs[0]) if back is not None and back.op_type == "Reshape" else None
    first = _only_maker(norm.inputs[0]) if norm is not None and norm.op_type == "InstanceNormalization" else None
    if back is None or norm is None or first is None or first.op_type != "Reshape" or first.inputs[0] is None:
        return None
    x = first.inputs[0]
    try:
        shape, between, out = (shape_of(value) for value in (x, first.outputs[0], back.outputs[0]))
    except Unsupported:
        return None
    if len(shape) not in (3, 4) or len(between) != 3 or out != shape or shape[0] != 1 or between[0] != 1:
        return None
    groups, channels = between[1], shape[1]
    bias, scale = (_by_channel(factor, shape) for factor in factors)
    inner_scale, inner_bias = (_vector(norm.inputs[i], groups) for i in (1, 2))
    if scale is None or bias is None or inner_scale is None or inner_bias is None or channels % groups:
        return None
    if not (inner_scale == 1).all() or inner_bias.any():
        return None
    epsilon = norm.attributes.get_float("epsilon", 1e-5)
    return _GroupNorm(last, (*nodes, norm, first), x, groups, float(1e-5 if epsilon is None else epsilon), scale, bias)


def _only_maker(value: ir.Value | None) -> ir.Node | None:
    """Return the operator that makes a value which one operator reads, and nothing else."""
    if value is None or value.is_graph_output() or len(value.uses()) != 1:
        return None
    return value.producer()


def _by_channel(value: ir.Value | None, shape: tuple[int, ...]) -> np.ndarray | None:
    array = _finite(value)
    if array is None or array.ndim > len(shape):
        return None
    lengths = (1,) * (len(shape) - array.ndim) + array.shape
    return array.reshape(-1) if lengths == (1, shape[1], *(1,) * (len(shape) - 2)) else None


def _vector(value: ir.Value | None, length: int) -> np.ndarray | None:
    array = _finite(value)
    return array if array is not None and array.shape == (length,) else None


def _finite(value: ir.Value | None) -> np.ndarray | None:
    tensor = None if value is None else value.const_value
    array = None if tensor is None else tensor.numpy()
    return array if array is not None and array.dtype == np.float32 and np.isfinite(array).all() else None
