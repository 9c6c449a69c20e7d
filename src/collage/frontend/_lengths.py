"""The same model at other lengths: inputs whose symbolic dimensions are shorter or longer than in those at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from collage.frontend._interface import bind_dims, describe_inputs

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["at_other_lengths"]

_FROM_NOTHING = 3


def at_other_lengths(
    model: ir.Model, inputs: Mapping[str, Array], dims: Mapping[str, int], *, longer: bool = True
) -> Iterator[dict[str, Array]]:
    """Inputs at other lengths, made of inputs that the model takes: cut short, or begun again at the end.

    So what they hold stays plausible: tokens that exist, masks that mask. Dimensions of equal length get equal lengths.
    First all lengths change, to something that is no power of two; many models only take halves, or batches of another
    size, or lengths but no batches, so these follow.

    Args:
        model: Any model.
        inputs: One value per input, by name.
        dims: Values of dimensions that the inputs do not tell; see ``bind_dims``.
        longer: Whether dimensions may grow: what is 1 becomes 2, what is 0 becomes 3.

    Yields:
        Inputs by name, of other lengths each time; nothing where all dimensions are fixed.
    """
    lengths = _lengths(model, inputs)
    tried = [lengths]
    for change in (_three_quarters, _half, _half_but_one, _only_one):
        changed = {name: change(length) for name, length in lengths.items()}
        if not longer:
            changed = {name: min(length, lengths[name]) for name, length in changed.items()}
        if changed in tried:
            continue
        tried.append(changed)
        shapes = bind_dims(model, {**dims, **changed})
        yield {name: _resized(value, shapes.get(name, np.shape(value))) for name, value in inputs.items()}


def _lengths(model: ir.Model, inputs: Mapping[str, Array]) -> dict[str, int]:
    """The length of every dimension that has a name of its own, or none; sums and products follow from these."""
    found: dict[str, int] = {}
    for spec in describe_inputs(model):
        shape = np.shape(inputs[spec.name]) if spec.name in inputs else ()
        for axis, (dim, length) in enumerate(zip(spec.shape or (), shape, strict=False)):
            if dim is None:
                found[f"{spec.name}[{axis}]"] = length
            elif isinstance(dim, str) and not {"+", "*"} & set(dim):
                found[dim] = length
    return found


def _three_quarters(length: int) -> int:
    return length - length // 4 if length > _FROM_NOTHING else _grown(length)


def _half(length: int) -> int:
    return length // 2 if length > _FROM_NOTHING else _grown(length)


def _half_but_one(length: int) -> int:
    return length // 2 if length > 1 else length


def _only_one(length: int) -> int:
    return length if length > 1 else _grown(length)


def _grown(length: int) -> int:
    return length + 1 if length else _FROM_NOTHING


def _resized(value: Array, shape: tuple[int, ...]) -> Array:
    array = np.asarray(value)
    if len(shape) != array.ndim:
        return array
    if not array.size:
        return np.zeros(shape, array.dtype)
    for axis, length in enumerate(shape):
        if length != array.shape[axis]:
            array = np.take(array, np.arange(length) % array.shape[axis], axis)
    return array
