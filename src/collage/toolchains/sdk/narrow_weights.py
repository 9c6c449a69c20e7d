"""Kernels whose matrix products read weights of 8 or 4 bits, and compute in floats or, in short blocks, in bytes.

A product of few rows takes as long as reading its weights does. With many rows it takes longer than with floats, so
such products stay as they are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import Unsupported
from collage.graph import NameSupply, copy_model, stays_float
from collage.toolchains.sdk.model_files import elem_type, values_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.toolchains._contract import Tensor

__all__ = ["NARROW_BITS", "with_narrow_weights"]

NARROW_BITS = {"w8": 8, "w4": 4}
"""Values of the option ``precision``, with the bits of a weight."""

_BLOCK = {8: 128, 4: 32}
"""Weights, along a column, that share a scale and a zero point."""
_MOST_ROWS = 32
_FEWEST_WEIGHTS = 1 << 16
"""Fewer stay in the caches of a core."""
_DOMAIN = "com.microsoft"
_ROUNDS_ACTIVATIONS = 4


def with_narrow_weights(kernel: ir.Model, bits: int) -> ir.Model:
    """Return a copy of a kernel whose products of few rows with large constant weights are ``MatMulNBits``.

    Raises:
        Unsupported: There is no such product.
    """
    made = copy_model(kernel)
    nodes = [node for node in made.graph if _profits(node)]
    if not nodes:
        raise Unsupported(f"the kernel has no MatMul or Gemm of at most {_MOST_ROWS} rows with large constant weights")
    names = NameSupply(reserved=[str(value.name) for value in values_of(made.graph) if value.name])
    names.reserve(node.name for node in made.graph.all_nodes() if node.name)
    for node in nodes:
        _replace(made.graph, node, bits, names)
    made.graph.opset_imports[_DOMAIN] = 1
    for name, value in list(made.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del made.graph.initializers[name]
    return made


def _profits(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type not in ("MatMul", "Gemm") or stays_float(node) or len(node.inputs) < 2:
        return False
    x, weight = node.inputs[:2]
    if x is None or weight is None or x.const_value is not None or weight.is_graph_input():
        return False
    tensor, dtype = weight.const_value, elem_type(x)
    if dtype is None or dtype.name != "FLOAT" or tensor is None or len(tensor.shape) != 2:
        return False
    if x.shape is None or len(x.shape) < 2 or tensor.size < _FEWEST_WEIGHTS:
        return False
    rows = math.prod(size for size in tuple(x.shape)[:-1] if isinstance(size, int))
    if node.op_type == "Gemm":
        factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
        if factors != [1.0, 1.0] or node.attributes.get_int("transA", 0) != 0:
            return False
    return rows <= _MOST_ROWS and bool(np.isfinite(tensor.numpy()).all())


def _replace(graph: ir.Graph, node: ir.Node, bits: int, names: NameSupply) -> None:
    """Put a product with narrow weights in the place of one, and the addition of its bias behind it."""
    import onnx_ir as ir

    weight = _array(node.inputs[1])
    weight = weight.T if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0 else weight
    rows, columns = weight.shape
    constants = []
    for part, array in zip(("bits", "scale", "zero"), _packed(np.ascontiguousarray(weight), bits), strict=True):
        name = names.fresh(f"{node.name}_{part}")
        value = ir.Value(name=name, shape=ir.Shape(array.shape), const_value=ir.Tensor(array, name=name))
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        graph.register_initializer(value)
        constants.append(value)
    told = {"K": rows, "N": columns, "bits": bits, "block_size": _BLOCK[bits], "accuracy_level": _ROUNDS_ACTIVATIONS}
    attributes = [ir.AttrInt64(name, number) for name, number in told.items()]
    product = ir.Node(_DOMAIN, "MatMulNBits", [node.inputs[0], *constants], attributes, name=node.name)
    made, result = [product], node.outputs[0]
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        made.append(ir.Node("", "Add", [product.outputs[0], node.inputs[2]], name=names.fresh(f"{node.name}_bias")))
        product.outputs[0].name = names.fresh(f"{result.name}_product")
        product.outputs[0].type = result.type
    new = made[-1].outputs[0]
    new.type, new.shape = result.type, result.shape
    graph.insert_before(node, made)
    for use in tuple(result.uses()):
        use.node.replace_input_with(use.idx, new)
    for index, output in enumerate(graph.outputs):
        if output is result:
            graph.outputs[index] = new
    called = result.name
    graph.remove(node, safe=True)
    result.name, new.name = names.fresh(f"{called}_float"), called


def _packed(weight: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of few bits, block by block, with a scale and a zero point for each."""
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, DefaultWeightOnlyQuantizer

    config = DefaultWeightOnlyQuantConfig(block_size=_BLOCK[bits], is_symmetric=False, bits=bits)
    packed, scales, zeros = DefaultWeightOnlyQuantizer(config).qbits_block_quant(weight)
    return packed, scales, zeros


def _array(value: ir.Value | None) -> Any:
    assert value is not None and value.const_value is not None
    return value.const_value.numpy()
