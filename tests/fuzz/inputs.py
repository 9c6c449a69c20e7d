"""Adversarial inputs: what numerical code is rarely tried on, made of the inputs that a model has.

Each set changes every floating-point input, or every integer one, and leaves the others as they are. A set that the original
model does not take (indices out of range) is left out by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

Array = Any
Change = Callable[[Array], Array]


def adversarial(feeds: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield sets of inputs with their names."""
    floats, integers, flags = (any(test(x) for x in _arrays(feeds)) for test in (_is_float, _is_integer, _is_flag))
    for wanted, test, changes in (
        (floats, _is_float, OF_FLOATS),
        (integers, _is_integer, OF_INTEGERS),
        (flags, _is_flag, OF_FLAGS),
    ):
        for name, change in changes.items() if wanted else ():
            made = {key: _changed(x, test, change) for key, x in feeds.items()}
            if any(not _same(made[key], feeds[key]) for key in feeds):
                yield name, made


def _arrays(feeds: Mapping[str, Any]) -> Iterator[Array]:
    for x in feeds.values():
        yield from (y for y in (x if isinstance(x, list) else [x]) if isinstance(y, np.ndarray))


def _changed(x: Any, test: Callable[[Array], bool], change: Change) -> Any:
    if isinstance(x, list):
        return [_changed(y, test, change) for y in x]
    if not isinstance(x, np.ndarray) or not test(x):
        return x
    with np.errstate(all="ignore"):
        return np.asarray(change(x), x.dtype).reshape(x.shape)


def _same(x: Any, y: Any) -> bool:
    if isinstance(x, list):
        return all(_same(*pair) for pair in zip(x, y, strict=True))
    return not isinstance(x, np.ndarray) or x.tobytes() == y.tobytes()


def _is_float(x: Array) -> bool:
    return x.dtype.kind == "f" or x.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def _is_integer(x: Array) -> bool:
    return x.dtype.kind in "iu"


def _is_flag(x: Array) -> bool:
    return x.dtype.kind == "b"


def _scaled(share: float) -> Change:
    """Scale to a share of the exponents from 1 to the largest (or, where negative, the smallest normal) number."""

    def change(x: Array) -> Array:
        known = ml_dtypes.finfo(x.dtype)
        end = float(known.max if share > 0 else known.tiny)
        return x.astype(np.float64) / max(float(np.abs(x.astype(np.float64)).max(initial=0)), 1e-3) * end ** abs(share)

    return change


def _with(special: float) -> Change:
    """Put a special number in the first of every three places."""

    def change(x: Array) -> Array:
        made = x.copy().reshape(-1)
        made[::3] = special
        return made

    return change


def _rows(x: Array) -> Array:
    """Make each row constant, of a number that sums exactly."""
    if x.ndim == 0 or x.size == 0:
        return x
    first = np.round(x[..., :1].astype(np.float64) * 4) / 4
    return np.broadcast_to(first, x.shape)


def _alternating(low: float, high: float) -> Change:
    return lambda x: np.where(np.arange(x.size).reshape(x.shape) % 2, low, high)


def _extremes(x: Array) -> Array:
    known = np.iinfo(x.dtype)
    ends = np.array([known.max, known.min], x.dtype)
    return ends[np.arange(x.size) % 2]


def _beyond_32_bits(x: Array) -> Array:
    return x * x.dtype.type(2**33) + x.dtype.type(1) if x.dtype.itemsize == 8 else x


def _just_past_32_bits(x: Array) -> Array:
    return x + x.dtype.type(2**31) if x.dtype.itemsize == 8 else x


OF_FLOATS: Mapping[str, Change] = {
    "zeros": np.zeros_like,
    "negative zeros": lambda x: -np.zeros_like(x),
    "both zeros": _alternating(0.0, -0.0),
    "one number": lambda x: np.full_like(x, 2),
    "constant rows": _rows,
    "repeated values": lambda x: np.round(x.astype(np.float64)),
    "halves": lambda x: np.round(x.astype(np.float64)) + 0.5,
    "small": _scaled(-0.25),
    "tiny": _scaled(-0.8),
    "denormal": lambda x: _scaled(-1.0)(x) / 8,
    "large": _scaled(0.25),
    "huge": _scaled(0.9),
    "some NaN": _with(np.nan),
    "some infinity": _with(np.inf),
    "some minus infinity": _with(-np.inf),
}
EDGES = frozenset({"negative zeros", "both zeros", "denormal", "some NaN", "some infinity", "some minus infinity"})
"""Sets of numbers that vendors' kernels are known to drop."""
LARGE, SMALL = frozenset({"large", "huge"}), frozenset({"small", "tiny"})
OF_INTEGERS: Mapping[str, Change] = {
    "integers of 0": np.zeros_like,
    "integers of 1": np.ones_like,
    "last indices": lambda x: np.full_like(x, -1 if x.dtype.kind == "i" else x.max(initial=0)),
    "integers of one value": lambda x: np.full_like(x, x.max(initial=0)),
    "negated integers": lambda x: -x,
    "integer extremes": _extremes,
    "integers past 31 bits": _just_past_32_bits,
    "integers beyond 32 bits": _beyond_32_bits,
}
OF_FLAGS: Mapping[str, Change] = {
    "no flags": np.zeros_like,
    "all flags": np.ones_like,
}
