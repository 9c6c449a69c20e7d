"""Lengths for dimensions that the user does not give, if a model fails at the usual ones.

A detector of speech takes windows of a few hundred samples, and its file says ``sequence`` or nothing. So lengths are tried.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from collage.frontend import Lengths, describe_inputs, dimension_name, free_dimensions, has_telling_name
from collage.graph import constant_tensor
from collage.measure.reference_run import MadeUp, UntakenInputs, capture_made_up
from collage.measure.session import MeasureSession

__all__ = ["capture_at_some_lengths", "lengths_of_weights", "other_guesses"]

_GUESSES = (256, 80, 512, 1024, 128, 64, 40, 16, 257, 4096, 16000, 32, 2)
"""Windows of samples and counts of tokens. 80, 128, 64 and 40 are usual bands of speech, 257 are those of 512 samples."""
_HEIGHTS = (48, 32, 64)
"""Readers of lines of text take pictures of one height, and of any width."""
_PICTURE = 4
"""Axes of pictures."""
_COLOURS = (1, 3)
"""Channels of pictures. A cache of a decoder has as many axes, and more heads."""
_MOST_GUESSING_S = 20.0
_MATRIX = 2
_SAME_AXES = frozenset(("Cast", "Identity", "Relu", "Sigmoid", "Tanh", "Clip", "Abs", "Neg", "Dropout"))


def capture_at_some_lengths(
    model: ir.Model, measure_session: MeasureSession, dims: Lengths, given: Mapping[str, Any], *, seed: int
) -> tuple[MadeUp, Lengths]:
    """Run a model like ``capture_made_up``, at other lengths of free dimensions too if it fails at the usual ones.

    Args:
        model: A prepared model.
        measure_session: Runs it.
        dims: Representative lengths that the user gave, or that follow from inputs.
        given: Inputs that are not made up.
        seed: Seed of made-up inputs.

    Returns:
        Inputs that the model takes, and representative lengths with those that were found.

    Raises:
        UntakenInputs: It takes none of the inputs that were made up.
        NothingCanRun: It cannot be run on the given inputs, which are all.
    """
    try:
        return capture_made_up(model, measure_session, dims, given, seed=seed), dims
    except UntakenInputs:
        end = time.monotonic() + _MOST_GUESSING_S
        for guess in other_guesses(model, dims, given):
            if time.monotonic() > end:
                break
            tried = {**dims, **guess}
            try:
                return capture_made_up(model, measure_session, tried, given, seed=seed), tried
            except UntakenInputs:
                continue
        raise


def other_guesses(model: ir.Model, dims: Collection[str], given: Collection[str]) -> Iterator[dict[str, int]]:
    """Yield lengths of free dimensions to try: those that weights demand, heights, then lengths for one dimension and for all.

    Others stay as they are or, if their names tell nothing, are 1. Batches stay as they are.

    Args:
        model: Any model.
        dims: Names of dimensions whose lengths are known.
        given: Names of inputs that are not made up.
    """
    usual = free_dimensions(model, dims, given)
    leading = {
        dimension_name(spec.name, 0, spec.shape[0])
        for spec in describe_inputs(model)
        if spec.shape and len(spec.shape) > 1
    }
    names = [name for name in usual if name not in leading] or list(usual)
    demanded = {name: length for name, length in lengths_of_weights(model).items() if name in usual}
    if demanded:
        yield demanded
    heights = {
        dimension_name(spec.name, 2, spec.shape[2])
        for spec in describe_inputs(model)
        if spec.shape and len(spec.shape) == _PICTURE and spec.shape[1] in _COLOURS
    }
    for length in _HEIGHTS:
        yield from ({**demanded, name: length} for name in names if name in heights and name not in demanded)
    small = {name: 1 for name in names if not has_telling_name(name)} | demanded
    if small != {name: usual[name] for name in small} and small != demanded:
        yield small
    for length in _GUESSES:
        for others in (demanded, small) if small != demanded else (demanded,):
            # One by one first: as few as possible are not as usual, and tensors stay small.
            for chosen in dict.fromkeys([*((name,) for name in names), tuple(names)]):
                guess = {name: length for name in chosen if others.get(name, usual[name]) != length}
                if guess:
                    yield {**others, **guess}


def lengths_of_weights(model: ir.Model) -> dict[str, int]:
    """Return the lengths of free dimensions that follow from weights, such as the number of channels of a convolution.

    Exporters are told too many axes to be dynamic now and then.
    """
    inputs = set(model.graph.inputs)
    found: dict[str, int] = {}
    for node in model.graph:
        for operand, axis, length in _demands(node):
            value, place = _origin(node.inputs[operand], axis)
            if value in inputs and value.shape is not None and place < len(value.shape):
                dim = value.shape[place]
                name = dimension_name(str(value.name), place, dim if isinstance(dim, int) else dim.value)
                if name is not None:
                    found.setdefault(name, length)
    return found


def _demands(node: ir.Node) -> Iterator[tuple[int, int, int]]:
    """Yield operands of a node, an axis of each, and the length that its weights or attributes demand of it."""
    if node.domain:
        return
    weight = _shape_of_weight(node, 1)
    first = _shape_of_weight(node, 0)
    data = node.inputs[0] if node.inputs else None
    rank = 0 if data is None or data.shape is None else len(data.shape)
    if node.op_type == "DepthToSpace":
        yield 0, 1, node.attributes["blocksize"].as_int() ** 2
    elif node.op_type == "MatMul" and first and len(first) == _MATRIX and node.inputs[1] is not None:
        other = node.inputs[1].shape
        if other is not None and len(other) > 1:
            yield 1, len(other) - _MATRIX, first[1]
    if not weight:
        return
    if node.op_type == "Conv":
        yield 0, 1, weight[1] * node.attributes.get_int("group", 1)
    elif node.op_type in ("ConvTranspose", "BatchNormalization", "InstanceNormalization"):
        yield 0, 1, weight[0]
    elif node.op_type in ("LSTM", "GRU", "RNN"):
        yield 0, 2, weight[2]
    elif node.op_type == "Gemm" and rank == _MATRIX:
        is_turned, is_other_turned = (node.attributes.get_int(name, 0) for name in ("transA", "transB"))
        yield 0, 0 if is_turned else 1, weight[1 if is_other_turned else 0]
    elif node.op_type == "MatMul" and rank:
        yield 0, rank - 1, weight[-2] if len(weight) > 1 else weight[0]


def _shape_of_weight(node: ir.Node, operand: int) -> tuple[int, ...]:
    """Return the shape of an operand that is a constant; empty for all others."""
    value = node.inputs[operand] if operand < len(node.inputs) else None
    tensor = None if value is None else constant_tensor(value)
    return () if tensor is None else tuple(tensor.shape.numpy())


def _origin(value: ir.Value | None, axis: int) -> tuple[ir.Value | None, int]:
    """Return the value that has this axis of a value first: before operators that leave axes alone, or only move them."""
    while value is not None and (node := value.producer()) is not None and not node.domain:
        if node.op_type == "Transpose" and "perm" in node.attributes:
            axis = node.attributes["perm"].as_ints()[axis]
        elif node.op_type not in _SAME_AXES:
            break
        value = node.inputs[0]
    return value, axis
