"""What a family hands over: a module or a model with inputs, and the weights that keep activations in range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

BatchNorm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
Convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)

BRANCH_GAIN = 0.3


@dataclass(frozen=True, slots=True)
class Sample:
    """A model, the inputs it is measured with (in the order in which it takes them), and the names of its outputs."""

    model: nn.Module | onnx.ModelProto
    inputs: dict[str, np.ndarray]
    outputs: tuple[str, ...] = ("output",)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def integers(high: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Uniform int64 values below ``high``."""
    return np.random.default_rng(seed).integers(0, high, shape)


def settle(module: nn.Module, *example: Any) -> nn.Module:
    """Give a module random weights under which its activations keep their scale, and return it in evaluation mode.

    Convolutions and linear layers preserve the mean square through a ReLU or an identity respectively; BatchNorms take
    their statistics from one training step on ``example``, whose batch must suffice for that (two where a
    feature map shrinks to one pixel). A BatchNorm that ends a residual branch (the last of a ``body``) is damped as
    training damps it: undamped, fifty random layers amplify rounding errors a hundredfold.
    """
    branches = [getattr(part, "body", None) for part in module.modules()]
    branch_ends = {branch[-1] for branch in branches if isinstance(branch, nn.Sequential)}
    for part in module.modules():
        if isinstance(part, Convolution):
            fan_in = part.weight[0].numel()
            if isinstance(part, nn.ConvTranspose2d):
                overlap = part.kernel_size[0] * part.kernel_size[1] / (part.stride[0] * part.stride[1])
                fan_in = part.in_channels * overlap
            nn.init.normal_(part.weight, std=(2 / fan_in) ** 0.5)
        elif isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
        elif isinstance(part, BatchNorm):
            nn.init.uniform_(part.weight, 0.8, 1.2)
            if part in branch_ends:
                part.weight.data *= BRANCH_GAIN
            nn.init.normal_(part.bias, std=0.1)
            part.momentum = None
    if any(isinstance(part, BatchNorm) for part in module.modules()):
        module.train()
        with torch.no_grad():
            module(*example)
    return module.eval()
