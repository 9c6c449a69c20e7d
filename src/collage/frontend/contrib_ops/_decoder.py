"""Operators of ONNX Runtime's builder of language models: rotary embedding, weights of few bits, attention with a cache.

All but the first are written out for types and shapes only. So other toolchains can take the operators between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from collage.frontend.contrib_ops._writer import Body, Definition, Undefined

__all__ = ["DECODER"]


def _rotary_embedding(b: Body) -> Sequence[str]:
    """X [N, S, heads * w] or [N, heads, S, w], places [1] or [N, S], cosines and sines [places, r / 2].

    The first r numbers of a head are rotated, as pairs; the others are kept.
    """
    x = b.input(0)
    if not b.exact:
        return [b("Identity", x)]
    if b.get("is_packed_batching", 0) or b.rank(0) not in (3, 4):
        raise Undefined
    by_head = b.rank(0) == 4
    rotated = 2 * b.length(2, 1)
    width = rotated
    if b.get("rotary_embedding_dim", 0):
        b.need(b.get("rotary_embedding_dim", 0) == rotated)
        width = b.length(0, 3) if by_head else b.length(0, 2) // max(b.get("num_heads", 0), 1)
    heads = x if by_head else b("Reshape", x, b.integers(0, 0, -1, width))
    places = _places(b, b("Shape", x), 2 if by_head else 1)
    cosines, sines = (
        b("Unsqueeze", b("Gather", b.input(i), places), b.integers(-3 if by_head else -2)) for i in (2, 3)
    )
    pairs = b("Reshape", b.sliced(heads, 3, 0, rotated), b.integers(0, 0, 0, *_pairs(b, rotated // 2)))
    axis = 4 if b.get("interleaved", 0) else 3
    first, second = (b("Gather", pairs, b.integer(i), axis=axis) for i in (0, 1))
    turned = [
        b("Sub", b("Mul", first, cosines), b("Mul", second, sines)),
        b("Add", b("Mul", second, cosines), b("Mul", first, sines)),
    ]
    joined = b("Concat", *(b("Unsqueeze", part, b.integers(axis)) for part in turned), axis=axis)
    y = b("Reshape", joined, b.integers(0, 0, 0, rotated))
    if width > rotated:
        y = b("Concat", y, b.sliced(heads, 3, rotated, width), axis=3)
    return [y if by_head else b("Reshape", y, b.integers(0, 0, b.length(0, 2)))]


def _pairs(b: Body, half: int) -> tuple[int, int]:
    """Return the layout of rotated pairs in memory: numbers side by side, or one half for each member."""
    return (half, 2) if b.get("interleaved", 0) else (2, half)


def _places(b: Body, shape: str, axis: int) -> str:
    """[N, S], or [1, S] counted from the one that is given, of which a model holds many or one."""
    given = b.input(1)
    if b.rank(1) == 2:
        return given
    if b.rank(1) not in (0, 1):
        raise Undefined
    length = b("Squeeze", b.sliced(shape, 0, axis, axis + 1), b.integers(0))
    counted = b("Range", b.integer(0), length, b.integer(1))
    return b("Unsqueeze", b("Add", counted, given), b.integers(0))


def _mat_mul_n_bits(b: Body) -> Sequence[str]:
    """A [..., K] and weights of N columns, of a few bits each: types and shapes only.

    Written out they would take up to sixteen times the memory, and the time to read it. A toolchain that cannot read packed
    weights is of no use here.
    """
    b.need(False)
    rows, columns = b.get("K", 0), b.get("N", 0)
    if min(rows, columns) < 1:
        raise Undefined
    return [b("MatMul", b.input(0), b.as_computed(b("ConstantOfShape", b.integers(rows, columns))))]


def _group_query_attention(b: Body) -> Sequence[str]:
    """Types and shapes only: values at run time decide which part of the cache counts, and where new keys go.

    Query [N, S, heads * w] and key, or both and values in one; values, past key [N, groups, P, w] and value, lengths, the
    longest of them. The result is [N, S, heads * w]; the cache afterwards [N, groups, P or that longest, w].
    """
    b.need(False)
    heads, groups = b.get("num_heads", 0), b.get("kv_num_heads", 0)
    if min(heads, groups) < 1 or b.wants(3):
        raise Undefined
    if b.has(1):
        y, key = b.input(0), b("Reshape", b.input(1), b.integers(0, 0, groups, -1))
    else:
        joint = b("Reshape", b.input(0), b.integers(0, 0, heads + 2 * groups, -1))
        y = b("Reshape", b.sliced(joint, 2, 0, heads), b.integers(0, 0, -1))
        key = b.sliced(joint, 2, heads, heads + groups)
    if b.has(3):  # Longer by a length that is not known yet.
        longest = b("Reshape", b("Cast", b.input(6), to=onnx.TensorProto.INT64), b.integers(1))
        cache = b("Concat", b.input(3), b("Slice", b.input(3), b.integers(0), longest, b.integers(2)), axis=2)
    else:
        cache = b("Transpose", key, perm=[0, 2, 1, 3])
    return [y, cache, cache]


def _gather_block_quantized(b: Body) -> Sequence[str]:
    """Data of whole or few bits, indices, scales, zero points: types and shapes only."""
    b.need(False)
    data = b("Gather", b.input(0), b.input(1), axis=b.get("gather_axis", 0))
    if b.kind(0) == onnx.TensorProto.UINT8 and b.get("bits", 4) in (2, 4):
        data = b("Concat", *[data] * (8 // b.get("bits", 4)), axis=-1)
    return [b("CastLike", data, b.input(2))]


DECODER: Mapping[str, Definition] = {
    "GatherBlockQuantized": _gather_block_quantized,
    "GroupQueryAttention": _group_query_attention,
    "MatMulNBits": _mat_mul_n_bits,
    "RotaryEmbedding": _rotary_embedding,
}
