"""Awkward numbers of every type, and equality to the bit."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

_SMALL = (0, 1, 2, 3, 7)


@cache
def as_numbers(dtype: np.dtype) -> np.ndarray:
    """The numbers of a type that rewrites tend to be wrong about."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        signed = (-1, -2, -7) if dtype.kind == "i" else ()
        return np.array([*_SMALL, *signed, limits.max, limits.max - 1, limits.min, limits.min + 1], dtype)
    info = ml_dtypes.finfo(dtype)
    eps, tiny, least, most = (float(each) for each in (info.eps, info.tiny, info.smallest_subnormal, info.max))
    positive = [0.0, 1.0, 1 + eps, 1 - eps / 2, 0.5, 1e-9, 1.000009, 2.5, 3.5, tiny, least, most, np.inf, np.nan]
    with np.errstate(all="ignore"):
        return np.array([sign * number for number in positive for sign in (1, -1)]).astype(dtype)


ADVERSARIAL: list[np.dtype] = [
    *(np.dtype(f"{kind}{bits}") for bits in (8, 16, 32, 64) for kind in ("int", "uint")),
    *(np.dtype(name) for name in ("float16", "float32", "float64", "bool")),
    np.dtype(ml_dtypes.bfloat16),
]


def made_of(data: st.DataObject, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Draw an array of awkward numbers."""
    size = int(np.prod(shape))
    numbers = as_numbers(dtype)
    places = data.draw(st.lists(st.integers(0, len(numbers) - 1), min_size=size, max_size=size))
    return numbers[places].reshape(shape) if size else np.zeros(shape, dtype)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal to the bit, signs of zeros included; any NaN equals any."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind in "biuOSU":
        return np.array_equal(one, other)
    wide, others = one.astype(np.float64), other.astype(np.float64)
    return np.array_equal(wide, others, equal_nan=True) and bool(
        (np.signbit(wide) == np.signbit(others))[~np.isnan(wide)].all()
    )
