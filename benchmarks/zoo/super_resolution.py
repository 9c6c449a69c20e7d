"""Super-resolution by four: residual blocks, bicubic upsampling of the features, then a pixel shuffle."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .sample import Sample, noise, settle

WIDTH = 48


class Residual(nn.Module):
    """Two 3x3 convolutions, added to their input at a fifth of their strength."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.PReLU(WIDTH), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.2 * self.body(x)


class SuperResolution(nn.Module):
    """[B, 3, H, W] to [B, 3, 4 H, 4 W]: what the network adds to a bicubic enlargement."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), *(Residual() for _ in range(8)))
        self.refine = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.PReLU(WIDTH))
        self.shuffle = nn.Sequential(nn.Conv2d(WIDTH, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, image: Tensor) -> Tensor:
        features = F.interpolate(self.body(image), scale_factor=2.0, mode="bicubic", align_corners=False)
        enlarged = F.interpolate(image, scale_factor=4.0, mode="bicubic", align_corners=False)
        return enlarged + self.shuffle(self.refine(features))


def super_resolution() -> Sample:
    """[1, 3, 64, 64] to [1, 3, 256, 256]."""
    return Sample(settle(SuperResolution(), torch.randn(1, 3, 64, 64)), {"image": noise(1, 3, 64, 64)}, ("enlarged",))
