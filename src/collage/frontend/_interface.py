"""A model's interface: what goes in, what comes out, and concrete shapes for its symbolic dimensions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from collage._errors import UsageError
from collage._expressions import evaluate, length_of_symbol, symbols_of
from collage.frontend._defaults import default_of

__all__ = ["TensorSpec", "bind_dims", "describe_inputs", "describe_outputs", "has_telling_name", "is_list", "kind_of"]

Dim = int | str | None

_PAST = re.compile(r"past", re.IGNORECASE)
_TOTAL = re.compile(r"total", re.IGNORECASE)
_ENCODED = re.compile(r"encod", re.IGNORECASE)
_NEW = re.compile(r"seq|len|time|token", re.IGNORECASE)
"""Names of lengths beside a past: of the past and what is new, of what an encoder made, and of what is new."""

_REPRESENTATIVE = (
    (_PAST, 128),
    (re.compile(r"seq|len|time|token|frame", re.IGNORECASE), 128),
    (re.compile(r"height|width|^[hw]$", re.IGNORECASE), 224),
    (re.compile(r"node|edge|vert|point|atom", re.IGNORECASE), 128),
    (re.compile(r"batch|chan|feat|hidden|embed|head|layer", re.IGNORECASE), 1),
)
"""Lengths of dimensions by patterns of their names. The first match counts. Of other names, the place decides."""

_MOST_EXTRA = 64
"""Most steps by which a symbol is lengthened so that expressions of it become lengths."""

_MATRIX_RANK = 2
_IMAGE_RANK = 4
_IMAGE_SIZE = 224
_MOST_COLOURS = 4
_SEQUENCE = 128
_VOLUME_SIZE = 32
_SUMMANDS = (100, 7)
"""Lengths at which an expression of two symbols is asked if it is their sum."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of a model.

    Attributes:
        name: Its name.
        dtype: Element type; UNDEFINED if the model does not say.
        shape: Dimensions: a number, a symbol, or None if the model does not say; None if the rank is unknown.
        kind: Its type if it is not a tensor, such as ``seq(tensor(float))``.
        default: Shape of the tensor that stands in for an input that is not given; None if the input must be given.
    """

    name: str
    dtype: ir.DataType
    shape: tuple[Dim, ...] | None
    kind: str | None = None
    default: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.kind is not None:
            return f"{self.name}: {self.kind}"
        dims = "?" if self.shape is None else ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.name}: {self.dtype.name.lower()}[{dims}]{'' if self.default is None else ' (optional)'}"


def describe_inputs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """The inputs of a model in order, without those that are constants."""
    return tuple(_spec(value) for value in model.graph.inputs if not value.is_initializer())


def describe_outputs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """The outputs of a model in order."""
    return tuple(_spec(value) for value in model.graph.outputs)


def bind_dims(model: ir.Model, dims: Mapping[str, int] | None = None) -> dict[str, tuple[int, ...]]:
    """Give every input a concrete, representative shape.

    A symbol takes its value from ``dims``; an anonymous dimension is called ``input[axis]`` there. A dimension that is
    not in ``dims`` has the length that it has in the default of an input. Other lengths are chosen by name: lengths of
    sequences, nodes, edges and points are 128, heights and widths 224, batches and channels 1. A model with a past is a decoder:
    one new token comes after 128, and a total is 129. An input that is returned with another length added to one of its own is
    a past, too. If a name tells nothing, as those of exporters (``s0``, ``unk__1``), the place decides: batches come first,
    images have sides of 224, volumes of 32, and other dimensions are 128. Expressions of symbols, as exporters write them
    (``past + seq``, ``s0 - 1``), follow from their parts.

    Args:
        model: Any model.
        dims: Values of some dimensions.

    Returns:
        Input name to shape. An input of unknown rank has the shape of its default, or one that its first operator takes.

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
    values = {str(value.name): value for value in model.graph.inputs}
    past = dict(_grown(specs, describe_outputs(model)))
    lengths = _representative(specs, {**_lengths_of_defaults(specs), **given}, past)
    return {
        spec.name: tuple(_bind(spec, axis, dim, lengths) for axis, dim in enumerate(spec.shape or ()))
        if spec.shape is not None
        else spec.default or _guessed(values[spec.name])
        for spec in specs
    }


def _guessed(value: ir.Value) -> tuple[int, ...]:
    """Return a shape that operators with weights take; a scalar's where none says anything."""
    waiting, seen = [value], {value}
    while waiting:
        for node, position in waiting.pop(0).uses():
            others = [other for other in node.inputs if other is not None and other.is_initializer()]
            shape = others[0].shape if others else None
            weight = [dim for dim in shape if isinstance(dim, int)] if shape is not None else []
            if node.op_type in ("MatMul", "Gemm") and len(weight) >= _MATRIX_RANK and position < _MATRIX_RANK:
                is_turned = node.attributes.get_int("transB" if position == 0 else "transA", 0)
                inner = weight[-1 if is_turned else -2] if position == 0 else weight[-2 if is_turned else -1]
                return (1, inner) if position == 0 else (inner, 1)
            if node.op_type == "Conv" and position == 0 and len(weight) > _MATRIX_RANK:
                size = _IMAGE_SIZE if len(weight) == _IMAGE_RANK else _MOST_EXTRA
                return (1, weight[1] * node.attributes.get_int("group", 1), *[size] * (len(weight) - 2))
            if node.op_type in ("Add", "Sub", "Mul", "Div") and weight:
                return tuple(weight)
            if len(node.inputs) == 1 or node.op_type in ("Cast", "Clip"):
                waiting += [output for output in node.outputs if output not in seen]
                seen.update(node.outputs)
    return ()


def _lengths_of_defaults(specs: Iterable[TensorSpec]) -> dict[str, int]:
    found: dict[str, int] = {}
    for spec in specs:
        for axis, (dim, length) in enumerate(zip(spec.shape or (), spec.default or (), strict=False)):
            name = f"{spec.name}[{axis}]" if dim is None else dim
            if isinstance(name, str):
                found.setdefault(name, length)
    return found


def _representative(specs: Iterable[TensorSpec], given: Mapping[str, int], past: Mapping[str, str]) -> dict[str, int]:
    """Return a length for every symbol, and for every expression that is given one.

    ``past`` has symbols that are known to be a past, each with the symbol of what is new. Symbols of expressions that would be
    negative, or no whole number, are made longer until all expressions are at least 1.
    """
    places: dict[str, int] = {}
    for spec in specs:
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, str):
                places.setdefault(dim, _by_place(spec.shape or (), axis))
    written = places.keys()
    expressions = [dim for dim in sorted(written) if dim not in given and symbols_of(dim) != (dim,)]
    names = [name for dim in written for name in symbols_of(dim)]
    chosen = {name: _SEQUENCE if name in past else _chosen(name, places.get(name, 1)) for name in names}
    chosen |= _of_decoder(chosen, given, specs, past)
    lengths = chosen | dict(given)
    for symbol, length in [
        found for dim in sorted(written) if dim in given if (found := length_of_symbol(dim, given[dim]))
    ]:
        lengths[symbol] = given.get(symbol, length)
    for extra in range(1, _MOST_EXTRA):
        short = [dim for dim in expressions if not _fits(dim, lengths)]
        open_ = {name for dim in short for name in symbols_of(dim)} - given.keys()
        if not open_:
            break
        lengths |= {name: chosen[name] + extra for name in open_}
    return lengths


def _grown(inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> Iterator[tuple[str, str]]:
    """Yield symbols of inputs that are returned longer by another symbol, and these: lengths of a past, and of what is new."""
    shapes = [spec.shape for spec in inputs if spec.shape is not None]
    for shape in (spec.shape or () for spec in outputs):
        for axis, dim in enumerate(shape):
            parts = symbols_of(dim) if isinstance(dim, str) else ()
            for old, new in (parts, parts[::-1]) if len(parts) == len(_SUMMANDS) else ():
                is_sum = evaluate(str(dim), dict(zip((old, new), _SUMMANDS, strict=True)).__getitem__) == sum(_SUMMANDS)
                if is_sum and (*shape[:axis], old, *shape[axis + 1 :]) in shapes:
                    yield old, new


def _of_decoder(
    chosen: Mapping[str, int], given: Mapping[str, int], specs: Iterable[TensorSpec], grown: Mapping[str, str]
) -> dict[str, int]:
    """Return lengths of a step of a decoder, by symbol: a new token after a past. Nothing if no symbol is a past."""
    past = [name for name in chosen if _PAST.search(name) or name in grown]
    if not past:
        return {}
    others = [name for name in chosen if name not in past and not _ENCODED.search(name)]
    added = set(grown.values())
    masked = {spec.shape[-1] for spec in specs if added and spec.shape and "mask" in spec.name.lower()} - added
    totals = [name for name in others if _TOTAL.search(name) or name in masked]
    new = {name: 1 for name in others if name not in totals and (_NEW.search(name) or name in added)}
    lengths = {**chosen, **new, **given}
    return new | dict.fromkeys(totals, lengths[past[0]] + next((lengths[name] for name in new), 1))


def _fits(dim: str, lengths: Mapping[str, int]) -> bool:
    value = evaluate(dim, lengths.__getitem__)
    return value is not None and (value > 0 or not all(lengths[name] for name in symbols_of(dim)))


def has_telling_name(name: str) -> bool:
    """Return True if the length of a free dimension is chosen by its name, see ``bind_dims``."""
    return "[" not in name and any(pattern.search(name) for pattern, _ in _REPRESENTATIVE)


def _chosen(name: str, otherwise: int) -> int:
    return next((value for pattern, value in _REPRESENTATIVE if pattern.search(name)), otherwise)


def _by_place(shape: Sequence[Dim], axis: int) -> int:
    """Return the length of a dimension without a telling name, by its place among others."""
    first, rank = shape[0], len(shape)
    # With several layers or directions first, batches come next.
    batch = 1 if isinstance(first, int) and first > 1 else 0
    if axis <= batch or rank < _MATRIX_RANK:
        return 1
    if rank > _IMAGE_RANK:
        return 1 if axis == 1 else _VOLUME_SIZE
    if rank < _IMAGE_RANK:
        return _SEQUENCE
    last = shape[-1]
    if isinstance(last, int) and last <= _MOST_COLOURS:
        return _IMAGE_SIZE
    if axis == 1:
        return 1
    return _SEQUENCE if isinstance(last, int) else _IMAGE_SIZE


def _spec(value: ir.Value) -> TensorSpec:
    shape: tuple[Dim, ...] | None = None
    if value.shape is not None:
        shape = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    default = default_of(value)
    return TensorSpec(
        str(value.name),
        value.dtype or ir.DataType.UNDEFINED,
        shape,
        kind_of(value),
        None if default is None else default.shape,
    )


def kind_of(value: ir.Value) -> str | None:
    """Return the type of a sequence or an optional, as ONNX Runtime writes it; None for tensors, and if there is no type."""
    if not isinstance(value.type, ir.SequenceType | ir.OptionalType):
        return None
    return _type_name(value.type)


def is_list(value: ir.Value) -> bool:
    """Return True for sequences, and for optionals of these: their values are lists of tensors."""
    kind = value.type
    while isinstance(kind, ir.OptionalType):
        kind = kind.elem_type
    return isinstance(kind, ir.SequenceType)


def _type_name(kind: ir.TypeProtocol) -> str:
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        outer = "seq" if isinstance(kind, ir.SequenceType) else "optional"
        return f"{outer}({_type_name(kind.elem_type)})"
    return f"tensor({kind.dtype.name.lower()})"


def _names(spec: TensorSpec, axis: int, dim: Dim) -> Iterable[str]:
    if dim is None:
        return (f"{spec.name}[{axis}]",)
    return (dim, *symbols_of(dim)) if isinstance(dim, str) else ()


def _bind(spec: TensorSpec, axis: int, dim: Dim, lengths: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if dim is None:
        return lengths.get(f"{spec.name}[{axis}]", _by_place(spec.shape or (), axis))
    if dim in lengths:
        return lengths[dim]
    return evaluate(dim, lengths.__getitem__) or 0


def _hint(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; it has {', '.join(names)}" if names else "; all its dimensions are fixed"
