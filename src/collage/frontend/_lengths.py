"""Lengths of symbolic dimensions: a model whose lengths are fixed, and the same model at others, with inputs cut to that."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from collage._errors import UsageError
from collage._expressions import length_of_symbol, substituted, symbols_of
from collage.frontend._interface import bind_dims, describe_inputs
from collage.frontend._separate import separate_lengths

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["cut", "dimension_name", "fix_lengths", "free_dimensions", "lengths_of", "other_lengths", "single_lengths"]

_FROM_NOTHING = 3


def fix_lengths(model: ir.Model, lengths: Mapping[str, int]) -> ir.Model:
    """Fix symbolic dimensions to one length, so that every toolchain can compute dependent values ahead.

    Args:
        model: Any model; it is changed.
        lengths: Lengths by symbol, or by ``input[axis]`` if a dimension of an input has no name, or not the length of its symbol.

    Returns:
        The model, that takes no other lengths.

    Raises:
        UsageError: A dimension that the model does not have, or a negative length.
    """
    if not lengths:
        return model
    bind_dims(separate_lengths(model, dims=lengths), lengths)
    for spec in describe_inputs(model):
        for dim, length in zip(spec.shape or (), spec.default or (), strict=False):
            fixed = substituted(dim, lengths) if isinstance(dim, str) else dim
            if isinstance(fixed, int) and fixed != length:
                raise UsageError(f"{dim!r} cannot be {fixed}: it is {length} in the default of input {spec.name!r}")
    for graph in model.graphs():
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
            if value.shape is not None:
                place = str(value.name) if graph is model.graph and value.is_graph_input() else ""
                value.shape = ir.Shape(
                    _fixed(dim, lengths, place and f"{place}[{i}]") for i, dim in enumerate(value.shape)
                )
    return model


def _fixed(dim: int | ir.SymbolicDim, lengths: Mapping[str, int], place: str = "") -> int | str | None:
    """Return the dimension with known lengths filled in: a length, symbol or expression; None is to be inferred."""
    name = dim if isinstance(dim, int) else dim.value
    if isinstance(name, int):
        return name
    if name is None:
        return lengths.get(place)
    left = substituted(name, lengths)
    return left if place or left == name or isinstance(left, int) else None


def other_lengths(model: ir.Model, inputs: Mapping[str, Array], *, longer: bool = True) -> Iterator[dict[str, int]]:
    """Other lengths of a model's symbolic dimensions than its inputs have; equal lengths stay equal.

    First all lengths change, to values other than powers of two. Many models take less: only halves, only other batches, only
    other lengths, or only longer ones if an input points into another. So these follow. A length that is the sum of two others,
    as a decoder's mask has it, is tried as their sum first.

    Args:
        model: Any model.
        inputs: One value per input, by name.
        longer: True if dimensions may grow: 1 becomes 2, and 0 becomes 3.

    Yields:
        Values of dimensions, for ``bind_dims``, but for ``single_lengths``; nothing if all are fixed.
    """
    lengths = lengths_of(model, inputs)
    tried = [lengths, single_lengths(model, inputs)]
    for change in (_three_quarters, _half, _half_but_one, _only_one, _longer):
        changed = {name: change(length) for name, length in lengths.items()}
        if not longer:
            changed = {name: min(length, lengths[name]) for name, length in changed.items()}
        for candidate in (_with_sums(changed, lengths), changed):
            if candidate not in tried:
                tried.append(candidate)
                yield candidate


def single_lengths(model: ir.Model, inputs: Mapping[str, Array]) -> dict[str, int] | None:
    """All symbolic dimensions at 1 but for sums, where tensors are broadcast in other ways; None if none is longer than that."""
    lengths = lengths_of(model, inputs)
    single = _with_sums({name: min(length, 1) for name, length in lengths.items()}, lengths)
    return single if single != lengths else None


def _with_sums(changed: Mapping[str, int], lengths: Mapping[str, int]) -> dict[str, int]:
    """Return changed lengths, of which those that were the sum of two others still are."""
    names = {length: name for name, length in lengths.items() if length > 0}
    pairs = {first + second: (names[first], names[second]) for first in names for second in names if first < second}
    return {
        name: sum(changed[part] for part in pairs[lengths[name]]) if lengths[name] in pairs else length
        for name, length in changed.items()
    }


def lengths_of(model: ir.Model, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Return the length of every symbol, as far as it follows, and of every dimension without a name."""
    found: dict[str, int] = {}
    derived: dict[str, int] = {}
    for spec in describe_inputs(model):
        shape = np.shape(inputs[spec.name]) if spec.name in inputs and spec.kind is None else ()
        for axis, (dim, length) in enumerate(zip(spec.shape or (), shape, strict=False)):
            if dim is None:
                found[f"{spec.name}[{axis}]"] = length
            elif isinstance(dim, str) and symbols_of(dim) == (dim,):
                found[dim] = length
            elif isinstance(dim, str) and (solved := length_of_symbol(dim, length)):
                derived.setdefault(*solved)
    return {**derived, **found}


def free_dimensions(model: ir.Model, dims: Collection[str], given: Collection[str]) -> dict[str, int]:
    """Return the dimensions of made-up inputs whose lengths the user may give, with their default lengths.

    Dimensions without a name are called ``input[axis]``. Expressions of several symbols are left out: they follow.

    Args:
        model: Any model.
        dims: Names of dimensions whose lengths are known.
        given: Names of inputs that are not made up.
    """
    shapes = bind_dims(model, {})
    return {
        name: length
        for spec in describe_inputs(model)
        if spec.name not in given
        for axis, (dim, length) in enumerate(zip(spec.shape or (), shapes[spec.name], strict=False))
        if (name := dimension_name(spec.name, axis, dim)) is not None and name not in dims
    }


def dimension_name(name: str, axis: int, dim: int | str | None) -> str | None:
    """Return the name of an input's dimension in the option ``--dim``; None if it is fixed, or follows from others."""
    if dim is None:
        return f"{name}[{axis}]"
    return dim if isinstance(dim, str) and symbols_of(dim) == (dim,) else None


def _three_quarters(length: int) -> int:
    return length - length // 4 if length > _FROM_NOTHING else _grown(length)


def _half(length: int) -> int:
    return length // 2 if length > _FROM_NOTHING else _grown(length)


def _half_but_one(length: int) -> int:
    return length // 2 if length > 1 else length


def _only_one(length: int) -> int:
    return length if length > 1 else _grown(length)


def _longer(length: int) -> int:
    return length + max(1, length // 4)


def _grown(length: int) -> int:
    return length + 1 if length else _FROM_NOTHING


def cut(value: Any, shape: tuple[int, ...] | None) -> Any:
    """A tensor of this shape with the first elements of ``value``, repeated if it is longer.

    So what it holds stays plausible: tokens that exist, masks that mask. Zeros where ``value`` has no elements. Lists of
    tensors stay as they are.
    """
    if value is None or shape is None or isinstance(value, list):
        return value
    array = np.asarray(value)
    if len(shape) != array.ndim:
        return array
    if not array.size:
        return np.zeros(shape, array.dtype)
    for axis, length in enumerate(shape):
        if length != array.shape[axis]:
            array = np.take(array, np.arange(length) % array.shape[axis], axis)
    return array
