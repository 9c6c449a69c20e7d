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

_SHARED = frozenset("?bBefdFD") | {np.dtype(np.int16).char, np.dtype(np.int32).char, np.dtype(np.int64).char}
"""Codes of types that ``torch.from_numpy`` takes as they are. C has two types of eight bytes, and PyTorch knows one of them."""


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
    if not isinstance(value, np.ndarray):
        return value
    torch = sys.modules["torch"]  # Its caller has imported it.
    # The usual type in one step: its name takes longer than all else here.
    if value.dtype.char in _SHARED and value.dtype.isbuiltin == 1:
        return torch.from_numpy(value)
    if value.dtype.kind in "OSUT":
        return value
    if value.dtype.name in _NARROW:
        bits = value.view(np.uint16 if value.itemsize == 2 else np.uint8)
        return torch.from_numpy(bits).view(getattr(torch, value.dtype.name))
    if value.dtype.isbuiltin != 1:
        return value
    return torch.from_numpy(value.view(value.dtype.name))


def _from_torch(tensor: Any) -> Array:
    # The usual tensor in one step. Others have gradients or another sign, lie on a device, or NumPy lacks their type.
    try:
        usual: Array | None = tensor.numpy() if tensor.is_contiguous() else None
    except (RuntimeError, TypeError):
        usual = None
    if usual is not None:
        return usual
    import torch  # Late: it is optional, takes seconds to import, and its caller has it already.

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
