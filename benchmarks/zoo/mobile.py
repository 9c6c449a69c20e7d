"""Networks of inverted residuals: MobileNetV2, and an EfficientNet-B0 with squeeze and excitation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .sample import Sample, noise, settle


def conv_norm(c_in: int, c_out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Same-size convolution (before the stride) with its BatchNorm."""
    conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(c_out)]


class SqueezeExcite(nn.Module):
    """Scales each channel by a gate that is computed from all channels' means over ``size`` x ``size`` pixels."""

    def __init__(self, channels: int, squeezed: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        # A pool over the whole map, not an adaptive one: exported models have both, and tools differ on this one.
        mean = F.avg_pool2d(x, self.size)
        return x * torch.sigmoid(self.expand(F.silu(self.reduce(mean))))


class InvertedResidual(nn.Module):
    """Widen by 1x1, depthwise convolution, narrow by 1x1; added to its input where shapes allow."""

    def __init__(
        self,
        c_in: int,
        c_out: int,
        expansion: int,
        kernel: int,
        stride: int,
        activation: type[nn.Module],
        excite_size: int | None = None,
    ) -> None:
        super().__init__()
        wide = c_in * expansion
        layers = [*conv_norm(c_in, wide, 1), activation()] if expansion > 1 else []
        layers += [*conv_norm(wide, wide, kernel, stride, groups=wide), activation()]
        if excite_size is not None:
            layers.append(SqueezeExcite(wide, max(1, c_in // 4), excite_size))
        layers += conv_norm(wide, c_out, 1)
        self.body = nn.Sequential(*layers)
        self.adds = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def mobilenet_v2() -> Sample:
    """[1, 3, 224, 224] to [1, 1000]."""
    stages = (  # expansion, channels, repeats, first stride
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    layers = [*conv_norm(3, 32, 3, 2), nn.ReLU6()]
    c_in = 32
    for expansion, channels, repeats, stride in stages:
        for block in range(repeats):
            layers.append(InvertedResidual(c_in, channels, expansion, 3, stride if block == 0 else 1, nn.ReLU6))
            c_in = channels
    layers += [*conv_norm(c_in, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    model = settle(nn.Sequential(*layers), torch.randn(2, 3, 224, 224))
    return Sample(model, {"image": noise(1, 3, 224, 224)})


def efficientnet() -> Sample:
    """EfficientNet-B0: [1, 3, 224, 224] to [1, 1000]."""
    stages = (  # expansion, kernel, channels, repeats, first stride
        (1, 3, 16, 1, 1),
        (6, 3, 24, 2, 2),
        (6, 5, 40, 2, 2),
        (6, 3, 80, 3, 2),
        (6, 5, 112, 3, 1),
        (6, 5, 192, 4, 2),
        (6, 3, 320, 1, 1),
    )
    layers = [*conv_norm(3, 32, 3, 2), nn.SiLU()]
    c_in, size = 32, 112
    for expansion, kernel, channels, repeats, first_stride in stages:
        for block in range(repeats):
            stride = first_stride if block == 0 else 1
            size //= stride
            layers.append(InvertedResidual(c_in, channels, expansion, kernel, stride, nn.SiLU, excite_size=size))
            c_in = channels
    # The head of a network for 256 pixels, exported at 224: its pool is wider than the map that it pools. ONNX allows
    # that, and one such node bars the whole model from a toolchain that does not.
    pool = nn.AvgPool2d(8, ceil_mode=True)
    layers += [*conv_norm(c_in, 1280, 1), nn.SiLU(), pool, nn.Flatten(), nn.Linear(1280, 1000)]
    model = settle(nn.Sequential(*layers), torch.randn(2, 3, 224, 224))
    return Sample(model, {"image": noise(1, 3, 224, 224)})
