"""Products with keys or values that several queries share, which exporters repeat for each of them.

Attention with grouped queries copies a head of keys for each of its queries: of a cache of a thousand tokens that is four times
the bytes, written twice. The queries of one head of keys, below each other, are rows of one product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, sym

from collage.toolchains.tvm.free_lengths import has_lengths

__all__ = ["product_of_groups"]

Lookup = Callable[[Any], Any]
"""Returns the call that a variable is bound to; None if there is none."""

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
    if not (_is_of_heads(x) and _is_of_heads(y)):
        return None
    shared = _shared(y, bb.lookup_binding)
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


def _shared(y: Any, lookup: Lookup) -> _Shared | None:
    """Return the heads that a tensor [batch, heads, length, width] repeats, maybe with its last axes swapped; None for others."""
    call = _call_of(y, lookup)
    if call is None:
        return None
    if call.op.name == "relax.multiply" and _is_number(call.args[1]):
        found = _shared(call.args[0], lookup) if _is_of_heads(call.args[0]) else None
        return None if found is None else _Shared(found.heads, found.is_swapped, (*found.factors, call.args[1]))
    if call.op.name == "relax.permute_dims" and [int(axis) for axis in call.attrs.axes or ()] == _SWAPPED:
        found = _shared(call.args[0], lookup) if _is_of_heads(call.args[0]) else None
        return _Shared(found.heads, True) if found is not None and not found.is_swapped and not found.factors else None
    if call.op.name != "relax.reshape":
        return None
    inner = _call_of(call.args[0], lookup)
    if inner is not None and inner.op.name == "relax.permute_dims":
        return _swapped_with_merged_heads(y, inner, lookup)
    return _repeated(y, call.args[0], lookup)


def _swapped_with_merged_heads(y: Any, permutation: Any, lookup: Lookup) -> _Shared | None:
    """Return the heads of a tensor whose batch and heads were one axis while its last axes were swapped."""
    merged = _call_of(permutation.args[0], lookup)
    if (
        merged is None
        or merged.op.name != "relax.reshape"
        or [int(a) for a in permutation.attrs.axes or ()] != [0, 2, 1]
    ):
        return None
    before = merged.args[0]
    found = _shared(before, lookup) if _is_of_heads(before) else None
    if found is None or found.is_swapped or found.factors:
        return None
    batch, heads, length, width = before.ty.shape.values
    inner = permutation.args[0].ty.shape.values[1:]
    if not (_are_equal(inner, [length, width]) and _are_equal(y.ty.shape.values, [batch, heads, width, length])):
        return None
    return _Shared(found.heads, True)


def _repeated(y: Any, parted: Any, lookup: Lookup) -> _Shared | None:
    """Return the heads that a tensor with an axis of copies, behind that of heads, holds; None if there is no such axis."""
    wide = _call_of(parted, lookup)
    if wide is None or wide.op.name != "relax.broadcast_to":
        return None
    single = _call_of(wide.args[0], lookup)
    if single is None or single.op.name != "relax.expand_dims" or [int(a) for a in single.attrs.axis] != [_HEADS + 1]:
        return None
    heads = single.args[0]
    if not _is_of_heads(heads) or not has_lengths(parted):
        return None
    batch, groups, length, width = heads.ty.shape.values
    copies = parted.ty.shape.values[_HEADS + 1]
    if not isinstance(copies, tvm.tirx.IntImm):
        return None
    is_repeated = _are_equal(parted.ty.shape.values, [batch, groups, copies, length, width])
    return (
        _Shared(heads)
        if is_repeated and _are_equal(y.ty.shape.values, [batch, groups * copies, length, width])
        else None
    )


def _call_of(x: Any, lookup: Lookup) -> Any | None:
    """Return the call of one of TVM's operators that a value is; None if it is something else."""
    call = lookup(x) if isinstance(x, relax.Var) else x
    return call if isinstance(call, relax.Call) and isinstance(call.op, tvm.ir.Op) else None


def _is_number(x: Any) -> bool:
    return isinstance(x, tvm.ir.GenericConst) and x.value.numpy().size == 1 and x.value.numpy().ndim <= _RANK


def _are_equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(sym.Analyzer().can_prove_equal, some, others))
