"""Plausible inputs for a model: token numbers that exist, masks that let everything through, ordinary activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx_ir as ir

from collage._errors import UsageError
from collage.frontend._defaults import default_of
from collage.frontend._interface import bind_dims, describe_inputs, is_list

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["FLOATS", "RANKS", "Floats", "check_lengths", "integer_range", "make_inputs"]

Floats = Literal["normal", "fractions", "above one"]
FLOATS: tuple[Floats, ...] = ("normal", "fractions", "above one")
"""Kinds of made-up floating-point inputs, the usual one first: normally distributed, between 0 and 1, between 1 and 2."""

RANKS = (1, 2, 3, 4)
"""Ranks to try for inputs whose rank the model does not state, and which cannot be scalars."""

_LENGTH_OF_ANY_AXIS = 4
"""Length of all axes of an input whose rank is tried."""
_TENSORS_IN_A_LIST = 3

_PASSES_VALUES_ON = {
    *("Cast", "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice"),
    *("Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
}
"""Operators whose output holds the values of their first input, in some other order, type or number."""

_INDEXED_AXIS = {"Gather": 0, "GatherElements": 0, "ScatterElements": 0}
_SEQUENCE_LENGTHS = {
    **dict.fromkeys((("RNN", 4), ("LSTM", 4), ("GRU", 4)), "layout"),
    ("ReverseSequence", 1): "time_axis",
}
"""Inputs that hold lengths of sequences: operator and position, and the attribute with the axis that bounds them."""

_RESIZE_SIZES = 3
_PAST_LENGTHS = 5
_PAST_AXIS = 2
_DEFAULT_INT_RANGE = 8
_TRIP_COUNT = 4
_DEEPEST = 1 << 31
"""Depth of a OneHot up to which made-up indices lie."""
_MOST_BYTES = 1 << 33
"""Bytes of a made-up input, as many as ``Budgets`` allows for a value of known shape."""
_DRAWN_AT_ONCE = 1 << 20
_LEAST_FRACTION = 1 / 256


def make_inputs(
    model: ir.Model,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    floats: Floats = "normal",
    rank: int | None = None,
) -> dict[str, Any]:
    """Make random but plausible inputs, the same for the same seed.

    Floating-point inputs are normally distributed, unless another kind is asked for: some models return only NaN for
    these, such as one that takes the logarithm of an image. Integers that reach an index of Gather and its relatives
    lie inside what they index, as long as it is with these dimensions; other integers lie in [0, 8), images of bytes in
    [0, 256). Inputs called a mask are ones. Integers that are used as a shape, as sizes or as lengths of sequences are
    such as change nothing, or ones. Booleans are true. Inputs that have a default are that, where it is of the right
    shape. A sequence is a list of three tensors, and an optional is there.

    Args:
        model: A model whose shapes are inferred, so that the sizes of tables are known.
        seed: Seed of the random numbers.
        dims: Values of symbolic dimensions; see ``bind_dims``.
        floats: Kind of floating-point inputs, see ``FLOATS``.
        rank: Rank of inputs whose rank the model does not state; None makes them scalars.

    Returns:
        Input name to array, or to a list of arrays.

    Raises:
        UsageError: ``dims`` does not fit the model, or an input would be too large.
    """
    shapes = bind_dims(model, dims)
    if rank is not None:
        unknown = [spec.name for spec in describe_inputs(model) if spec.shape is None and not shapes[spec.name]]
        shapes |= dict.fromkeys(unknown, (_LENGTH_OF_ANY_AXIS,) * rank)
    inputs = {value.name: value for value in model.graph.inputs}
    _refuse_large(model, shapes)
    lengths = {
        dim: length
        for spec in describe_inputs(model)
        for dim, length in zip(spec.shape or (), shapes[spec.name], strict=spec.shape is not None)
        if isinstance(dim, str)
    }
    return {
        name: _make(inputs[name], shape, lengths, floats, np.random.default_rng((seed, index)))
        for index, (name, shape) in enumerate(shapes.items())
    }


def check_lengths(model: ir.Model, dims: Mapping[str, int] | None = None, given: Collection[str] = ()) -> None:
    """Check that inputs that are not given can be made up with these dimensions, see ``make_inputs``.

    Raises:
        UsageError: ``dims`` does not fit the model, or an input would be too large.
    """
    _refuse_large(model, {name: shape for name, shape in bind_dims(model, dims).items() if name not in given})


def _refuse_large(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> None:
    inputs = {value.name: value for value in model.graph.inputs}
    for name, shape in shapes.items():
        dtype = inputs[name].dtype
        width = 1 if dtype is None or dtype == ir.DataType.STRING else -(-dtype.bitwidth // 8)
        if width * math.prod(max(length, 1) for length in shape) > _MOST_BYTES:
            raise UsageError(
                f"input {name!r} would be made up with the shape {list(shape)}, which is too large",
                hint="state shorter lengths of its dimensions, or give the input",
            )


def _make(
    value: ir.Value, shape: tuple[int, ...], lengths: Mapping[str, int], floats: Floats, random: np.random.Generator
) -> Any:
    if is_list(value):
        return [_make_tensor(value, shape, lengths, floats, random) for _ in range(_TENSORS_IN_A_LIST)]
    return _make_tensor(value, shape, lengths, floats, random)


def _make_tensor(
    value: ir.Value, shape: tuple[int, ...], lengths: Mapping[str, int], floats: Floats, random: np.random.Generator
) -> Array:
    dtype = value.dtype or ir.DataType.FLOAT
    default = default_of(value)
    if default is not None and default.shape == shape:
        return default
    if dtype == ir.DataType.STRING:
        words = random.choice(np.array(["red", "green", "blue", "one", "two"], dtype=object), size=shape)
        return np.asarray(words, dtype=object)
    numpy_dtype = dtype.numpy()
    if dtype == ir.DataType.BOOL or "mask" in str(value.name).lower():
        return np.ones(shape, numpy_dtype)
    if dtype.is_floating_point():
        return _drawn(lambda count: _floats(floats, count, random), shape, numpy_dtype)
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        return np.asarray(random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(numpy_dtype)
    if (sizes := _as_sizes(value, shape, lengths)) is not None:
        return np.array(sizes, numpy_dtype).reshape(shape)
    low, high = integer_range(value, dtype, lengths)
    if low is None or high is None:
        low, high = (0, 256) if dtype == ir.DataType.UINT8 else (0, min(_DEFAULT_INT_RANGE, 2 ** (dtype.bitwidth - 1)))
    if any((node.op_type, position) in _SEQUENCE_LENGTHS for node, position in value.uses()):
        low = high - 1
    return _drawn(lambda count: random.integers(low, high, count), shape, numpy_dtype)


def _drawn(draw: Callable[[int], Array], shape: tuple[int, ...], dtype: Any) -> Array:
    """Return random numbers of a type, drawn piece by piece: they come as float64 or int64, which may be eight times as large."""
    found = np.empty(shape, dtype)
    flat = found.reshape(-1)
    for start in range(0, flat.size, _DRAWN_AT_ONCE):
        flat[start : start + _DRAWN_AT_ONCE] = draw(min(_DRAWN_AT_ONCE, flat.size - start)).astype(dtype)
    return found


def _as_sizes(value: ir.Value, shape: tuple[int, ...], lengths: Mapping[str, int]) -> list[int] | None:
    """Return a value, valid for every tensor, for an input that is a Reshape's shape or a Resize's sizes; None for others."""
    if len(shape) != 1:
        return None
    for node, position in value.uses():
        if node.op_type == "Reshape" and position == 1:
            return [*(1 for _ in range(shape[0] - 1)), -1][: shape[0]]
        if node.op_type == "Resize" and position == _RESIZE_SIZES:
            sizes = _sizes(node.inputs[0], lengths)
            axes = node.attributes.get_ints("axes") or range(len(sizes))
            return [_along(sizes, axis) for axis in axes] if len(axes) == shape[0] else [1] * shape[0]
    return None


def _floats(kind: Floats, count: int, random: np.random.Generator) -> Array:
    if kind == "normal":
        return random.standard_normal(count)
    return random.uniform(_LEAST_FRACTION, 1.0, count) + (1.0 if kind == "above one" else 0.0)


def integer_range(
    value: ir.Value, dtype: ir.DataType, lengths: Mapping[str, int]
) -> tuple[int, int] | tuple[None, None]:
    """Return the half-open range of an integer input that follows from its uses; None twice if it may be any."""
    limits = set(_limits(value, lengths))
    if not limits:
        return None, None
    low, high = max(low for low, _ in limits), min(high for _, high in limits)
    return low, max(high, low + 1)


def _limits(value: ir.Value, lengths: Mapping[str, int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    waiting, seen = [value], {value}
    while waiting:
        for node, position in waiting.pop().uses():
            limit = _limit(node, position, lengths)
            if limit is not None:
                found.append(limit)
            elif node.op_type in _PASSES_VALUES_ON and (position == 0 or node.op_type == "Concat"):
                waiting += [output for output in node.outputs if output not in seen]
                seen.update(node.outputs)
    return found


def _limit(node: ir.Node, position: int, lengths: Mapping[str, int]) -> tuple[int, int] | None:
    """Return the range of values that an operator allows at one of its inputs; None if it allows all."""
    if node.op_type in _INDEXED_AXIS and position == 1:
        sizes, axis = _sizes(node.inputs[0], lengths), node.attributes.get_int("axis", 0)
        return 0, _along(sizes, axis)
    if node.op_type == "GatherBlockQuantized" and position == 1:
        return 0, _along(_sizes(node.inputs[0], lengths), node.attributes.get_int("gather_axis", 0))
    if node.op_type in ("GatherND", "ScatterND") and position == 1:
        return 0, min(_sizes(node.inputs[0], lengths), default=1)
    if node.op_type == "OneHot" and position == 0:
        depth = node.inputs[1].const_value if node.inputs[1] is not None else None
        # It may be of any type of numbers, also not a number.
        least = 1.0 if depth is None or depth.size != 1 else float(depth.numpy().reshape(-1)[0])
        return 0, int(min(least, _DEEPEST)) if least > 1 else 1
    if node.op_type == "Loop" and position == 0:
        return _TRIP_COUNT, _TRIP_COUNT + 1
    if node.op_type == "SequenceAt" and position == 1:
        return 0, _TENSORS_IN_A_LIST
    if (node.op_type, position) in _SEQUENCE_LENGTHS:
        axis = node.attributes.get_int(_SEQUENCE_LENGTHS[node.op_type, position], 0)
        return 1, _along(_sizes(node.inputs[0], lengths), axis) + 1
    if node.op_type == "GroupQueryAttention" and position in (5, 6):
        new, old = _sizes(node.inputs[0], lengths), _sizes(node.inputs[3], lengths)
        total = (new[1] if len(new) > 1 else 1) + (old[2] if len(old) > _PAST_AXIS else 0)
        return (total - 1, total) if position == _PAST_LENGTHS else (total, total + 1)
    if node.op_type in ("Reshape", "Expand", "Tile", "ConstantOfShape", "TopK") and position == len(node.inputs) - 1:
        return 1, 2
    return None


def _along(sizes: list[int], axis: int) -> int:
    """The size of an axis; 1 if it is not known, as are those of a tensor of unknown rank."""
    return sizes[axis] if -len(sizes) <= axis < len(sizes) else 1


def _sizes(value: ir.Value | None, lengths: Mapping[str, int]) -> list[int]:
    """The sizes of the indexed axes; 1 for those that are unknown, so that 0 is the index."""
    shape = value.const_value.shape if value is not None and value.const_value is not None else value and value.shape
    return [dim if isinstance(dim, int) else lengths.get(str(dim.value), 1) for dim in shape or ()]
