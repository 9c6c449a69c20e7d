"""A small residual network in eight bits, quantised after training on random calibration data."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch

from .building import export
from .resnet import ResNet
from .sample import Sample, noise, settle


def quantised() -> Sample:
    """ResNet-26 with QuantizeLinear and DequantizeLinear pairs, [1, 3, 224, 224] to [1, 1000]."""
    inputs = {"image": noise(1, 3, 224, 224)}
    model = settle(ResNet(blocks=(2, 2, 2, 2)), torch.randn(2, 3, 224, 224))
    with tempfile.TemporaryDirectory() as folder:
        plain, result = Path(folder) / "plain.onnx", Path(folder) / "quantised.onnx"
        export(Sample(model, inputs), plain, opset=17, dynamo=False)
        quantise(plain, result)
        return Sample(onnx.load(result), inputs)


def quantise(plain: Path, result: Path) -> None:
    """Activations per tensor in uint8, weights per channel in int8, ranges from four random images."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class RandomImages(CalibrationDataReader):
        def __init__(self) -> None:
            self.images = iter([noise(1, 3, 224, 224, seed=seed) for seed in range(1, 5)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            image = next(self.images, None)
            return None if image is None else {"image": image}

    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # The quantiser advises on the root logger.
    try:
        quantize_static(
            plain,
            result,
            RandomImages(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
    finally:
        root.setLevel(level)
