"""Symbols that stand for two lengths, as careless exporters write them. ONNX Runtime goes by the inputs, not by such names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from collage._expressions import evaluate, symbols_of
from collage.frontend._interface import kind_of

__all__ = ["separate_lengths"]


def separate_lengths(
    model: ir.Model, given: Mapping[str, Any] = MappingProxyType({}), dims: Collection[str] = ()
) -> ir.Model:
    """Take the symbol, or the expression, away from dimensions of inputs that turn out to have another length than it.

    The first given input keeps the symbol. No result claims it any longer, since that may be either length.

    Args:
        model: Any model; it is changed.
        given: Inputs by name. A symbol may have one length in one of them, and another one in another.
        dims: Names of dimensions that lengths are stated for. ``input[axis]`` is one dimension alone, whatever its symbol.

    Returns:
        The model.
    """
    separated: set[str] = set()
    ports = [(value, _lengths_of(value, given)) for value in model.graph.inputs if _is_tensor(value)]
    lengths: dict[str, int] = {}
    for value, known in ports:
        for dim, length in zip(_dims(value), known, strict=True):
            if isinstance(dim, str) and length is not None:
                lengths.setdefault(dim, length)
    for value, known in ports:
        kept: list[int | str | None] = []
        for axis, (dim, length) in enumerate(zip(_dims(value), known, strict=True)):
            is_symbol = isinstance(dim, str)
            if is_symbol and f"{value.name}[{axis}]" in dims:
                is_apart = True
            else:
                is_apart = is_symbol and length is not None and _expected(str(dim), lengths) != length
            if is_apart:
                separated.add(str(dim))
            kept.append(None if is_apart else dim)
        value.shape = ir.Shape(kept)
    if separated:
        _forget(model, separated)
    return model


def _is_tensor(value: ir.Value) -> bool:
    return value.shape is not None and not value.is_initializer() and kind_of(value) is None


def _lengths_of(value: ir.Value, given: Mapping[str, Any]) -> Sequence[int | None]:
    """Return the lengths that an input is given with, None for each that is not known."""
    shape = np.shape(given[str(value.name)]) if value.name in given else ()
    return shape if len(shape) == len(_dims(value)) else [None] * len(_dims(value))


def _expected(dim: str, lengths: Mapping[str, int]) -> int:
    """Return the length that a dimension has if others have the lengths that are given."""
    names = symbols_of(dim)
    found = evaluate(dim, lengths.__getitem__) if lengths.keys() >= set(names) else None
    return lengths[dim] if found is None else found


def _forget(model: ir.Model, symbols: Collection[str]) -> None:
    """Drop symbols from the shapes of all values but the model's inputs."""
    for graph in model.graphs():
        inputs = () if graph is model.graph else graph.inputs
        for value in (*inputs, *(output for node in graph for output in node.outputs)):
            if value.shape is not None:
                value.shape = ir.Shape(None if _names_one(dim, symbols) else dim for dim in _dims(value))


def _names_one(dim: int | str | None, symbols: Collection[str]) -> bool:
    return isinstance(dim, str) and any(name in symbols for name in (dim, *symbols_of(dim)))


def _dims(value: ir.Value) -> list[int | str | None]:
    return [dim if isinstance(dim, int) else dim.value for dim in value.shape or ()]
