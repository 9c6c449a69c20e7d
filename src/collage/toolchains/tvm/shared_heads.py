"""Products with keys or values that several queries share, which exporters repeat for each of them.

Attention with grouped queries copies a head of keys for each of its queries: of a cache of a thousand tokens that is four times
the bytes, written twice. The queries of one head of keys, below each other, are rows of one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax, sym

from collage.toolchains.tvm.length_numbers import has_lengths
from collage.toolchains.tvm.weight_layout import bound_call

__all__ = ["product_of_groups"]

_RANK = 4
_HEADS = 1
"""The axis of heads in [batch, heads, length, width]."""
_SWAPPED = [0, 1, 3, 2]


@dataclass(frozen=True, slots=True)
class _Shared:
    """Heads that are repeated for several queries each.

    Attributes:
        heads: The tensor before it is repeated, [batch, heads, length, width].
        is_swapped: True if the last two axes are swapped afterwards.
        factors: Constants of one element that it is multiplied by afterwards.
    """

    heads: Any
    is_swapped: bool = False
    factors: tuple[Any, ...] = ()


def product_of_groups(bb: Any, x: Any, y: Any) -> Any | None:
    """Return the product of queries with heads that several of them share, one product for each head; None for others.

    Args:
        bb: TVM's builder of blocks.
        x: The left operand.
        y: The right operand.
    """
    shared = _shared(bb, y) if _is_of_heads(x) else None
    if shared is None:
        return None
    emit = bb.normalize
    batch, heads, rows, width = x.ty.shape.values
    groups = shared.heads.ty.shape.values[_HEADS]
    if not _are_equal([batch], [shared.heads.ty.shape.values[0]]):
        return None
    of_group = int(heads) // int(groups)
    right = emit(relax.op.permute_dims(shared.heads, _SWAPPED)) if shared.is_swapped else shared.heads
    for factor in shared.factors:
        right = emit(relax.op.multiply(right, factor))
    left = emit(relax.op.reshape(x, relax.ShapeExpr([batch, groups, of_group * rows, width])))
    made = emit(relax.op.matmul(left, right))
    return relax.op.reshape(made, relax.ShapeExpr([batch, heads, rows, y.ty.shape.values[-1]]))


def _is_of_heads(x: Any) -> bool:
    return has_lengths(x) and x.ty.ndim == _RANK and isinstance(x.ty.shape.values[_HEADS], tvm.tirx.IntImm)


def _shared(bb: Any, y: Any) -> _Shared | None:
    """Return the heads that a tensor [batch, heads, length, width] repeats, maybe with its last axes swapped; None for others."""
    if not _is_of_heads(y):
        return None
    if (product := bound_call(bb, y, "relax.multiply")) is not None and _is_number(product.args[1]):
        found = _shared(bb, product.args[0])
        return None if found is None else replace(found, factors=(*found.factors, product.args[1]))
    if (turned := bound_call(bb, y, "relax.permute_dims")) is not None:
        return _swapped(bb, turned.args[0]) if _axes_of(turned) == _SWAPPED else None
    if (parted := bound_call(bb, y, "relax.reshape")) is None:
        return None
    turned = bound_call(bb, parted.args[0], "relax.permute_dims")
    return _repeated(bb, y, parted.args[0]) if turned is None else _swapped_with_merged_heads(bb, y, turned)


def _swapped(bb: Any, before: Any) -> _Shared | None:
    """Return the heads of a tensor whose last axes were swapped, from the one before that."""
    found = _shared(bb, before)
    return None if found is None or found.is_swapped or found.factors else replace(found, is_swapped=True)


def _swapped_with_merged_heads(bb: Any, y: Any, turned: Any) -> _Shared | None:
    """Return the heads of a tensor whose batch and heads were one axis while its last axes were swapped."""
    merged = bound_call(bb, turned.args[0], "relax.reshape")
    if merged is None or _axes_of(turned) != [0, 2, 1] or not _is_of_heads(merged.args[0]):
        return None
    batch, heads, length, width = merged.args[0].ty.shape.values
    inner = turned.args[0].ty.shape.values[1:]
    if not (_are_equal(inner, [length, width]) and _are_equal(y.ty.shape.values, [batch, heads, width, length])):
        return None
    return _swapped(bb, merged.args[0])


def _repeated(bb: Any, y: Any, parted: Any) -> _Shared | None:
    """Return the heads that a tensor with an axis of copies, behind that of heads, holds; None if there is no such axis."""
    wide = bound_call(bb, parted, "relax.broadcast_to")
    single = None if wide is None else bound_call(bb, wide.args[0], "relax.expand_dims")
    if single is None or [int(axis) for axis in single.attrs.axis] != [_HEADS + 1] or not has_lengths(parted):
        return None
    heads, copies = single.args[0], parted.ty.shape.values[_HEADS + 1]
    if not _is_of_heads(heads) or not isinstance(copies, tvm.tirx.IntImm):
        return None
    batch, groups, length, width = heads.ty.shape.values
    is_repeated = _are_equal(parted.ty.shape.values, [batch, groups, copies, length, width])
    return (
        _Shared(heads)
        if is_repeated and _are_equal(y.ty.shape.values, [batch, groups * copies, length, width])
        else None
    )


def _axes_of(turned: Any) -> list[int]:
    return [int(axis) for axis in turned.attrs.axes or ()]


def _is_number(x: Any) -> bool:
    return isinstance(x, tvm.ir.GenericConst) and x.value.numpy().size == 1 and x.value.numpy().ndim <= _RANK


def _are_equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(sym.Analyzer().can_prove_equal, some, others))
