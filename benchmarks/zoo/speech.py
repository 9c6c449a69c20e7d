"""A speech recogniser: two strided convolutions over a spectrogram, three GRU layers, one output per frame."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .sample import Sample, noise, settle


class Speech(nn.Module):
    """[B, 1, 161 frequencies, T] to log probabilities [B, T / 2, 29] of the letters."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5), bias=False),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5), bias=False),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )
        self.recurrent = nn.GRU(32 * 41, 512, num_layers=3, batch_first=True)
        self.letters = nn.Linear(512, 29)

    def forward(self, spectrogram: Tensor) -> Tensor:
        features = self.front(spectrogram).flatten(1, 2).transpose(1, 2)
        return self.letters(self.recurrent(features)[0]).log_softmax(-1)


def speech() -> Sample:
    """One second of speech: a spectrogram [1, 1, 161, 100] to [1, 50, 29]."""
    model = settle(Speech(), torch.randn(2, 1, 161, 100))
    return Sample(model, {"spectrogram": noise(1, 1, 161, 100)}, ("log_probabilities",))
