"""The tests of a single value or node that patterns are refined with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from collage._errors import PatternError
from collage.graph import OpKind, op_kind, stored_tensor
from collage.pattern import _operators
from collage.pattern._scope import Scope

_MISSING = object()
_REL_TOL = 1e-5


@dataclass(frozen=True, slots=True)
class Predicate:
    """A named test of one value and the node that makes it.

    Attributes:
        text: The demand in words, for messages.
        test: Called with the scope, the value, and its producer (None for inputs and initializers).
        found: Returns a text about the value that was found instead; called only when a failure is explained.
    """

    text: str
    test: Callable[[Scope, ir.Value, ir.Node | None], bool]
    found: Callable[[Scope, ir.Value, ir.Node | None], str] | None = None


def attr_is(name: str, value: Any) -> Predicate:
    """The node's attribute, default applied, equals the value; sequences element by element."""
    wanted = _operators.plain(value)

    def test(scope: Scope, _value: ir.Value, node: ir.Node | None) -> bool:
        return node is not None and bool(scope.attributes(node).get(name, _MISSING) == wanted)

    def found(scope: Scope, _value: ir.Value, node: ir.Node | None) -> str:
        if node is None:
            return "no node makes this value"
        there = scope.attributes(node).get(name, _MISSING)
        return f"attribute {name} is absent" if there is _MISSING else f"{name} is {there!r}"

    return Predicate(f"{name} = {wanted!r}", test, found)


@cache
def dtype_is(dtype: ir.DataType | str) -> Predicate:
    """The element type is known and equal; ONNX's and NumPy's names are both understood."""
    wanted = _dtype(dtype)
    return Predicate(
        f"element type {wanted.name}",
        lambda _scope, value, _node: value.dtype == wanted,
        lambda _scope, value, _node: f"element type is {value.dtype.name if value.dtype else 'unknown'}",
    )


def _dtype(dtype: Any) -> ir.DataType:
    if isinstance(dtype, ir.DataType):
        return dtype
    if isinstance(dtype, str) and dtype.upper() in ir.DataType.__members__:
        return ir.DataType[dtype.upper()]
    try:
        return ir.DataType.from_numpy(np.dtype(dtype))
    except TypeError:
        known = ", ".join(ir.DataType.__members__)
        raise PatternError(f"unknown element type {dtype!r}; known are {known}") from None


@cache
def shape_is(shape: tuple[int | str | None, ...]) -> Predicate:
    """The shape is known and equal, None standing for any dimension."""

    def test(_scope: Scope, value: ir.Value, _node: ir.Node | None) -> bool:
        dims = dims_of(value)
        if dims is None or len(dims) != len(shape):
            return False
        return all(wanted is None or wanted == dim for wanted, dim in zip(shape, dims, strict=True))

    return Predicate(f"shape {list(shape)}", test, _shape_found)


@cache
def rank_is(rank: int) -> Predicate:
    """The rank is known and equal."""
    return Predicate(
        f"rank {rank}", lambda _scope, value, _node: value.shape is not None and len(value.shape) == rank, _shape_found
    )


def constant_is(wanted: Any) -> Predicate:
    """The value is a constant, of this content if one is given (to five digits)."""
    if wanted is None:
        return _IS_CONSTANT
    return Predicate(
        f"a constant equal to {wanted!r}",
        lambda _scope, value, _node: is_constant(value) and _content_is(value, wanted),
        lambda _scope, value, _node: "another constant" if is_constant(value) else "it is computed, or an input",
    )


@cache
def input_is() -> Predicate:
    """The value is an input of the graph, and no initializer."""
    return Predicate(
        "a graph input",
        lambda _scope, value, _node: value.is_graph_input() and not value.is_initializer(),
        lambda _scope, _value, _node: "it is computed, or constant",
    )


@cache
def kind_is(text: str, *kinds: OpKind) -> Predicate:
    """The node is of one of these operator kinds."""
    return Predicate(
        text,
        lambda _scope, _value, node: node is not None and op_kind(node) in kinds,
        lambda _scope, _value, node: f"its kind is {op_kind(node).name}" if node else "no node makes this value",
    )


def is_constant(value: ir.Value) -> bool:
    """Return True if a value is known before the model runs. An initializer that a caller may override is not."""
    node = value.producer()
    if node is not None:
        return node.op_type == "Constant" and _operators.normal_domain(node.domain) == ""
    return value.is_initializer() and not value.is_graph_input()


def dims_of(value: ir.Value) -> tuple[int | str | None, ...] | None:
    """The shape with symbolic dimensions by name and unknown ones as None; None if the rank is unknown."""
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def _shape_found(_scope: Scope, value: ir.Value, _node: ir.Node | None) -> str:
    return "shape is unknown" if value.shape is None else f"shape is {value.shape}"


def _content_is(value: ir.Value, wanted: Any) -> bool:
    """Numbers are compared in the constant's own type: integers exactly, others to its digits, five at most."""
    tensor = stored_tensor(value)
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return False
    expected = np.asarray(wanted)
    if tensor.size != expected.size or (expected.ndim > 0 and tuple(tensor.shape.numpy()) != expected.shape):
        return False
    found = np.asarray(tensor.numpy()).reshape(-1)
    if not tensor.dtype.is_floating_point():
        return bool(np.array_equal(found, expected.reshape(-1)))
    exact, digits = expected.reshape(-1).astype(np.float64), max(_REL_TOL, float(ml_dtypes.finfo(found.dtype).eps))
    return bool(np.allclose(found.astype(np.float64), exact, rtol=digits, atol=0, equal_nan=True))


_IS_CONSTANT = Predicate(
    "a constant",
    lambda _scope, value, _node: is_constant(value),
    lambda _scope, _value, _node: "it is computed, or an input",
)
