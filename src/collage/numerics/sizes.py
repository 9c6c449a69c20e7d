"""Sizes of outputs, by which errors are judged: of each class of elements its own.

One tensor may hold quantities of several magnitudes. Then an error relative to the largest of all says nothing about the others.

* **Fill values** are far beyond all real ones, such as -1e8 for an illegal move. They form a class of their own.
* **Slices** along one axis may be of other magnitudes, such as rows of boxes in pixels above rows of scores.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

__all__ = ["is_mixed", "sizes_of"]

Array = np.ndarray[Any, Any]

# Fill values in use are -1e4, -65504, -1e9 and the least float. Real numbers beyond 1024 are followed by others without a gap.
_FILL_BITS = 10
_FILL_GAP_BITS = 9
# Boxes in a picture of 32 pixels are 32 times as large as scores. Neighbouring channels of activations differ by less.
_SLICE_GAP = 24.0
# A slice of fewer elements says little about the size of what it holds: a class of a softmax is not a quantity.
_LEAST_IN_SLICE = 16
_MOST_SLICES = 4096


def sizes_of(magnitudes: Array, usual: Array | None = None, *, by_slices: bool = True) -> Any:
    """Return the size of each element's class: a number, or an array that broadcasts to the tensor.

    Args:
        magnitudes: Magnitudes of the elements; those that are not finite have no part.
        usual: Magnitudes on other inputs, of the same shape. Slices are of another magnitude only if they are so there too:
            rows of a page without text are not another quantity.
        by_slices: False leaves only fill values apart.
    """
    finite = np.isfinite(magnitudes)
    if not finite.all():
        magnitudes = np.where(finite, magnitudes, 0.0)
    largest = float(np.max(magnitudes, initial=0.0))
    fill = _least_fill(magnitudes, largest)
    if fill is None:
        return _by_slices(magnitudes, largest, usual) if by_slices else largest
    is_fill = magnitudes >= fill
    rest = np.where(is_fill, 0.0, magnitudes)
    largest_of_rest = float(np.max(rest, initial=0.0))
    return np.where(is_fill, largest, _by_slices(rest, largest_of_rest, None) if by_slices else largest_of_rest)


def is_mixed(magnitudes: Array, usual: Array | None = None) -> bool:
    """Return True if a tensor holds quantities of several magnitudes; see ``sizes_of``."""
    found = sizes_of(magnitudes, usual)
    return bool(np.ndim(found) and np.max(found, initial=0.0) > np.min(found, initial=np.inf))


def _least_fill(magnitudes: Array, largest: float) -> float | None:
    """Return the least magnitude of fill values, or None if there are none: they end above a wide gap."""
    if largest < 2.0**_FILL_BITS:
        return None
    bits = np.unique(np.frexp(magnitudes[magnitudes > 0])[1])
    gaps = [above for below, above in itertools.pairwise(bits) if above - below > _FILL_GAP_BITS and above > _FILL_BITS]
    return float(2.0 ** (int(gaps[-1]) - 1)) if gaps else None


def _by_slices(magnitudes: Array, largest: float, usual: Array | None) -> Any:
    """Return the size of slices along the axis that tells magnitudes apart best; the largest of all if none does."""
    best: tuple[float, int, Array] | None = None
    usual = None if usual is None else np.where(np.isfinite(usual), usual, 0.0)
    for axis, count in enumerate(magnitudes.shape if magnitudes.ndim > 1 else ()):
        if not 1 < count <= min(_MOST_SLICES, magnitudes.size // _LEAST_IN_SLICE):
            continue
        per_slice = _shares(magnitudes, axis)
        if usual is not None:
            per_slice = np.maximum(per_slice, _shares(usual, axis))
        ordered = np.sort(per_slice[per_slice > 0])
        ratios = ordered[1:] / ordered[:-1]
        if len(ratios) and (widest := float(ratios.max())) >= _SLICE_GAP and (best is None or widest > best[0]):
            # Slices belong together if no gap lies between them.
            edges = ordered[1:][ratios >= _SLICE_GAP]
            best = widest, axis, np.searchsorted(edges, per_slice, side="right")
    if best is None:
        return largest
    _, axis, groups = best
    others = tuple(each for each in range(magnitudes.ndim) if each != axis)
    own = np.max(magnitudes, axis=others)
    sizes = np.zeros(len(groups))
    for group in np.unique(groups):
        sizes[groups == group] = np.max(own[groups == group], initial=0.0)
    shape = [1] * magnitudes.ndim
    shape[axis] = len(groups)
    return sizes.reshape(shape)


def _shares(magnitudes: Array, axis: int) -> Array:
    """Return the largest magnitude of each slice along an axis, as a share of the largest of all. All are finite."""
    others = tuple(each for each in range(magnitudes.ndim) if each != axis)
    per_slice = np.max(magnitudes, axis=others)
    largest = float(per_slice.max(initial=0.0))
    return np.asarray(per_slice / largest if largest else np.ones_like(per_slice))
