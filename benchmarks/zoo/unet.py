"""The denoiser of a latent diffusion model: a U-Net with GroupNorm, time embedding, self- and cross-attention."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import merge_heads, split_heads
from .sample import Sample, noise, settle

BASE, TEXT, TIME = 128, 768, 512


class Residual(nn.Module):
    """Two GroupNorm, SiLU, 3x3 convolution; the time embedding is added between them."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, c_in), nn.SiLU(), nn.Conv2d(c_in, c_out, 3, padding=1))
        self.time = nn.Linear(TIME, c_out)
        self.second = nn.Sequential(nn.GroupNorm(32, c_out), nn.SiLU(), nn.Conv2d(c_out, c_out, 3, padding=1))
        self.shortcut = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(x) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.second(y)


class Attention(nn.Module):
    """Queries from ``x`` [B, T, width], keys and values from ``source`` [B, S, source_width]."""

    def __init__(self, width: int, source_width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(source_width, width, bias=False)
        self.value = nn.Linear(source_width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        parts = (self.query(x), self.key(source), self.value(source))
        q, k, v = (split_heads(part, self.heads) for part in parts)
        return self.out(merge_heads(F.scaled_dot_product_attention(q, k, v)))


class Transformer(nn.Module):
    """Self-attention over the pixels, cross-attention to the text, and a gated GELU network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.itself = Attention(width, width, width // 64)
        self.text = Attention(width, TEXT, width // 64)
        self.gate = nn.Linear(width, 8 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        x = self.norm(image).flatten(2).transpose(1, 2)
        normed = self.norms[0](x)
        x = x + self.itself(normed, normed)
        x = x + self.text(self.norms[1](x), text)
        value, gate = self.gate(self.norms[2](x)).chunk(2, -1)
        x = x + self.narrow(value * F.gelu(gate))
        return image + x.transpose(1, 2).reshape(image.shape)


class Stage(nn.Module):
    """A residual block and, at the lower resolutions, a transformer."""

    def __init__(self, c_in: int, c_out: int, attends: bool) -> None:
        super().__init__()
        self.residual = Residual(c_in, c_out)
        self.transformer = Transformer(c_out) if attends else None

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        x = self.residual(x, time)
        return x if self.transformer is None else self.transformer(x, text)


class UNet(nn.Module):
    """Three resolutions (64, 32, 16), two stages each on the way down and up, joined by skips."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(BASE, TIME), nn.SiLU(), nn.Linear(TIME, TIME))
        self.first = nn.Conv2d(4, BASE, 3, padding=1)
        self.down, self.halve = nn.ModuleList(), nn.ModuleList()
        self.up, self.merge = nn.ModuleList(), nn.ModuleList()
        widths = (BASE, 2 * BASE, 4 * BASE)
        c_in = BASE
        for level, width in enumerate(widths):
            self.down.append(Stage(c_in, width, attends=level > 0))
            self.down.append(Stage(width, width, attends=level > 0))
            self.halve.append(nn.Conv2d(width, width, 3, 2, 1) if level < 2 else nn.Identity())
            c_in = width
        self.middle = Stage(c_in, c_in, attends=True)
        for level, width in reversed(list(enumerate(widths))):
            self.up.append(Stage(c_in + width, width, attends=level > 0))
            self.up.append(Stage(2 * width, width, attends=level > 0))
            self.merge.append(nn.Conv2d(width, width, 3, padding=1) if level > 0 else nn.Identity())
            c_in = width
        self.last = nn.Sequential(nn.GroupNorm(32, BASE), nn.SiLU(), nn.Conv2d(BASE, 4, 3, padding=1))

    def embed(self, step: Tensor) -> Tensor:
        """Sines and cosines of the step at geometrically spaced frequencies, through a small network."""
        frequencies = torch.exp(torch.arange(BASE // 2) * (-math.log(10000) / (BASE // 2)))
        angles = step[:, None] * frequencies[None]
        return self.time(torch.cat([angles.cos(), angles.sin()], -1))

    def forward(self, latent: Tensor, step: Tensor, text: Tensor) -> Tensor:
        time = self.embed(step)
        x = self.first(latent)
        skips = []
        for level in range(3):
            for stage in self.down[2 * level : 2 * level + 2]:
                x = stage(x, time, text)
                skips.append(x)
            x = self.halve[level](x)
        x = self.middle(x, time, text)
        for level in range(3):
            for stage in self.up[2 * level : 2 * level + 2]:
                x = stage(torch.cat([x, skips.pop()], 1), time, text)
            if level < 2:
                x = self.merge[level](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.last(x)


def unet() -> Sample:
    """Latent [1, 4, 64, 64], step [1] and text [1, 77, 768] to the predicted noise [1, 4, 64, 64]."""
    inputs = {"latent": noise(1, 4, 64, 64), "step": np.array([500], np.float32), "text": noise(1, 77, TEXT, seed=1)}
    return Sample(settle(UNet()), inputs, ("predicted_noise",))
