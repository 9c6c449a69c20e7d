"""Products of rows with weights of 4 or 8 bits, in blocks that have a scale each.

A product of few rows takes as long as reading its weights does. Before import, each such product becomes an operator of our own;
its importer writes plain loops, after which other operators are fused; and a pass writes the loops of ``narrow_loops`` for them.
``stored_weights`` does the same for products whose weights a model stores in few bits.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import ir, relax, te
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from collage._errors import Unsupported
from collage.graph import remove_unused_initializers
from collage.toolchains.sdk.narrow_weights import in_blocks, is_narrowed, register_constant, summed_length
from collage.toolchains.tvm.lengths import i64, lengths_of
from collage.toolchains.tvm.narrow_loops import ByteLoops, FloatLoops, Narrow, NarrowLoops, scale_in
from collage.toolchains.tvm.nests import Nest, Unlike, all_of, rewrite_nests
from collage.toolchains.tvm.processor import Processor
from collage.toolchains.tvm.products import RowProduct
from collage.toolchains.tvm.stored_weights import CHUNK, replace_product
from collage.toolchains.tvm.weight_layout import Packer

if TYPE_CHECKING:
    import onnx_ir

__all__ = ["narrow_product", "use_narrow_products", "use_narrow_weights"]

_BLOCK_NAME = "product_of_{}_bits_and_{}"
_ROUNDED = "rounded_rows"
_WITH_ZEROS = "_with_zeros"
_NAMED = re.compile(r"product_of_(\d+)_bits_and_(rounded_rows|rows)(_with_zeros)?")
_LOWER_HALF = np.uint32(0xFFFF)


def use_narrow_weights(kernel: onnx_ir.Model, bits: int) -> None:
    """Replace products of few rows with large constant weights by ``NARROW_PRODUCT``, each in its place.

    Args:
        kernel: The kernel.
        bits: Bits of a weight.

    Raises:
        Unsupported: There is no such product whose columns split into blocks.
    """
    graph = kernel.graph
    products = [node for node in graph if is_narrowed(node) and summed_length(node) % CHUNK == 0]
    if not products:
        raise Unsupported("tvm finds no MatMul or Gemm of few rows with large constant weights that splits into blocks")
    for node in products:
        parts = zip(("integers", "scales"), in_blocks(node, bits), strict=True)
        constants = [register_constant(graph, f"{node.name}.{part}", array) for part, array in parts]
        replace_product(node, [node.inputs[0], *constants, *node.inputs[2:]], bits, True)
    remove_unused_initializers(graph)


def narrow_product(
    bb: Any, attrs: Mapping[str, Any], x: Any, integers: Any, scales: Any, bias: Any = None, zeros: Any = None
) -> Any:
    """Return the product of rows [..., K] with integers [K, N], which have zero points, times their scales, plus a bias.

    Args:
        bb: TVM's builder of blocks.
        attrs: The attributes of a ``NARROW_PRODUCT``.
        x: The rows.
        integers: The integers.
        scales: The scales of blocks [K / B, N], in float32.
        bias: The bias, if there is one.
        zeros: The zero points of blocks [K / B, N], if they are not 0.
    """
    digits = scales.value.numpy().view(np.uint32)
    # Scales that have no more digits than a bfloat16 are half as many bytes.
    if not (digits & _LOWER_HALF).any():
        scales = relax.const((digits >> 16).astype(np.uint16), "uint16")
    given = [x, integers, scales, *([] if zeros is None else [zeros])]
    product = functools.partial(_product, bits=attrs["bits"], rounds=bool(attrs["rounds"]))
    y = bb.emit_te(product, *given, primfunc_name_hint="narrow_matmul")
    return y if bias is None else relax.op.add(y, bias)


def _product(x: Any, integers: Any, scales: Any, zeros: Any = None, *, bits: int, rounds: bool) -> Any:
    depth, columns = integers.shape
    block = int(depth) // int(scales.shape[0])
    k = te.reduce_axis((0, depth), name="k")

    def element(*place: Any) -> Any:
        group = k // block, place[-1]
        integer = integers[k, place[-1]].astype("float32")
        weight = integer if zeros is None else integer - zeros[*group].astype("float32")
        return te.sum(x[*place[:-1], k] * (weight * scale_in(scales, *group)), axis=k)

    name = _BLOCK_NAME.format(bits, _ROUNDED if rounds else "rows") + ("" if zeros is None else _WITH_ZEROS)
    return te.compute((*x.shape[:-1], columns), element, name=name)


def use_narrow_products(target: Any) -> Any:
    """Return a pass that rewrites such products. It runs at TVM's highest optimisation level only."""
    return rewrite_nests(target, "narrow", _rewritten, of_weights=False)


def _rewritten(nest: Nest, function: Any, processor: Processor) -> tuple[Any, Mapping[int, Packer]]:
    found = _NAMED.match(str(nest.anchor.name_hint))
    if found is None or nest.padding is not None:
        raise Unlike
    data, weight, scales = function.params[:3]
    depth, columns = lengths_of(weight)
    *lengths, last = lengths_of(data)
    narrow = Narrow(int(found[1]), depth // lengths_of(scales)[0], found[3] is not None)
    loads = [load for load in all_of(nest.anchor.body.value, ir.TensorLoad) if load.source.same_as(data)]
    if last != depth or len(loads) != 1 or narrow.block % CHUNK:
        raise Unlike
    kind = ByteLoops if processor.multiplies_bytes and found[2] == _ROUNDED else FloatLoops
    tile = kind.tile(math.prod(lengths), columns, processor)
    product = RowProduct(lengths, lengths, None, (), (), (), depth, columns, tile, processor.threads)
    return _write(kind, product, narrow, function, nest), {
        1: lambda integers: narrow.packed(_in_panels(integers, product)),
        2: lambda scales: _packed_scales(scales, product, kind.factor_of(narrow)),
        **({3: lambda zeros: _in_panels(zeros, product)} if narrow.has_zeros else {}),
    }


def _packed_scales(scales: np.ndarray, product: RowProduct, factor: float) -> np.ndarray:
    """Return scales [blocks, N] times a power of two as [panels, blocks, columns of a panel]."""
    panels = _in_panels(scales, product)
    if scales.dtype == np.float32:
        return np.asarray(panels * np.float32(factor))
    floats = (panels.astype(np.uint32) << 16).view(np.float32) * np.float32(factor)
    return (floats.view(np.uint32) >> 16).astype(np.uint16)


def _in_panels(array: np.ndarray, product: RowProduct) -> np.ndarray:
    """Return an array [rows, columns] as [panels, rows, columns of a panel], with columns of zeros in the last."""
    padded = np.pad(array, [(0, 0), (0, product.panels * product.tile.panel - product.columns)])
    return np.ascontiguousarray(padded.reshape(len(array), product.panels, -1).transpose(1, 0, 2))


def _write(kind: type[NarrowLoops], product: RowProduct, narrow: Narrow, function: Any, nest: Nest) -> Any:
    """Return a scheduled function of a product and the operators after it."""
    data, _, given, *others, output = function.params
    if narrow.has_zeros:
        del others[0]
    panel = product.tile.panel
    with IRBuilder() as builder, build.prim_func(s_tir=True, private=True):
        build.func_name("narrow")
        build.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        build.arg("data", data)
        shape = [i64(n) for n in (product.panels, product.depth // CHUNK * narrow.bits, panel)]
        words = build.arg("words", build.buffer(shape, "int32", layout=None))
        shape = [i64(n) for n in (product.panels, product.depth // narrow.block, panel)]
        scales = build.arg("scales", build.buffer(shape, given.dtype, layout=None))
        zeros = build.arg("zeros", build.buffer(shape, "int8", layout=None)) if narrow.has_zeros else None
        for i, other in enumerate(others):
            build.arg(f"other_{i}", other)
        build.arg("output", output)
        kind(product, narrow, data, words, (scales, zeros), output, nest.finish).write()
    return builder.get()
