"""Tensors of other libraries: from them to NumPy without a copy where that can be, and back."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["as_numpy", "as_torch", "is_torch"]

Array = np.ndarray[Any, np.dtype[Any]]

_NARROW = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}
"""Types that PyTorch and ml_dtypes know by the same name, and DLPack to NumPy does not carry."""


def is_torch(value: Any) -> bool:
    """True if a value is a tensor of PyTorch. PyTorch is not imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_numpy(value: Any) -> Array:
    """A row-major array of a value: shares memory where the value is a CPU tensor laid out like that.

    Args:
        value: An array, a tensor of PyTorch, whatever offers ``__dlpack__`` or NumPy's protocols, or nested sequences.

    Raises:
        ValueError, TypeError, RuntimeError, BufferError: It is not a tensor, or it is on another device.
    """
    if is_torch(value):
        array = _from_torch(value)
    elif hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic):
        array = np.from_dlpack(value)
    else:
        array = np.asarray(value)
    return np.asarray(array, order="C")


def as_torch(value: Any) -> Any:
    """Return a tensor of PyTorch that shares an array's memory. Anything but an array of numbers is returned as it is."""
    import torch  # late: it is optional, takes seconds to import, and its caller has it already

    if not isinstance(value, np.ndarray) or value.dtype.kind in "OSUT":
        return value
    if value.dtype.name in _NARROW:
        bits = value.view(np.uint16 if value.itemsize == 2 else np.uint8)
        return torch.from_numpy(bits).view(getattr(torch, value.dtype.name))
    if value.dtype.isbuiltin != 1:
        return value
    # C has two types of eight bytes, and PyTorch knows one of them only.
    return torch.from_numpy(value.view(value.dtype.name))


def _from_torch(tensor: Any) -> Array:
    import torch  # late, as above

    if tensor.device.type != "cpu":
        raise ValueError(f"it is on {tensor.device}; move it to the CPU first")
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in _NARROW:
        bits = plain.view(torch.uint16 if plain.element_size() == 2 else torch.uint8)
        array: Array = bits.numpy().view(_NARROW[name])
    else:
        array = plain.numpy()
    return array
