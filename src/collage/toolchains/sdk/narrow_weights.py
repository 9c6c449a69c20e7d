"""Kernels whose matrix products read weights of 8 or 4 bits, and compute in floats or, in short blocks, in bytes.

A product of few rows takes as long as reading its weights does. With many rows it takes longer than with floats, so
such products stay as they are.

Weights of 4 bits have a scale for each block, the one of least squares, and no zero point. A block that holds such products
already keeps its integers: what calibration rounded is not rounded again. Weights become ``MatMulNBits``, or integers that a
``DequantizeLinear`` reads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from collage._errors import ModelError, Unsupported
from collage.graph import NameSupply, copy_model, remove_unused_initializers, stays_float
from collage.toolchains.sdk.int8_model import weight_scales
from collage.toolchains.sdk.model_files import elem_type, values_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.toolchains._contract import Tensor

__all__ = [
    "BLOCK",
    "in_blocks",
    "is_narrowed",
    "is_transposed",
    "profits",
    "register_constant",
    "rounded_blocks",
    "splits_into_blocks",
    "summed_length",
    "with_narrow_weights",
]

BLOCK = 32
"""Weights of 4 bits, along a column, that share a scale."""
_BLOCK = {8: 128, 4: BLOCK}
_MOST_ROWS = 32
_FEWEST_WEIGHTS = 1 << 16
"""Fewer stay in the caches of a core."""
_DOMAIN = "com.microsoft"
_ROUNDS_ACTIVATIONS = 4
_BLOCKED_OPSET = 21
"""The first operator set in which ``DequantizeLinear`` has blocks, and 4 bits."""
_LOWEST = {4: -8, 8: -127}
_CHUNK = 1 << 16
"""Weights that are rounded at a time, so that intermediate values stay in a core's cache."""


def with_narrow_weights(kernel: ir.Model, bits: int, *, dequantizes: bool = False) -> ir.Model:
    """Return a copy of a kernel whose products of few rows with large constant weights read narrow ones.

    Args:
        kernel: The kernel.
        bits: Bits of a weight.
        dequantizes: Write ``DequantizeLinear`` where it can express the weights, and ``MatMulNBits`` elsewhere.

    Raises:
        Unsupported: There is no such product.
    """
    if not any(is_narrowed(node) for node in kernel.graph):
        raise Unsupported(f"the kernel has no MatMul or Gemm of at most {_MOST_ROWS} rows with large constant weights")
    made = copy_model(kernel)
    if dequantizes and bits == 4:
        made, dequantizes = _with_blocks(made)
    names = NameSupply(reserved=[str(value.name) for value in values_of(made.graph) if value.name])
    names.reserve(node.name for node in made.graph.all_nodes() if node.name)
    for node in [node for node in made.graph if is_narrowed(node)]:
        if dequantizes and (bits == 8 or summed_length(node) % _BLOCK[bits] == 0):
            _dequantize(made.graph, node, bits, names)
        else:
            _replace(made.graph, node, bits, names)
            made.graph.opset_imports[_DOMAIN] = 1
    remove_unused_initializers(made.graph)
    return made


def _with_blocks(kernel: ir.Model) -> tuple[ir.Model, bool]:
    """Return a kernel in an operator set that has blocks of 4 bits, and True; itself and False if it cannot be raised."""
    from collage.frontend import in_opset

    if kernel.graph.opset_imports.get("", 0) >= _BLOCKED_OPSET:
        return kernel, True
    try:
        return in_opset(kernel, _BLOCKED_OPSET), True
    except (ModelError, ValueError):
        return kernel, False


def profits(node: ir.Node) -> bool:
    """Return True for a product of few rows with large constant weights in floats: it reads narrow ones."""
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
    return rows <= _MOST_ROWS


def is_narrowed(node: ir.Node) -> bool:
    """Return True for a product that profits, and of which all weights are finite."""
    return profits(node) and bool(np.isfinite(_array(node.inputs[1])).all())


def is_transposed(node: ir.Node) -> bool:
    """Return True if the weights [N, K] of a product are transposed."""
    return node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0


def summed_length(node: ir.Node) -> int:
    """Return the length of the axis that a product sums over."""
    return int(_array(node.inputs[1]).shape[1 if is_transposed(node) else 0])


def splits_into_blocks(node: ir.Node) -> bool:
    """Return True for a product of which every toolchain can read weights of 4 bits: its columns split into blocks."""
    return is_narrowed(node) and summed_length(node) % _BLOCK[4] == 0


def in_blocks(node: ir.Node, bits: int) -> tuple[Tensor, Tensor]:
    """Return the weights of a product as integers [K, N] (int8), and the scale of each block [K / B, N] (float32, of 16 bits).

    Args:
        node: A product that is narrowed.
        bits: Bits of a weight. Of 8, a column is one block. Of 4, ``summed_length`` is a multiple of the block's 32.
    """
    weight = _array(node.inputs[1])
    columns = np.ascontiguousarray(weight if is_transposed(node) else weight.T, np.float32)
    if bits == 4:
        integers, scales = _in_blocks(columns)
    else:
        scales = _of_16_bits(weight_scales(columns, 0, bits))[:, None]
        integers = np.clip(np.rint(columns / scales), _LOWEST[bits], -_LOWEST[bits]).astype(np.int8)
    return np.ascontiguousarray(integers.T), np.ascontiguousarray(scales.T)


def _of_16_bits(scales: Tensor) -> Tensor:
    """Return scales with the digits of a bfloat16. Toolchains that keep scales in 16 bits lose nothing then."""
    bits = np.ascontiguousarray(scales, np.float32).view(np.uint32)
    rounded: Tensor = ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(rounded == 0, np.float32(1), rounded)


def _dequantize(graph: ir.Graph, node: ir.Node, bits: int, names: NameSupply) -> None:
    """Have a product read integers: of 4 bits in blocks, of 8 bits with a scale for each result channel."""
    import ml_dtypes
    import onnx_ir as ir

    along = 1 if is_transposed(node) else 0
    integers, scales = in_blocks(node, bits)
    if along:
        integers, scales = np.ascontiguousarray(integers.T), np.ascontiguousarray(scales.T)
    if bits == 8:
        scales, attributes = scales.reshape(-1), [ir.AttrInt64("axis", 1 - along)]
    else:
        integers = integers.astype(ml_dtypes.int4)
        attributes = [ir.AttrInt64("axis", along), ir.AttrInt64("block_size", _BLOCK[bits])]
    old = node.inputs[1]
    assert old is not None
    values = [
        register_constant(graph, names.fresh(f"{node.name}_{part}"), array)
        for part, array in (("bits", integers), ("scale", scales))
    ]
    read = ir.Node("", "DequantizeLinear", values, attributes, name=names.fresh(f"{node.name}_dq"))
    read.outputs[0].name, read.outputs[0].type = names.fresh(f"{node.name}_weights"), old.type
    read.outputs[0].shape = ir.Shape(integers.shape)
    graph.insert_before(node, read)
    node.replace_input_with(1, read.outputs[0])


def _replace(graph: ir.Graph, node: ir.Node, bits: int, names: NameSupply) -> None:
    """Put a product with narrow weights in the place of one, and the addition of its bias behind it."""
    import onnx_ir as ir

    weight = _array(node.inputs[1])
    weight = weight.T if is_transposed(node) else weight
    rows, columns = weight.shape
    arrays = zip(("bits", "scale", "zero"), _packed(weight, bits), strict=False)
    constants = [register_constant(graph, names.fresh(f"{node.name}_{part}"), array) for part, array in arrays]
    sizes = {"K": rows, "N": columns, "bits": bits, "block_size": _BLOCK[bits], "accuracy_level": _ROUNDS_ACTIVATIONS}
    attributes = [ir.AttrInt64(name, number) for name, number in sizes.items()]
    given = [node.inputs[0], *constants]
    product = ir.Node(_DOMAIN, "MatMulNBits", given, attributes, name=node.name, metadata_props=node.metadata_props)
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


def _packed(weight: Tensor, bits: int) -> tuple[Tensor, ...]:
    """Return bits, scales and, of 8 bits, zero points of each block, as ``MatMulNBits`` takes them."""
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, DefaultWeightOnlyQuantizer

    if bits == 8:
        config = DefaultWeightOnlyQuantConfig(block_size=_BLOCK[bits], is_symmetric=False, bits=bits)
        packed, scales, zeros = DefaultWeightOnlyQuantizer(config).qbits_block_quant(np.ascontiguousarray(weight))
        return packed, scales, zeros
    padded = np.pad(weight.T, ((0, 0), (0, -len(weight) % _BLOCK[bits])))
    integers, scales = _in_blocks(padded)
    halves = (integers - _LOWEST[bits]).astype(np.uint8).reshape(len(scales), -1, _BLOCK[bits] // 2, 2)
    return halves[..., 0] | halves[..., 1] << 4, scales


def _in_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers of 4 bits, and the scale of each block along the last axis, of which the length is a multiple."""
    rows, columns = weight.shape
    block, at_once = _BLOCK[4], max(1, _CHUNK // columns)
    integers = np.empty((rows, columns), np.int8)
    scales = np.empty((rows, columns // block), np.float32)
    for start in range(0, rows, at_once):
        chunk = np.ascontiguousarray(weight[start : start + at_once], np.float32)
        blocks = chunk.reshape(len(chunk), -1, block)
        found, scale = (_found_again(blocks[:1]) and _found_again(blocks)) or rounded_blocks(blocks)
        integers[start : start + at_once], scales[start : start + at_once] = found.reshape(chunk.shape), scale
    return integers, scales


def _found_again(blocks: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the integers and the scales of blocks that hold nothing but their products; None if one holds anything else."""
    lowest = _LOWEST[4]
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1)
    integers, scales = np.zeros_like(blocks), np.ones_like(largest)
    left = largest != 0
    for steps in range(lowest, 0):
        scale = np.where(left, largest / np.float32(steps), np.float32(1))
        found = blocks / scale
        fits = (found == np.rint(found)) & (found >= lowest) & (found < -lowest)
        fits = left & (scale == _of_16_bits(scale)) & fits.all(-1, keepdims=True)
        integers, scales, left = np.where(fits, found, integers), np.where(fits, scale, scales), left & ~fits
    return None if left.any() else (integers.astype(np.int8), scales[..., 0])


def rounded_blocks(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integers of blocks of 4 bits along the last axis [..., B], and the scale of each [...]."""
    lowest = _LOWEST[4]
    # The largest weight, of either sign, becomes the lowest integer, which has no counterpart.
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1) / np.float32(lowest)
    unit = np.where(largest == 0, np.float32(1), largest)
    shares = blocks / unit
    integers = np.clip(np.rint(shares), lowest, -lowest - 1)
    # The scale of least squares for these integers. Smaller scales, which clip the largest weights, err less by squares, and
    # answers err more: `python -m benchmarks.rounded_weights`.
    squares = np.square(integers).sum(-1, keepdims=True)
    best = (integers * shares).sum(-1, keepdims=True) / np.maximum(squares, 1)
    scales = _of_16_bits(np.where(squares == 0, np.float32(1), best) * unit)
    return np.clip(np.rint(blocks / scales), lowest, -lowest - 1), scales[..., 0]


def register_constant(graph: ir.Graph, name: str, array: Tensor) -> ir.Value:
    """Return a new initializer of a graph."""
    import onnx_ir as ir

    tensor = ir.Tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def _array(value: ir.Value | None) -> Any:
    assert value is not None and value.const_value is not None
    return value.const_value.numpy()
