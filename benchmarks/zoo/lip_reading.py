"""A reader of lips: convolutions in space and time, then bidirectional GRUs over what is left of the frames."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .sample import Sample, noise, settle


def conv(c_in: int, c_out: int, size: int, stride: int) -> list[nn.Module]:
    """Convolution over three frames, BatchNorm, ReLU, pooling in space."""
    half = size // 2
    return [
        nn.Conv3d(c_in, c_out, (3, size, size), (1, stride, stride), (1, half, half), bias=False),
        nn.BatchNorm3d(c_out),
        nn.ReLU(),
        nn.MaxPool3d((1, 2, 2)),
    ]


class LipReader(nn.Module):
    """[B, 1, T, 48, 64] to log probabilities [B, T, 40] of the sounds."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*conv(1, 32, 5, 2), *conv(32, 64, 5, 1), *conv(64, 96, 3, 1))
        self.recurrent = nn.GRU(96 * 3 * 4, 256, num_layers=2, batch_first=True, bidirectional=True)
        self.sounds = nn.Linear(512, 40)

    def forward(self, mouth: Tensor) -> Tensor:
        frames = self.features(mouth).permute(0, 2, 1, 3, 4).flatten(2)
        return self.sounds(self.recurrent(frames)[0]).log_softmax(-1)


def lip_reading() -> Sample:
    """Twenty-four frames [1, 1, 24, 48, 64] to [1, 24, 40]."""
    model = settle(LipReader(), torch.randn(2, 1, 24, 48, 64))
    return Sample(model, {"mouth": noise(1, 1, 24, 48, 64)}, ("log_probabilities",))
