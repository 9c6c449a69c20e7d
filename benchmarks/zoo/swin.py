"""Swin-T: attention in windows of 7x7 that shift by half a window in every other block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attention import merge_heads, split_heads
from .sample import Sample, noise, settle

WINDOW = 7


def windows_of(x: Tensor) -> Tensor:
    """[B, H, W, C] to [windows, 49, C]."""
    b, h, w, c = x.shape
    x = x.reshape(b, h // WINDOW, WINDOW, w // WINDOW, WINDOW, c)
    return x.transpose(2, 3).reshape(-1, WINDOW * WINDOW, c)


def map_of(windows: Tensor, size: int) -> Tensor:
    """[windows, 49, C] back to [B, size, size, C]."""
    n = size // WINDOW
    x = windows.reshape(-1, n, n, WINDOW, WINDOW, windows.shape[-1])
    return x.transpose(2, 3).reshape(-1, size, size, windows.shape[-1])


def relative_index() -> Tensor:
    """[49 * 49] index into the table of 13 x 13 relative positions."""
    y, x = torch.meshgrid(torch.arange(WINDOW), torch.arange(WINDOW), indexing="ij")
    y, x = y.flatten(), x.flatten()
    dy, dx = y[:, None] - y[None, :] + WINDOW - 1, x[:, None] - x[None, :] + WINDOW - 1
    return (dy * (2 * WINDOW - 1) + dx).flatten()


def shift_mask(size: int, shift: int) -> Tensor:
    """[windows, 1, 49, 49]: minus 100 between pixels that only the shift brought together."""
    zones = torch.zeros(1, size, size, 1)
    borders = (slice(0, -WINDOW), slice(-WINDOW, -shift), slice(-shift, None))
    for i, rows in enumerate(borders):
        for j, columns in enumerate(borders):
            zones[:, rows, columns] = 3 * i + j
    flat = windows_of(zones).squeeze(-1)
    return ((flat[:, None, :] != flat[:, :, None]) * -100.0)[:, None]


class Block(nn.Module):
    """Window attention with relative position bias, then the wider network."""

    def __init__(self, width: int, heads: int, size: int, shift: int) -> None:
        super().__init__()
        self.heads, self.size, self.shift = heads, size, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        table = torch.randn((2 * WINDOW - 1) ** 2, heads)
        bias = table[relative_index()].reshape(WINDOW**2, WINDOW**2, heads).permute(2, 0, 1)[None]
        # Without a shift no mask is added, as in published exports, where the bias alone is a constant.
        self.register_buffer("bias", bias + shift_mask(size, shift) if shift else bias)

    def forward(self, x: Tensor) -> Tensor:
        shifted = self.norm1(x)
        if self.shift:
            shifted = torch.roll(shifted, (-self.shift, -self.shift), (1, 2))
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(windows_of(shifted)).chunk(3, -1))
        scores = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2) + self.bias
        attended = map_of(self.out(merge_heads(scores.softmax(-1) @ v)), self.size)
        if self.shift:
            attended = torch.roll(attended, (self.shift, self.shift), (1, 2))
        x = x + attended
        return x + self.network(self.norm2(x))


class PatchMerging(nn.Module):
    """Four neighbouring pixels become one of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduce = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        quarters = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduce(self.norm(torch.cat(quarters, -1)))


class Swin(nn.Module):
    """Four stages at 56, 28, 14 and 7 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 96, 4, 4)
        layers: list[nn.Module] = [nn.LayerNorm(96)]
        for stage, (blocks, heads) in enumerate(((2, 3), (2, 6), (6, 12), (2, 24))):
            width, size = 96 << stage, 56 >> stage
            for block in range(blocks):
                shift = WINDOW // 2 if block % 2 and size > WINDOW else 0
                layers.append(Block(width, heads, size, shift))
            if stage < 3:
                layers.append(PatchMerging(width))
        self.layers = nn.Sequential(*layers, nn.LayerNorm(768))
        self.classifier = nn.Linear(768, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.layers(self.patches(image).permute(0, 2, 3, 1))
        return self.classifier(x.mean((1, 2)))


def swin() -> Sample:
    """[1, 3, 224, 224] to [1, 1000]."""
    return Sample(settle(Swin()), {"image": noise(1, 3, 224, 224)}, ("logits",))
