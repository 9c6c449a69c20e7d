"""Symbols that stand for two lengths, as careless exporters write them. ONNX Runtime goes by the inputs, not by such names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.frontend._expressions import symbols_of
from collage.frontend._interface import kind_of

__all__ = ["separate_lengths"]


def separate_lengths(
    model: ir.Model, given: Mapping[str, Any] = MappingProxyType({}), dims: Collection[str] = ()
) -> ir.Model:
    """Take the symbol away from dimensions of inputs that turn out to have another length than it.

    The first given input keeps the symbol. No result claims it any longer, since that may be either length.

    Args:
        model: Any model; it is changed.
        given: Inputs by name. A symbol may have one length in one of them, and another one in another.
        dims: Names of dimensions that lengths are stated for. ``input[axis]`` is one dimension alone, whatever its symbol.

    Returns:
        The model.
    """
    lengths: dict[str, int] = {}
    separated: set[str] = set()
    for value in model.graph.inputs:
        if value.shape is None or value.is_initializer() or kind_of(value) is not None:
            continue
        shape = np.shape(given[str(value.name)]) if value.name in given else ()
        known = shape if len(shape) == len(value.shape) else (None,) * len(value.shape)
        kept: list[int | str | None] = []
        for axis, (dim, length) in enumerate(zip(_dims(value.shape), known, strict=True)):
            is_symbol = isinstance(dim, str)
            if is_symbol and f"{value.name}[{axis}]" in dims:
                is_apart = True
            else:
                is_apart = is_symbol and length is not None and lengths.setdefault(str(dim), length) != length
            if is_apart:
                separated.add(str(dim))
            kept.append(None if is_apart else dim)
        value.shape = ir.Shape(kept)
    if separated:
        _forget(model, separated)
    return model


def _forget(model: ir.Model, symbols: Collection[str]) -> None:
    """Drop symbols from the shapes of all values but the model's inputs."""
    for graph in model.graphs():
        inputs = () if graph is model.graph else graph.inputs
        for value in (*inputs, *(output for node in graph for output in node.outputs)):
            if value.shape is not None:
                value.shape = ir.Shape(None if _names_one(dim, symbols) else dim for dim in _dims(value.shape))


def _names_one(dim: int | str | None, symbols: Collection[str]) -> bool:
    return isinstance(dim, str) and any(name in symbols for name in (dim, *symbols_of(dim)))


def _dims(shape: ir.Shape) -> Iterator[int | str | None]:
    return (dim if isinstance(dim, int) else dim.value for dim in shape)
