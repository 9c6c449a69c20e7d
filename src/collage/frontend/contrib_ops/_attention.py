"""Attention, as ONNX Runtime's transformer optimiser writes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx

from collage.frontend.contrib_ops._fused import scaled
from collage.frontend.contrib_ops._quantised import dequantised
from collage.frontend.contrib_ops._writer import Body, Definition, Undefined

__all__ = ["ATTENTION"]

_MASKED = -10000.0
"""Value added to a score that is masked out, unless the node names another."""


class _Inputs(NamedTuple):
    """Projected heads of an attention: [N, heads, length, width] each."""

    query: str
    key: str
    value: str


def _attention(b: Body) -> Sequence[str]:
    """Input [N, S, D], weights [D, Hq + Hk + Hv], bias, mask, past [2, N, heads, P, width], addend to the scores."""
    if b.has(6) or b.get("do_rotary", 0) or b.get("past_present_share_buffer", 0):
        raise Undefined
    widths = list(b.get("qkv_hidden_sizes", ())) or [b.length(1, 1) // 3] * 3
    if min(widths) < 1:
        raise Undefined
    return _self_attention(b, b("MatMul", b.input(0), b.input(1)), widths, mask=3, past=4, addend=5)


def _quantised_attention(b: Body) -> Sequence[str]:
    """Input and weights in bytes, bias, their scales (of the weights by column, perhaps), mask, their zero points, past."""
    if b.get("do_rotary", 0) or b.get("past_present_share_buffer", 0):
        raise Undefined
    b.compute_in(3)
    widths = [b.length(1, 1) // 3] * 3
    if min(widths) < 1:
        raise Undefined
    product = b("MatMul", dequantised(b, 0, at=(0, 3, 6)), dequantised(b, 1, 1, at=(1, 4, 7)))
    return _self_attention(b, product, widths, mask=5, past=8)


def _self_attention(
    b: Body, joint: str, widths: Sequence[int], *, mask: int, past: int, addend: int | None = None
) -> Sequence[str]:
    """Queries, keys and values of a product [N, S, Hq + Hk + Hv] without its bias; and the cache afterwards."""
    joint = b("Add", joint, b.input(2)) if b.has(2) else joint
    parts = b.several(3, "Split", joint, b.integers(*widths), axis=-1)
    heads = _Inputs(*(_heads(b, x, width) for x, width in zip(parts, widths, strict=True)))
    before = [b("Gather", b.input(past), b.integer(i), axis=0) for i in (0, 1)] if b.has(past) else []
    heads = _after_past(b, heads, before)
    y = _attended(b, heads, widths[0], widths[2], mask=mask, addend=addend, past=past)
    if not b.wants(1):
        return [y]
    both = [b("Unsqueeze", x, b.integers(0)) for x in (heads.key, heads.value)]
    return [y, b("Concat", *both, axis=0)]


def _multi_head_attention(b: Body) -> Sequence[str]:
    """Query [N, S, H], key and value [N, T, H] or as heads, bias [2 H + Hv], mask, addend, past key and value."""
    if not (b.has(1) and b.has(2)) or any(map(b.has, (8, 9))) or b.rank(0) not in (3, None) or b.wants(3):
        raise Undefined
    names = [b.input(i) for i in range(3)]
    width = b.length(0, 2)
    given_as_heads = b.rank(1) == 4
    value_width = b.length(2, 1) * b.length(2, 3) if given_as_heads else b.length(2, 2)
    widths = [width, width, value_width]
    if b.has(3) and min(widths) > 0:
        b.need(not given_as_heads)
        biases = b.several(3, "Split", b.input(3), b.integers(*widths), axis=0)
        names = [b("Add", x, bias) for x, bias in zip(names, biases, strict=True)]
    query = _heads(b, names[0], width)
    key, value = names[1:] if given_as_heads else (_heads(b, x, w) for x, w in zip(names[1:], widths[1:], strict=True))
    heads = _after_past(b, _Inputs(query, key, value), [b.input(i) for i in (6, 7) if b.has(i)])
    return [_attended(b, heads, width, value_width, mask=4, addend=5, past=6), heads.key, heads.value]


def _heads(b: Body, x: str, width: int) -> str:
    """[N, S, heads * w] as [N, heads, S, w]."""
    count = b.get("num_heads", 0)
    if count < 1 or (width > 0 and width % count):
        raise Undefined
    lengths = b.integers(0, 0, count, width // count if width > 0 else -1)
    return b("Transpose", b("Reshape", x, lengths), perm=[0, 2, 1, 3])


def _after_past(b: Body, heads: _Inputs, past: Sequence[str]) -> _Inputs:
    if not past:
        return heads
    key, value = (b("Concat", old, new, axis=2) for old, new in zip(past, heads[1:], strict=True))
    return _Inputs(heads.query, key, value)


def _attended(
    b: Body, heads: _Inputs, width: int, value_width: int, *, mask: int, addend: int | None, past: int
) -> str:
    """[N, S, value_width]: values, weighted by how well keys fit queries."""
    scale = b.get("scale", 0.0) or 1 / math.sqrt(abs(width) / b.get("num_heads", 1))
    scores = b("MatMul", scaled(b, heads.query, scale), b("Transpose", heads.key, perm=[0, 1, 3, 2]))
    if addend is not None and b.has(addend):
        scores = b("Add", scores, b.input(addend))
    if b.exact and (b.has(mask) or b.get("unidirectional", 0)):
        scores = b("Add", scores, _penalties(b, scores, mask, past))
    weighted = b("MatMul", b("Softmax", scores, axis=-1), heads.value)
    return b("Reshape", b("Transpose", weighted, perm=[0, 2, 1, 3]), b.integers(0, 0, value_width))


def _penalties(b: Body, scores: str, mask: int, past: int) -> str:
    """Addends to scores [N, heads, S, T]: for keys that do not count, and the least number for those that come later."""
    penalties = _penalties_of_mask(b, mask) if b.has(mask) else b.number(0)
    return b("Where", _later(b, scores, past), b.least(), penalties) if b.get("unidirectional", 0) else penalties


def _penalties_of_mask(b: Body, mask: int) -> str:
    """The mask for scores, made of [N, T] or [N, S, T]: keys count where it is above 0."""
    axes = {2: (1, 2), 3: (1,)}.get(b.rank(mask) or 0)
    if axes is None:
        raise Undefined
    numbers = b("Cast", b.input(mask), to=onnx.TensorProto.INT64)
    is_masked = b("Unsqueeze", b("LessOrEqual", numbers, b.integer(0)), b.integers(*axes))
    return b("Where", is_masked, b.number(b.get("mask_filter_value", _MASKED)), b.number(0))


def _later(b: Body, scores: str, past: int) -> str:
    """[S, T]: true for keys that come after a query, counted from the end of the past. The last query sees all keys."""
    queries, keys = (b.length_of(scores, axis) for axis in (2, 3))
    rows = ends = b("Unsqueeze", b.counted(queries), b.integers(1))
    if b.has(past):
        rank = b.rank(past)
        if rank is None:
            raise Undefined
        ends = b("Add", rows, b.length_of(b.input(past), rank - 2))
    is_before_last = b("Less", b("Add", rows, b.integers(1)), queries)
    return b("And", b("Greater", b.counted(keys), ends), is_before_last)


ATTENTION: Mapping[str, Definition] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
    "QAttention": _quantised_attention,
}
