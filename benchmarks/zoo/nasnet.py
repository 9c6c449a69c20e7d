"""NASNet-A (mobile: four cells a stage, 1056 channels at the end)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .sample import Sample, noise, settle


class Separable(nn.Module):
    """Twice: ReLU, depthwise convolution, 1x1 convolution, BatchNorm. The first of the two strides."""

    def __init__(self, channels: int, kernel: int, stride: int = 1, c_in: int | None = None) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for c, s in ((c_in or channels, stride), (channels, 1)):
            layers += [
                nn.ReLU(),
                nn.Conv2d(c, c, kernel, s, kernel // 2, groups=c, bias=False),
                nn.Conv2d(c, channels, 1, bias=False),
                nn.BatchNorm2d(channels),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def squeeze(c_in: int, c_out: int) -> nn.Sequential:
    """ReLU, 1x1 convolution, BatchNorm: how a cell adapts what it is given."""
    return nn.Sequential(nn.ReLU(), nn.Conv2d(c_in, c_out, 1, bias=False), nn.BatchNorm2d(c_out))


class FactorisedReduction(nn.Module):
    """Halves the resolution by two strided paths, one of them shifted by a pixel."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.left = nn.Conv2d(c_in, c_out // 2, 1, bias=False)
        self.right = nn.Conv2d(c_in, c_out - c_out // 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(c_out)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x)
        shifted = F.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:]
        paths = [self.left(F.avg_pool2d(x, 1, 2)), self.right(F.avg_pool2d(shifted, 1, 2))]
        return self.norm(torch.cat(paths, 1))


def average(x: Tensor, stride: int = 1) -> Tensor:
    """3x3 mean of the pixels that exist."""
    return F.avg_pool2d(x, 3, stride, 1, count_include_pad=False)


class NormalCell(nn.Module):
    """Keeps the resolution; six times ``channels`` come out. ``reduces_previous``: the cell before it halved."""

    def __init__(self, c_previous: int, c_in: int, channels: int, reduces_previous: bool) -> None:
        super().__init__()
        adapt = FactorisedReduction if reduces_previous else squeeze
        self.adapt_previous = adapt(c_previous, channels)
        self.adapt_input = squeeze(c_in, channels)
        self.input_5x5 = Separable(channels, 5)
        self.previous_3x3 = Separable(channels, 3)
        self.previous_5x5 = Separable(channels, 5)
        self.previous_3x3_again = Separable(channels, 3)
        self.input_3x3 = Separable(channels, 3)

    def forward(self, previous: Tensor, x: Tensor) -> Tensor:
        p, h = self.adapt_previous(previous), self.adapt_input(x)
        blocks = [
            p,
            self.input_5x5(h) + self.previous_3x3(p),
            self.previous_5x5(p) + self.previous_3x3_again(p),
            average(h) + p,
            average(p) + average(p),
            self.input_3x3(h) + h,
        ]
        return torch.cat(blocks, 1)


class ReductionCell(nn.Module):
    """Halves the resolution; four times ``channels`` come out."""

    def __init__(self, c_previous: int, c_in: int, channels: int, reduces_previous: bool) -> None:
        super().__init__()
        adapt = FactorisedReduction if reduces_previous else squeeze
        self.adapt_previous = adapt(c_previous, channels)
        self.adapt_input = squeeze(c_in, channels)
        self.input_5x5 = Separable(channels, 5, 2)
        self.previous_7x7 = Separable(channels, 7, 2)
        self.previous_7x7_again = Separable(channels, 7, 2)
        self.previous_5x5 = Separable(channels, 5, 2)
        self.inner_3x3 = Separable(channels, 3)

    def forward(self, previous: Tensor, x: Tensor) -> Tensor:
        p, h = self.adapt_previous(previous), self.adapt_input(x)
        first = self.input_5x5(h) + self.previous_7x7(p)
        largest = F.max_pool2d(h, 3, 2, 1)
        second = largest + self.previous_7x7_again(p)
        third = average(h, 2) + self.previous_5x5(p)
        return torch.cat([second, third, average(first) + second, self.inner_3x3(first) + largest], 1)


class StemCell(nn.Module):
    """A reduction cell whose two inputs are one and the same feature map, the stem's convolution."""

    def __init__(self, c_in: int, channels: int) -> None:
        super().__init__()
        self.adapt = squeeze(c_in, channels)
        self.input_5x5 = Separable(channels, 5, 2)
        self.stem_7x7 = Separable(channels, 7, 2, c_in)
        self.stem_7x7_again = Separable(channels, 7, 2, c_in)
        self.stem_5x5 = Separable(channels, 5, 2, c_in)
        self.inner_3x3 = Separable(channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.adapt(x)
        first = self.input_5x5(h) + self.stem_7x7(x)
        largest = F.max_pool2d(h, 3, 2, 1)
        second = largest + self.stem_7x7_again(x)
        third = average(h, 2) + self.stem_5x5(x)
        return torch.cat([second, third, average(first) + second, self.inner_3x3(first) + largest], 1)


class NasNet(nn.Module):
    """Stem, two stem cells, three stages of normal cells with a reduction cell between them."""

    def __init__(self, filters: int = 44, cells: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32))
        self.stem_cell = StemCell(32, filters // 4)
        self.cells = nn.ModuleList([ReductionCell(32, filters, filters // 2, True)])
        c_previous, c_in, reduced = filters, 2 * filters, True
        for stage in range(3):
            channels = filters << stage
            if stage > 0:
                self.cells.append(ReductionCell(c_previous, c_in, channels, False))
                c_previous, c_in, reduced = c_in, 4 * channels, True
            for _ in range(cells):
                self.cells.append(NormalCell(c_previous, c_in, channels, reduced))
                c_previous, c_in, reduced = c_in, 6 * channels, False
        self.classifier = nn.Linear(c_in, 1000)

    def forward(self, x: Tensor) -> Tensor:
        previous = self.stem(x)
        x = self.stem_cell(previous)
        for cell in self.cells:
            previous, x = x, cell(previous, x)
        return self.classifier(torch.relu(x).mean((2, 3)))


def nasnet() -> Sample:
    """[1, 3, 224, 224] to [1, 1000]."""
    return Sample(settle(NasNet(), torch.randn(2, 3, 224, 224)), {"image": noise(1, 3, 224, 224)})
