"""The generator of DCGAN: noise to a 64x64 image through transposed convolutions."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from .sample import Sample, noise, settle


def dcgan() -> Sample:
    """[1, 100, 1, 1] to [1, 3, 64, 64]."""
    layers: list[nn.Module] = []
    channels = (100, 512, 256, 128, 64)
    for index, (c_in, c_out) in enumerate(pairwise(channels)):
        stride, padding = (1, 0) if index == 0 else (2, 1)
        layers += [nn.ConvTranspose2d(c_in, c_out, 4, stride, padding, bias=False), nn.BatchNorm2d(c_out), nn.ReLU()]
    layers += [nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh()]
    model = settle(nn.Sequential(*layers), torch.randn(4, 100, 1, 1))
    return Sample(model, {"noise": noise(1, 100, 1, 1)}, ("image",))
