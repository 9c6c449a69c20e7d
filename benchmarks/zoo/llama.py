"""A small language model of today's kind in float16: RMSNorm, rotary embeddings, grouped queries, gated SiLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import merge_heads, split_heads
from .sample import Sample, integers, settle

WIDTH, HEADS, KV_HEADS, LAYERS, TOKENS, WORDS = 512, 8, 2, 6, 128, 8000
HEAD = WIDTH // HEADS


class RmsNorm(nn.Module):
    """Divides by the root mean square, computed in float32 as usual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


def rotation() -> tuple[Tensor, Tensor]:
    """Cosines and sines [TOKENS, HEAD] of the rotary position embedding."""
    frequencies = 10000 ** (-torch.arange(0, HEAD, 2) / HEAD)
    angles = (torch.arange(TOKENS)[:, None] * frequencies[None]).repeat(1, 2)
    return angles.cos(), angles.sin()


class Block(nn.Module):
    """Attention in which four heads of queries share keys and values, then a gated network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(WIDTH), RmsNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = (nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False) for _ in range(2))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor) -> Tensor:
        def rotate(heads: Tensor) -> Tensor:
            left, right = heads.chunk(2, -1)
            return heads * cosine + torch.cat([-right, left], -1) * sine

        y = self.norm1(x)
        q = rotate(split_heads(self.query(y), HEADS))
        k = rotate(split_heads(self.key(y), KV_HEADS)).repeat_interleave(HEADS // KV_HEADS, 1)
        v = split_heads(self.value(y), KV_HEADS).repeat_interleave(HEADS // KV_HEADS, 1)
        scores = q @ k.transpose(-1, -2) * HEAD**-0.5 + mask
        x = x + self.out(merge_heads(scores.softmax(-1) @ v))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Embedding, six blocks, logits of the last position."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = RmsNorm(WIDTH)
        self.logits = nn.Linear(WIDTH, WORDS, bias=False)
        cosine, sine = rotation()
        self.register_buffer("cosine", cosine)
        self.register_buffer("sine", sine)
        self.register_buffer("mask", torch.full((TOKENS, TOKENS), -1e4).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.word(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine, self.mask)
        return self.logits(self.norm(x)[:, -1])


def llama_f16() -> Sample:
    """Tokens [1, 128] to float16 logits [1, 8000]."""
    return Sample(settle(Llama()).half(), {"tokens": integers(WORDS, 1, TOKENS)}, ("logits",))
