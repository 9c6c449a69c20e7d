"""Operators of ONNX Runtime's builder of language models: rotary embedding, weights of few bits, attention with a cache."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx

from collage.frontend.contrib_ops._fused import scaled
from collage.frontend.contrib_ops._writer import Body, Definition, Undefined

__all__ = ["DECODER", "capped", "turned"]


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
    y = turned(b, heads, cosines, sines, rotated, width)
    return [y if by_head else b("Reshape", y, b.integers(0, 0, b.length(0, 2)))]


def turned(
    b: Body, heads: str, cosines: str, sines: str, rotated: int, width: int, interleaved: str = "interleaved"
) -> str:
    """Heads [N, heads, S, width], or with S before heads, of which the first numbers are rotated as pairs and the others kept."""
    half, is_interleaved = rotated // 2, b.get(interleaved, 0)
    if is_interleaved:  # The numbers of a pair are side by side.
        pairs = b("Reshape", b.sliced(heads, 3, 0, rotated), b.integers(0, 0, 0, half, 2))
        first, second = (b("Gather", pairs, b.integer(i), axis=4) for i in (0, 1))
    else:
        first, second = b.sliced(heads, 3, 0, half), b.sliced(heads, 3, half, rotated)
    turned = [
        b("Sub", b("Mul", first, cosines), b("Mul", second, sines)),
        b("Add", b("Mul", second, cosines), b("Mul", first, sines)),
    ]
    if is_interleaved:
        joined = b("Concat", *(b("Unsqueeze", part, b.integers(4)) for part in turned), axis=4)
        turned = [b("Reshape", joined, b.integers(0, 0, 0, rotated))]
    rest = [b.sliced(heads, 3, rotated, width)] if width > rotated else []
    return b("Concat", *turned, *rest, axis=3)


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
    """Query [N, S, heads * w], key, values, past key [N, groups, P, w] and value, lengths, the longest of them, cosines, sines.

    Query, key and values may be one tensor. Cosines and sines are [places, r / 2]. The result is [N, S, heads * w]; the cache
    afterwards [N, groups, P or the longest, w]. Values at run time decide which part of the cache counts, and where new keys go.
    What is written out assumes that all of the past counts.
    """
    heads, groups = b.get("num_heads", 0), b.get("kv_num_heads", 0)
    if min(heads, groups) < 1 or b.wants(3):
        raise Undefined
    if not b.exact:
        return _types_of_attention(b, heads, groups)
    b.need(b.assuming and b.rank(0) == 3 and heads % groups == 0 and b.has(3) == b.has(4) and b.has(1) == b.has(2))
    b.need(not any(map(b.has, (9, *range(11, b.count)))) and not set(b.attributes()) - _ATTENTION)
    width = b.length(0, 2) // (heads if b.has(1) else heads + 2 * groups)
    after = b.length_of(b.input(3), 2) if b.has(3) else b.integer(0)
    new = b.length_of(b.input(0), 1)

    def by_head(x: str, count: int) -> str:
        return b("Transpose", b("Reshape", x, b.integers(0, 0, count, width)), perm=[0, 2, 1, 3])

    def placed(x: str) -> str:
        if not b.get("do_rotary", 0):
            return x
        start, end = (b("Unsqueeze", place, b.integers(0)) for place in (after, b("Add", after, new)))
        cosines, sines = (b("Slice", b.input(i), start, end, b.integers(0)) for i in (7, 8))
        return turned(b, x, cosines, sines, 2 * b.length(7, 1), width, "rotary_interleaved")

    if b.has(1):
        query, key, value = (by_head(b.input(i), count) for i, count in enumerate((heads, groups, groups)))
        query, key = placed(query), placed(key)
    else:
        joint = by_head(b.input(0), heads + 2 * groups)
        both = placed(b.sliced(joint, 1, 0, heads + groups))
        query, key = b.sliced(both, 1, 0, heads), b.sliced(both, 1, heads, heads + groups)
        value = b.sliced(joint, 1, heads + groups, heads + 2 * groups)
    if b.has(3):
        key, value = (b("Concat", b.input(i), x, axis=2) for i, x in ((3, key), (4, value)))
    # Queries of a group, below each other, are rows of one product.
    rows = b("Reshape", query, b.integers(0, groups, -1, width))
    scores = b("Reshape", b("MatMul", rows, b("Transpose", key, perm=[0, 1, 3, 2])), b.integers(0, heads, -1, 0))
    weights = b("Softmax", _masked(b, scores, after, new, b.get("scale", 0.0) or 1 / math.sqrt(width)), axis=-1)
    mixed = b("MatMul", b("Reshape", weights, b.integers(0, groups, -1, 0)), value)
    y = b("Transpose", b("Reshape", mixed, b.integers(0, heads, -1, width)), perm=[0, 2, 1, 3])
    return [b("Reshape", y, b.integers(0, 0, heads * width)), key, value]


def capped(b: Body, scores: str) -> str:
    """Scores, brought below the node's ``softcap`` by a hyperbolic tangent; as they are without one."""
    cap = b.get("softcap", 0.0)
    b.need(0 <= cap < math.inf)
    return scaled(b, b("Tanh", scaled(b, scores, 1 / cap)), cap) if cap else scores


def _masked(b: Body, scores: str, after: str, new: str, factor: float) -> str:
    """Scores [N, heads, S, T] times a factor, of which those of keys that come later, or too early, do not count."""
    scores = capped(b, scaled(b, scores, factor))
    if b.has(10):
        scores = b("Add", scores, b.input(10))
    window = b.get("local_window_size", -1)
    b.need(window < _LONGEST_WINDOW)
    if b.is_one(0, 1) and window < 1:
        return scores
    keys = b.counted(b("Add", after, new))
    queries = b("Unsqueeze", b("Add", b.counted(new), after), b.integers(1))
    is_hidden = b("Greater", keys, queries)
    if window > 0:
        is_early = b("LessOrEqual", keys, b("Sub", queries, b.integers(window)))
        is_hidden = b("Or", is_hidden, is_early)
    return b("Where", is_hidden, b.least(), scores)


def _types_of_attention(b: Body, heads: int, groups: int) -> Sequence[str]:
    """Values of the types and shapes of attention."""
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
    """Data of whole or few bits, indices, scales, zero points."""
    bits, axis = b.get("bits", 4), b.get("gather_axis", 0)
    is_packed = b.kind(0) == onnx.TensorProto.UINT8 and bits in (2, 4)
    data = b("Gather", b.input(0), b.input(1), axis=axis)
    if not b.exact:
        data = b("Concat", *[data] * (8 // bits), axis=-1) if is_packed else data
        return [b("CastLike", data, b.input(2))]
    rank, block = b.rank(0) or 0, b.get("block_size", 128)
    b.need(rank == 2 and axis == 0 and b.get("quantize_axis", 1) in (1, -1) and not b.has(3))
    b.need(b.kind(0) == onnx.TensorProto.UINT8 and bits in (4, 8))
    if is_packed:
        data = b("Cast", data, to=onnx.TensorProto.INT32)
        upper = b("Div", data, b.integer_of_32_bits(16))
        lower = b("Sub", data, b("Mul", upper, b.integer_of_32_bits(16)))
        halves = (b("Unsqueeze", part, b.integers(-1)) for part in (lower, upper))
        data = b("Concat", *halves, axis=-1)
    b.compute_in(2)
    scales = b("Unsqueeze", b("Gather", b.input(2), b.input(1), axis=0), b.integers(-1))
    length = b.length(0, 1) * 8 // bits
    b.need(length % block == 0 and b.length(2, 1) == length // block)
    lengths = b("Concat", b("Shape", b.input(1)), b.integers(length // block, block), axis=0)
    numbers = b("Sub", b.as_computed(b("Reshape", data, lengths)), b.number(1 << (bits - 1)))
    whole = b("Concat", b("Shape", b.input(1)), b.integers(length), axis=0)
    return [b("Reshape", b("Mul", numbers, scales), whole)]


_ATTENTION = frozenset(
    (
        *("num_heads", "kv_num_heads", "scale", "softcap", "local_window_size"),
        *("do_rotary", "rotary_interleaved"),
    )
)
"""Attributes of the attention that is written out."""
_LONGEST_WINDOW = 1 << 31
"""ONNX Runtime reads windows in 32 bits."""

DECODER: Mapping[str, Definition] = {
    "GatherBlockQuantized": _gather_block_quantized,
    "GroupQueryAttention": _group_query_attention,
    "MatMulNBits": _mat_mul_n_bits,
    "RotaryEmbedding": _rotary_embedding,
}
