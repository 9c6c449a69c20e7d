"""ONNX's own operators for transformers, which came with operator set 23 and which hardly any toolchain reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx

from collage.frontend.contrib_ops._decoder import capped, turned
from collage.frontend.contrib_ops._fused import scaled
from collage.frontend.contrib_ops._writer import Body, Definition

__all__ = ["TRANSFORMERS"]

_BY_HEAD = 4
"""Rank of tensors [N, heads, S, width]. Others are [N, S, heads * width]."""
_WINDOWS = ("left_window_size", "right_window_size")
_KNOWN = frozenset(
    (
        *("is_causal", "kv_num_heads", "q_num_heads", "scale", "softcap", "softmax_precision"),
        *("qk_matmul_output_mode", *_WINDOWS),
    )
)
"""Attributes of attention. One that is not among them may change what it computes."""


def _attention(b: Body) -> Sequence[str]:
    """Query, key, value, mask, past key and past value. The result has the form of the query, the cache afterwards heads.

    Several heads of queries may share one of keys. The result for a query of which no key counts is 0.
    """
    b.need(not b.wants(3) and not b.has(6) and not set(b.attributes()) - _KNOWN)
    b.need(all(b.get(name, -1) == -1 for name in _WINDOWS))
    b.need(b.get("softmax_precision", b.kind(0)) == b.kind(0))
    (heads, width), (groups, _), (_, value_width) = (
        _heads_of(b, i, name) for i, name in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads"))
    )
    factor = b.get("scale", 1 / math.sqrt(width))
    b.need(heads % groups == 0 and 0 < factor < math.inf)
    query, key, value = (_by_head(b, i, count) for i, count in enumerate((heads, groups, groups)))
    if b.has(4):
        key, value = (b("Concat", b.input(i), x, axis=2) for i, x in ((4, key), (5, value)))

    def by_group(x: str, length: int) -> str:
        """Put the queries of a group below each other, so that they are rows of one product."""
        return x if heads == groups else b("Reshape", x, b.integers(0, groups, -1, length))

    def by_query(x: str, length: int) -> str:
        return x if heads == groups else b("Reshape", x, b.integers(0, heads, -1, length))

    rows, keys = scaled(b, by_group(query, width), factor), b("Transpose", key, perm=[0, 1, 3, 2])
    scores = capped(b, by_query(b("MatMul", rows, keys), 0))
    hidden = _hidden(b, query, key)
    if hidden:
        addend = b.input(3) if b.has(3) and not _is_truth(b) else b.number(0)
        scores = b("Add", scores, b("Where", hidden, b.least(), addend))
    weights = by_group(b("Softmax", scores, axis=-1), 0)
    y = by_query(b("MatMul", weights, value), value_width)
    if b.has(3):
        counts = b("ReduceMax", b("Where", hidden, b.number(0), b.number(1)), b.integers(-1))
        y = b("Where", b("Greater", counts, b.number(0)), y, b.number(0))
    if b.rank(0) != _BY_HEAD:
        y = b("Reshape", b("Transpose", y, perm=[0, 2, 1, 3]), b.integers(0, 0, heads * value_width))
    return [y, key, value]


def _hidden(b: Body, query: str, key: str) -> str:
    """Scores [S, T], or as the mask has them, that do not count; empty if all do.

    ONNX Runtime counts the least finite addend as an infinite one. For ONNX it is a number, which shows if a row has no other.
    """
    found = []
    if b.has(3):
        b.need(b.kind(3) in (onnx.TensorProto.BOOL, b.kind(0)))
        mask = b.input(3)
        found.append(b("Not", mask) if _is_truth(b) else b("LessOrEqual", mask, b.least()))
    if b.get("is_causal", 0):
        queries, keys = (b.length_of(x, 2) for x in (query, key))
        ends = b.counted(queries)
        if b.has(4):
            ends = b("Add", ends, b.length_of(b.input(4), 2))
        found.append(b("Greater", b.counted(keys), b("Unsqueeze", ends, b.integers(1))))
    return b("Or", *found) if len(found) > 1 else "".join(found)


def _is_truth(b: Body) -> bool:
    """Return True if the mask says which scores count, and is not added to them."""
    return bool(b.kind(3) == onnx.TensorProto.BOOL)


def _rotary_embedding(b: Body) -> Sequence[str]:
    """Heads, cosines and sines [places, r / 2] with places [N, S], or [N, S, r / 2] without.

    The first r numbers of a head are rotated, as pairs; the others are kept.
    """
    x, (count, width) = b.input(0), _heads_of(b, 0, "num_heads")
    by_head = b.rank(0) == _BY_HEAD
    rotated = 2 * b.length(1, (b.rank(1) or 0) - 1)
    b.need(b.get("rotary_embedding_dim", 0) in (0, rotated) and rotated <= width)
    turns = (b("Gather", b.input(i), b.input(3)) if b.has(3) else b.input(i) for i in (1, 2))
    cosines, sines = (b("Unsqueeze", turn, b.integers(1 if by_head else 2)) for turn in turns)
    y = turned(b, x if by_head else b("Reshape", x, b.integers(0, 0, count, width)), cosines, sines, rotated, width)
    return [y if by_head else b("Reshape", y, b.integers(0, 0, count * width))]


def _swish(b: Body) -> Sequence[str]:
    """A number times the sigmoid of a multiple of it."""
    return [b("Mul", b.input(0), b("Sigmoid", scaled(b, b.input(0), b.get("alpha", 1.0))))]


def _heads_of(b: Body, index: int, count: str) -> tuple[int, int]:
    """Number of heads of an input, and their width."""
    if b.rank(index) == _BY_HEAD:
        return b.length(index, 1), b.length(index, 3)
    heads = b.get(count, 0)
    b.need(b.rank(index) == _BY_HEAD - 1 and heads > 0)
    return heads, b.length(index, 2) // heads


def _by_head(b: Body, index: int, heads: int) -> str:
    """An input as [N, heads, S, width]."""
    if b.rank(index) == _BY_HEAD:
        return b.input(index)
    return b("Transpose", b("Reshape", b.input(index), b.integers(0, 0, heads, -1)), perm=[0, 2, 1, 3])


TRANSFORMERS: Mapping[str, Definition] = {
    "Attention": _attention,
    "RotaryEmbedding": _rotary_embedding,
    "Swish": _swish,
}
