"""Element types: ONNX's, NumPy's and torch's, and tensors over NumPy's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from collage.toolchains import Unsupported

__all__ = ["TYPES", "constant_array", "from_array", "to_array", "torch_dtype"]

TYPES: dict[int, Any] = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
}
"""ONNX element type to torch's.

Left out: strings, complex numbers, types that most of torch's kernels lack, and bfloat16, which NumPy lacks.
"""


def torch_dtype(number: int) -> Any:
    """Torch's type for an ONNX element type.

    Raises:
        Unsupported: Torch's operators do not compute in this type.
    """
    if number not in TYPES:
        raise Unsupported(f"torch does not compute in ONNX element type {number}")
    return TYPES[number]


def from_array(x: Any) -> Any:
    """A tensor over an array's memory; over a copy where torch cannot take the strides, or may not write."""
    if not (x.flags.c_contiguous and x.flags.writeable):
        x = np.array(x, order="C")
    return torch.from_numpy(x)


def constant_array(tensor: Any) -> Any:
    """A constant's values in memory of their own.

    A tensor in a file maps the whole file for itself; with hundreds of them that exceeds what a worker may address. So
    the mapping is released.
    """
    array = np.array(tensor.numpy(), order="C")
    if hasattr(tensor, "release"):
        tensor.release()
    return array


def to_array(x: Any) -> Any:
    """An array over a tensor's memory, in row-major order."""
    return x.contiguous().numpy()
