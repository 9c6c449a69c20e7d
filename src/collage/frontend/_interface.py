"""A model's interface: what goes in, what comes out, and concrete shapes for its symbolic dimensions."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from collage._errors import UsageError

__all__ = ["TensorSpec", "bind_dims", "describe_inputs", "describe_outputs"]

Dim = int | str | None

_REPRESENTATIVE = (
    (re.compile(r"past"), 0),
    (re.compile(r"seq|len|time|token|frame", re.IGNORECASE), 128),
    (re.compile(r"height|width|^[hw]$", re.IGNORECASE), 224),
    (re.compile(r"node|edge|vert|point|atom", re.IGNORECASE), 128),
)
"""What a dimension is taken for by its name, first match first; every other name, such as a batch, is 1."""

_IMAGE_RANK = 4
_IMAGE_SIZE = 224


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a model.

    Attributes:
        name: Its name.
        dtype: Element type; UNDEFINED if the model does not say.
        shape: Dimensions: a number, a symbol, or None where the model does not say; None if the rank is unknown.
    """

    name: str
    dtype: ir.DataType
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.name}: {self.dtype.name.lower()}[{dims}]"


def describe_inputs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """The inputs of a model in order, without those that are constants."""
    return tuple(_spec(value) for value in model.graph.inputs if not value.is_initializer())


def describe_outputs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """The outputs of a model in order."""
    return tuple(_spec(value) for value in model.graph.outputs)


def bind_dims(model: ir.Model, dims: Mapping[str, int] | None = None) -> dict[str, tuple[int, ...]]:
    """Gives every input a concrete, representative shape.

    A symbol takes its value from ``dims``; an anonymous dimension is called ``input[axis]`` there. What ``dims`` leaves
    open is chosen by name: lengths of sequences, nodes, edges and points are 128, heights and widths 224, lengths of the
    past 0, and everything else, batches above all, 1. Anonymous spatial dimensions of a rank-4 input, [N, C, H, W], are
    224. Sums and products of symbols, as exporters write them (``past + seq``), follow from their parts.

    Args:
        model: Any model.
        dims: Values of some dimensions.

    Returns:
        Input name to shape; an input of unknown rank is a scalar.

    Raises:
        UsageError: ``dims`` names a dimension that the model does not have, or a negative value.
    """
    given = dict(dims or {})
    specs = describe_inputs(model)
    known = {name for spec in specs for axis, dim in enumerate(spec.shape or ()) for name in _names(spec, axis, dim)}
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"the model has no dimension {name!r}{_hint(name, known)}")
        if value < 0:
            raise UsageError(f"dimension {name!r} cannot be {value}")
    return {
        spec.name: tuple(_bind(spec, axis, dim, given) for axis, dim in enumerate(spec.shape or ())) for spec in specs
    }


def _spec(value: ir.Value) -> TensorSpec:
    shape: tuple[Dim, ...] | None = None
    if value.shape is not None:
        shape = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return TensorSpec(str(value.name), value.dtype or ir.DataType.UNDEFINED, shape)


def _names(spec: TensorSpec, axis: int, dim: Dim) -> Iterable[str]:
    if dim is None:
        return (f"{spec.name}[{axis}]",)
    return (dim, *_symbols(dim)) if isinstance(dim, str) else ()


def _symbols(expression: str) -> list[str]:
    return [part for part in re.split(r"\s*[+*]\s*", expression) if part and not part.isdigit()]


def _bind(spec: TensorSpec, axis: int, dim: Dim, given: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if dim is None:
        spatial = len(spec.shape or ()) == _IMAGE_RANK and axis >= _IMAGE_RANK - 2
        return given.get(f"{spec.name}[{axis}]", _IMAGE_SIZE if spatial else 1)
    if dim in given:
        return given[dim]
    return sum(math.prod(_term(part.strip(), given) for part in term.split("*")) for term in dim.split("+"))


def _term(name: str, given: Mapping[str, int]) -> int:
    if name.isdigit():
        return int(name)
    return given.get(name, next((value for pattern, value in _REPRESENTATIVE if pattern.search(name)), 1))


def _hint(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; it has {', '.join(names)}" if names else "; all its dimensions are fixed"
