"""A reader of text lines (CRNN): convolutions that shrink the height to one, then two bidirectional LSTMs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .sample import Sample, noise, settle


def conv(c_in: int, c_out: int) -> list[nn.Module]:
    """3x3 convolution, BatchNorm, ReLU."""
    return [nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU()]


class Crnn(nn.Module):
    """[B, 1, 32, W] to log probabilities [B, W / 4, 97] of the characters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *conv(1, 64),
            nn.MaxPool2d(2),
            *conv(64, 128),
            nn.MaxPool2d(2),
            *conv(128, 256),
            *conv(256, 256),
            nn.MaxPool2d((2, 1)),
            *conv(256, 512),
            nn.MaxPool2d((2, 1)),
            nn.Conv2d(512, 512, (2, 3), padding=(0, 1), bias=False),
            nn.BatchNorm2d(512),
            nn.ReLU(),
        )
        self.recurrent = nn.LSTM(512, 256, num_layers=2, batch_first=True, bidirectional=True)
        self.characters = nn.Linear(512, 97)

    def forward(self, line: Tensor) -> Tensor:
        columns = self.features(line).squeeze(2).transpose(1, 2)
        return self.characters(self.recurrent(columns)[0]).log_softmax(-1)


def ocr() -> Sample:
    """A line [1, 1, 32, 320] to [1, 80, 97]."""
    model = settle(Crnn(), torch.randn(2, 1, 32, 320))
    return Sample(model, {"line": noise(1, 1, 32, 320)}, ("log_probabilities",))
