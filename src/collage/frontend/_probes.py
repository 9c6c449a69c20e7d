"""Probing inputs: those on which faults show that ordinary numbers hide, such as a black image or a silent recording."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx_ir as ir

from collage.frontend._inputs import integer_range
from collage.frontend._interface import bind_dims, describe_inputs, kind_of

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["PROBES", "Probe", "probe_inputs"]

Probe = Literal["zeros", "constant rows", "tiny and large", "wide integers"]
PROBES: tuple[Probe, ...] = ("zeros", "constant rows", "tiny and large", "wide integers")
"""Kinds of probing inputs. "Constant rows" are constant along the last axis, or over the last two of four or more."""

_ROWS = (0.5, -1.0, 0.0, 2.0, 1 / 3, 100.0, -0.25, 1e-3)
_MAGNITUDES = (-8.0, 1.5)
"""Powers of ten between which "tiny and large" numbers lie."""
_WIDE_BITS = 40
_PLANES_FROM_RANK = 4


def probe_inputs(
    model: ir.Model, kind: Probe, inputs: Mapping[str, Array], given: Collection[str] = (), seed: int = 0
) -> dict[str, Array] | None:
    """Make inputs of one kind, of the shapes and types of others.

    The kind determines floating-point values. Integers that are indices become their least or their largest values, and
    only "wide integers" changes other integers. Masks, truths and strings stay.

    Args:
        model: A model whose shapes are inferred.
        kind: See ``PROBES``.
        inputs: Ordinary inputs that the model takes, by name.
        given: Names of those whose integers the user has given: these stay.
        seed: Seed of the random numbers.

    Returns:
        Inputs by name; None if none of them would differ from the ordinary ones.
    """
    random = np.random.default_rng((seed, PROBES.index(kind)))
    shapes = bind_dims(model, {})
    lengths = {
        dim: length
        for spec in describe_inputs(model)
        if spec.name in inputs and spec.kind is None
        for dim, length in zip(spec.shape or (), np.shape(inputs[spec.name]), strict=False)
        if isinstance(dim, str)
    }
    values = {str(value.name): value for value in model.graph.inputs if value.name in shapes}
    made = {
        name: _probe(values[name], array, kind, lengths, name in given, random) if name in values else array
        for name, array in inputs.items()
    }
    same = all(made[name] is array or np.array_equal(made[name], array) for name, array in inputs.items())
    return None if same else made


def _probe(
    value: ir.Value,
    array: Array,
    kind: Probe,
    lengths: Mapping[str, int],
    is_given: bool,
    random: np.random.Generator,
) -> Array:
    if "mask" in str(value.name).lower() or value.dtype is None or kind_of(value) is not None:
        return array
    if value.dtype.is_floating_point():
        return array if kind == "wide integers" else _floats(kind, array.shape, random).astype(array.dtype)
    if not value.dtype.is_integer() or is_given or array.dtype.kind not in "iu":
        return array
    low, high = integer_range(value, value.dtype, lengths)
    if low is not None and high is not None:
        least_or_largest = {"zeros": low, "constant rows": high - 1}
        return np.full_like(array, least_or_largest[kind]) if kind in least_or_largest else array
    if kind != "wide integers":
        return np.zeros_like(array) if kind == "zeros" else array
    info = np.iinfo(array.dtype)
    bits = min(info.bits - 1, _WIDE_BITS)
    least = max(int(info.min), -(1 << bits))
    return np.asarray(random.integers(least, min(int(info.max), 1 << bits), array.shape, dtype=array.dtype))


def _floats(kind: Probe, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    if kind == "zeros":
        return np.zeros(shape)
    if kind == "tiny and large":
        return np.asarray(random.choice((-1.0, 1.0), shape) * 10.0 ** random.uniform(*_MAGNITUDES, shape))
    kept = shape[:-2] if len(shape) >= _PLANES_FROM_RANK else shape[:-1]
    count = int(np.prod(kept))
    rows = np.resize(_ROWS, count).reshape((*kept, *(1 for _ in shape[len(kept) :])))
    return np.broadcast_to(rows, shape)
