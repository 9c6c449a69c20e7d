"""BERT-base over 128 tokens, the last quarter of them padding."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import merge_heads, split_heads
from .sample import Sample, integers, settle

WIDTH, HEADS, LAYERS, TOKENS, WORDS = 768, 12, 12, 128, 30522


class Layer(nn.Module):
    """Attention with separate projections, then the wider network; LayerNorm after each sum, as BERT has it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (split_heads(project(x), HEADS) for project in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5 + mask
        x = self.norm1(x + self.out(merge_heads(scores.softmax(-1) @ v)))
        return self.norm2(x + self.narrow(F.gelu(self.widen(x))))


class Bert(nn.Module):
    """Embeddings, twelve layers; the hidden states and the pooled first token come out."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS, WIDTH)
        self.position = nn.Embedding(TOKENS, WIDTH)
        self.token_type = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.pool = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor, attention_mask: Tensor, token_types: Tensor) -> tuple[Tensor, Tensor]:
        mask = (1 - attention_mask[:, None, None, :].float()) * -1e4
        x = self.norm(self.word(tokens) + self.position.weight + self.token_type(token_types))
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pool(x[:, 0]))


def bert() -> Sample:
    """Tokens, mask and types [1, 128] to hidden states [1, 128, 768] and the pooled token [1, 768]."""
    position = np.arange(TOKENS)[None]
    inputs = {
        "tokens": integers(WORDS, 1, TOKENS),
        "attention_mask": (position < 96).astype(np.int64),
        "token_types": ((position >= 48) & (position < 96)).astype(np.int64),
    }
    return Sample(settle(Bert()), inputs, ("hidden", "pooled"))
