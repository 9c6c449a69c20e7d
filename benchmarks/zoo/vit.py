"""ViT-B/16: an image as 196 patches and a class token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attention import PreNormBlock
from .sample import Sample, noise, settle

WIDTH, HEADS, LAYERS = 768, 12, 12


class Vit(nn.Module):
    """Patch embedding, twelve blocks, classifier on the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, 16)
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.position = nn.Parameter(torch.randn(1, 197, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(PreNormBlock(WIDTH, HEADS) for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.classifier = nn.Linear(WIDTH, 1000)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(image), -1, -1), patches], 1) + self.position
        return self.classifier(self.blocks(x)[:, 0])


def vit() -> Sample:
    """[1, 3, 224, 224] to [1, 1000]."""
    return Sample(settle(Vit()), {"image": noise(1, 3, 224, 224)}, ("logits",))
