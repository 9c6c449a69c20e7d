"""Multi-head attention, shared by the transformer families."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, heads * D] to [B, heads, T, D]."""
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, heads, width // heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, heads, T, D] to [B, T, heads * D]."""
    return x.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Queries, keys and values from one projection; every token sees all, or with ``causal`` those before it."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        return self.out(merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)))


class PreNormBlock(nn.Module):
    """LayerNorm and attention, LayerNorm and a four times wider GELU network, each added to its input."""

    def __init__(self, width: int, heads: int, causal: bool = False, gelu: str = "none") -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), SelfAttention(width, heads, causal))
        self.network = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(gelu), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.network(x)
