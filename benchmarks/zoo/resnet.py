"""Residual networks of bottleneck blocks: ResNet-50 v1.5, ResNeXt-50 32x4d, and ResNet-50 over video clips."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .sample import Sample, noise, settle


class Bottleneck(nn.Module):
    """1x1, grouped 3x3 (which strides), 1x1 to four times ``planes``, plus the shortcut; in two or three dimensions."""

    def __init__(self, c_in: int, planes: int, width: int, stride: int, groups: int, dimensions: int) -> None:
        super().__init__()
        conv, norm = (nn.Conv2d, nn.BatchNorm2d) if dimensions == 2 else (nn.Conv3d, nn.BatchNorm3d)
        c_out = 4 * planes
        self.body = nn.Sequential(
            conv(c_in, width, 1, bias=False),
            norm(width),
            nn.ReLU(),
            conv(width, width, 3, stride, 1, groups=groups, bias=False),
            norm(width),
            nn.ReLU(),
            conv(width, c_out, 1, bias=False),
            norm(c_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != c_out:
            self.shortcut = nn.Sequential(conv(c_in, c_out, 1, stride, bias=False), norm(c_out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, four stages, global pool, classifier. Each group of the 3x3 has ``group_width`` x planes / 64 channels."""

    def __init__(
        self,
        blocks: Sequence[int] = (3, 4, 6, 3),
        groups: int = 1,
        group_width: int = 64,
        dimensions: int = 2,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        if dimensions == 2:
            stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
            pool: nn.Module = nn.AdaptiveAvgPool2d(1)
        else:
            video_stem = nn.Conv3d(3, 64, 7, (1, 2, 2), 3, bias=False)
            stem = [video_stem, nn.BatchNorm3d(64), nn.ReLU(), nn.MaxPool3d(3, 2, 1)]
            pool = nn.AdaptiveAvgPool3d(1)
        layers: list[nn.Module] = stem
        c_in = 64
        for stage, count in enumerate(blocks):
            planes = 64 << stage
            width = planes * group_width * groups // 64
            for block in range(count):
                stride = 2 if block == 0 and stage > 0 else 1
                layers.append(Bottleneck(c_in, planes, width, stride, groups, dimensions))
                c_in = 4 * planes
        self.layers = nn.Sequential(*layers, pool, nn.Flatten(), nn.Linear(c_in, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def resnet50() -> Sample:
    """[1, 3, 224, 224] to [1, 1000]."""
    return Sample(settle(ResNet(), torch.randn(2, 3, 224, 224)), {"image": noise(1, 3, 224, 224)})


def resnext50() -> Sample:
    """ResNeXt-50 32x4d: thirty-two groups of four channels in the first stage."""
    model = ResNet(groups=32, group_width=4)
    return Sample(settle(model, torch.randn(2, 3, 224, 224)), {"image": noise(1, 3, 224, 224)})


def resnet3d50() -> Sample:
    """ResNet-50 with 3x3x3 convolutions over sixteen frames of 112x112."""
    model = ResNet(dimensions=3, classes=400)
    return Sample(settle(model, torch.randn(2, 3, 16, 112, 112)), {"clip": noise(1, 3, 16, 112, 112)})
