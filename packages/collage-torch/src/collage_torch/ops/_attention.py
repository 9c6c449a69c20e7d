"""Attention and related operators of language models."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from collage_torch.ops._dtypes import torch_dtype
from collage_torch.ops._table import Call, op

__all__ = ["attend"]

Tensor = Any


@op("Attention")
def attention(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_k: Tensor | None = None,
    past_v: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Any:
    """Queries, keys and values are [N, heads, length, size], or [N, length, heads * size]."""
    flat = q.ndim == 3
    if flat:
        q = _split_heads(q, call.get("q_num_heads"))
        k, v = (_split_heads(x, call.get("kv_num_heads")) for x in (k, v))
    offset = 0 if past_k is None else past_k.shape[2]
    if past_k is not None:
        k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
    present = (k, v)
    bias = _bias(call, q, k, mask, offset, lengths)
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scale = call.get("scale", 1 / math.sqrt(q.shape[3]))
    if call.outputs < 4 and not call.get("softcap", 0.0) and call.get("softmax_precision") is None:
        y, scores = attend(q, k, v, bias, scale), None
    else:
        y, scores = _in_steps(call, q, k, v, bias, scale)
    if flat:
        y = y.transpose(1, 2).flatten(2)
    return y if call.outputs == 1 else (y, *present, scores)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Return attention in one call of torch's, which does not check that there is a value for each key."""
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"attention has {k.shape[-2]} keys and {v.shape[-2]} values")
    return F.scaled_dot_product_attention(q, k, v, bias, scale=scale)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def _bias(call: Call, q: Tensor, k: Tensor, mask: Tensor | None, offset: int, lengths: Tensor | None) -> Tensor | None:
    """Return the term that is added to the scores: the mask, and minus infinity for keys that are hidden.

    Query ``i`` stands at ``i + offset``. With padded caches (``lengths``) every sample has an offset of its own.
    """
    rows, columns = q.shape[2], k.shape[2]
    if mask is not None and mask.shape[-1] < columns:
        hidden = False if mask.dtype == torch.bool else -math.inf
        mask = F.pad(mask, [0, columns - mask.shape[-1]], value=hidden)
    place = torch.arange(rows, device=q.device).unsqueeze(1) + offset
    key = torch.arange(columns, device=q.device)
    seen = []
    if lengths is not None:
        counts = lengths.reshape(-1, 1, 1, 1)
        place = place + counts - rows
        seen.append(key < counts)
    if call.get("is_causal", 0):
        seen.append(key <= place)
    if (left := call.get("left_window_size", -1)) >= 0:
        seen.append(place - key <= left)
    if (right := call.get("right_window_size", -1)) >= 0:
        seen.append(key - place <= right)
    if mask is not None and mask.dtype == torch.bool:
        seen.append(mask)
        mask = None
    if not seen:
        return mask
    allowed = seen[0]
    for each in seen[1:]:
        allowed = allowed & each
    start = torch.zeros((), dtype=q.dtype, device=q.device) if mask is None else mask
    return torch.where(allowed, start, -math.inf)


def _in_steps(call: Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """The result, and the scores as far as ``qk_matmul_output_mode`` wants them computed."""
    root = math.sqrt(scale)
    stages = [torch.matmul(q * root, k.transpose(2, 3) * root)]
    cap = call.get("softcap", 0.0)
    stages.append(torch.tanh(stages[-1] / cap) * cap if cap else stages[-1])
    stages.append(stages[-1] if bias is None else stages[-1] + bias)
    precision = call.get("softmax_precision")
    weights = torch.softmax(stages[-1], -1, dtype=None if precision is None else torch_dtype(precision))
    if bias is not None:
        blind = bias.amax(-1, keepdim=True) == -math.inf
        weights = torch.where(blind, torch.zeros_like(weights), weights)
    stages.append(weights.to(q.dtype))
    return torch.matmul(stages[-1], v), stages[call.get("qk_matmul_output_mode", 0)]


@op("RotaryEmbedding")
def rotary_embedding(call: Call, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None) -> Tensor:
    """``x`` is [N, heads, length, size], or [N, length, heads * size]."""
    shape = x.shape
    x = _split_heads(x, call.get("num_heads")) if x.ndim == 3 else x
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    size = call.get("rotary_embedding_dim", 0) or x.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    if call.get("interleaved", 0):
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((cos * a - sin * b, sin * a + cos * b), -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        turned = torch.cat((cos * a - sin * b, sin * a + cos * b), -1)
    y = torch.cat((turned, rest), -1)
    return y.transpose(1, 2).reshape(shape) if len(shape) == 3 else y


@op("SwiGLU")
def swiglu(call: Call, gate: Tensor, x: Tensor) -> Tensor:
    alpha = call.get("alpha", 1.0)
    return (F.silu(gate) if alpha == 1 else gate * torch.sigmoid(alpha * gate)) * x
