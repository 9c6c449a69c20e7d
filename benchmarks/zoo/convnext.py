"""ConvNeXt-T: 7x7 depthwise convolutions, LayerNorm over channels, layer scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .sample import Sample, noise, settle


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """Depthwise 7x7, then LayerNorm and the wider network with channels last, scaled and added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.network = nn.Sequential(
            nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.network(self.depthwise(x).permute(0, 2, 3, 1)) * self.scale
        return x + y.permute(0, 3, 1, 2)


def convnext() -> Sample:
    """[1, 3, 224, 224] to [1, 1000]."""
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96)]
    for stage, blocks in enumerate((3, 3, 9, 3)):
        width = 96 << stage
        if stage > 0:
            layers += [ChannelNorm(width // 2), nn.Conv2d(width // 2, width, 2, 2)]
        layers += [Block(width) for _ in range(blocks)]
    layers += [nn.AdaptiveAvgPool2d(1), ChannelNorm(768), nn.Flatten(), nn.Linear(768, 1000)]
    return Sample(settle(nn.Sequential(*layers)), {"image": noise(1, 3, 224, 224)}, ("logits",))
