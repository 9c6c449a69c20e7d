"""Inception-v3 without its auxiliary head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .sample import Sample, noise, settle

Size = int | tuple[int, int]


class Conv(nn.Sequential):
    """Convolution, BatchNorm, ReLU."""

    def __init__(self, c_in: int, c_out: int, kernel: Size, stride: int = 1, padding: Size = 0) -> None:
        conv = nn.Conv2d(c_in, c_out, kernel, stride, padding, bias=False)
        super().__init__(conv, nn.BatchNorm2d(c_out, eps=1e-3), nn.ReLU())


class Branches(nn.Module):
    """Applies every branch to the same input and joins their channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def pooled(c_in: int, c_out: int) -> nn.Sequential:
    """3x3 average of the neighbourhood, then a 1x1 convolution."""
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), Conv(c_in, c_out, 1))


def block_35(c: int, c_pool: int) -> Branches:
    """At 35x35 pixels."""
    return Branches(
        Conv(c, 64, 1),
        nn.Sequential(Conv(c, 48, 1), Conv(48, 64, 5, padding=2)),
        nn.Sequential(Conv(c, 64, 1), Conv(64, 96, 3, padding=1), Conv(96, 96, 3, padding=1)),
        pooled(c, c_pool),
    )


def reduce_to_17(c: int) -> Branches:
    """From 35x35 to 17x17 pixels."""
    return Branches(
        Conv(c, 384, 3, 2),
        nn.Sequential(Conv(c, 64, 1), Conv(64, 96, 3, padding=1), Conv(96, 96, 3, 2)),
        nn.MaxPool2d(3, 2),
    )


def block_17(c: int, width: int) -> Branches:
    """At 17x17 pixels: 7x7 kernels as 1x7 and 7x1."""
    across = {"kernel": (1, 7), "padding": (0, 3)}
    down = {"kernel": (7, 1), "padding": (3, 0)}
    once = nn.Sequential(Conv(c, width, 1), Conv(width, width, **across), Conv(width, 192, **down))
    twice = nn.Sequential(
        Conv(c, width, 1),
        Conv(width, width, **down),
        Conv(width, width, **across),
        Conv(width, width, **down),
        Conv(width, 192, **across),
    )
    return Branches(Conv(c, 192, 1), once, twice, pooled(c, 192))


def reduce_to_8(c: int) -> Branches:
    """From 17x17 to 8x8 pixels."""
    return Branches(
        nn.Sequential(Conv(c, 192, 1), Conv(192, 320, 3, 2)),
        nn.Sequential(
            Conv(c, 192, 1),
            Conv(192, 192, (1, 7), padding=(0, 3)),
            Conv(192, 192, (7, 1), padding=(3, 0)),
            Conv(192, 192, 3, 2),
        ),
        nn.MaxPool2d(3, 2),
    )


def block_8(c: int) -> Branches:
    """At 8x8 pixels: branches that fork once more."""

    def fork() -> Branches:
        return Branches(Conv(384, 384, (1, 3), padding=(0, 1)), Conv(384, 384, (3, 1), padding=(1, 0)))

    return Branches(
        Conv(c, 320, 1),
        nn.Sequential(Conv(c, 384, 1), fork()),
        nn.Sequential(Conv(c, 448, 1), Conv(448, 384, 3, padding=1), fork()),
        pooled(c, 192),
    )


def inception_v3() -> Sample:
    """[1, 3, 299, 299] to [1, 1000]."""
    stem = [
        Conv(3, 32, 3, 2),
        Conv(32, 32, 3),
        Conv(32, 64, 3, padding=1),
        nn.MaxPool2d(3, 2),
        Conv(64, 80, 1),
        Conv(80, 192, 3),
        nn.MaxPool2d(3, 2),
    ]
    body = [
        block_35(192, 32),
        block_35(256, 64),
        block_35(288, 64),
        reduce_to_17(288),
        *(block_17(768, width) for width in (128, 160, 160, 192)),
        reduce_to_8(768),
        block_8(1280),
        block_8(2048),
    ]
    model = nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
    return Sample(settle(model, torch.randn(2, 3, 299, 299)), {"image": noise(1, 3, 299, 299)})
