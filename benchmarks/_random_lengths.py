"""Random models at other lengths: what ``random_graphs.py --symbolic`` gives to toolchains.

A random model has fixed shapes, which its operators were drawn for. Many of them take other lengths all the same. So its
inputs' dimensions get names, equal ones the same name, and whatever lengths the references still agree on are cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from _random_models import Array, Sample

_NOISE = 1e-6


def symbolic(given: Sample, *, first_only: bool) -> Sample:
    """The model with names for its inputs' dimensions that are longer than 1, and with outputs of unknown shapes.

    Args:
        given: A model with fixed shapes.
        first_only: Name an input's first dimension only: batches, or rows.
    """
    return Sample(with_named_lengths(given.model, first_only=first_only), given.feeds)


def with_named_lengths(
    model: onnx.ModelProto, *, inputs: int | None = None, first_only: bool = False
) -> onnx.ModelProto:
    """A copy of a model: its inputs' lengths above 1 have names, equal ones the same, and its outputs' are not known.

    Args:
        model: Of fixed shapes.
        inputs: Only of so many inputs.
        first_only: Name an input's first dimension only.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input[:inputs]:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value > 1 and not (first_only and axis):
                dim.dim_param = f"d{dim.dim_value}"
    for value in copy.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    return copy


def at_other_lengths(given: Sample) -> Iterator[dict[str, Array]]:
    """Inputs of a model with named dimensions, of other lengths than those that it has: shorter, longer, and all 1."""
    from collage.frontend import bind_dims, cut, other_lengths, read_model

    model = read_model(given.model)
    tried = [*other_lengths(model, given.feeds)]
    for lengths in [*tried, *(dict.fromkeys(lengths, 1) for lengths in tried[:1])]:
        shapes = bind_dims(model, lengths)
        yield {name: cut(x, shapes.get(name, np.shape(x))) for name, x in given.feeds.items()}


def shaken(feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The same inputs but for the last digits of floating-point numbers: ties are no longer ties."""
    numbers = np.random.default_rng(0)
    return {
        name: (x * (1 + _NOISE * numbers.uniform(-1, 1, x.shape))).astype(x.dtype) if x.dtype.kind == "f" else x
        for name, x in feeds.items()
    }
