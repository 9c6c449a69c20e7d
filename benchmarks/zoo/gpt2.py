"""GPT-2 (124 million parameters) reading 128 tokens: logits of the token that follows."""

from __future__ import annotations

from torch import Tensor, nn

from .attention import PreNormBlock
from .sample import Sample, integers, settle

WIDTH, HEADS, LAYERS, TOKENS, WORDS = 768, 12, 12, 128, 50257


class Gpt2(nn.Module):
    """Embeddings, twelve causal blocks, and the word embedding again as the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS, WIDTH)
        self.position = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(PreNormBlock(WIDTH, HEADS, causal=True, gelu="tanh") for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.word.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.word(tokens) + self.position.weight))
        return x[:, -1] @ self.word.weight.T


def gpt2() -> Sample:
    """Tokens [1, 128] to logits [1, 50257] of the last position."""
    return Sample(settle(Gpt2()), {"tokens": integers(WORDS, 1, TOKENS)}, ("logits",))
