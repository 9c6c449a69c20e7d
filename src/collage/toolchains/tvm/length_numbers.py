"""Numbers that follow from lengths: TVM computes them before a kernel runs, and does not take them for tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, sym, te, tirx
from tvm.relax.frontend.onnx.onnx_frontend import onnx_input

__all__ = [
    "DIVISIONS",
    "FAR",
    "as_shape",
    "as_tensor",
    "bounded",
    "counted",
    "has_lengths",
    "is_number",
    "of_any_lengths",
    "quotient",
    "simplified",
    "with_tensors",
]

FAR = (1 << 31) - 1
"""More than any length."""
DIVISIONS = frozenset(("Div", "Mod"))

_OF_NUMBERS = frozenset(
    ("Add", "Cast", "Clip", "Div", "Identity", "Mod", "Mul", "Neg", "Range", "Sub", "Trilu", "Unsqueeze")
)
"""Operators that TVM computes on numbers that follow from lengths, and are not tensors to it."""

_OPAQUE = 8
"""TVM's number for functions that are not fused."""

_EXTREMES: Mapping[str, Callable[[Any, Any], Any]] = {"Max": tirx.max, "Min": tirx.min}
_ARITHMETIC = frozenset(("Add", "Div", "Mod", "Mul", "Sub"))


def has_lengths(x: Any) -> bool:
    """True if a value is a tensor, not a shape of TVM's, and its lengths are known, at least by name."""
    return isinstance(x.ty, relax.TensorType) and isinstance(x.ty.shape, relax.ShapeExpr)


def of_any_lengths(number: Any, positive: Collection[Any] = ()) -> Any:
    """Return an analyzer to which the lengths in a number are lengths, of which none is negative, and some are positive."""
    analyzer = sym.Analyzer()
    for length in tirx.analysis.undefined_vars(number):
        analyzer.bind(length, tvm.ir.Range(int(length in positive), FAR))
    return analyzer


def with_tensors(bb: Any, op_name: str, inputs: list[Any]) -> list[Any]:
    """Return operands in which a number that follows from lengths is a tensor, if TVM would end the process with the number."""
    if not any(map(is_number, inputs)) or _takes_numbers(op_name, inputs):
        return inputs
    return onnx_input([as_tensor(bb, x) if is_number(x) else x for x in inputs])  # type: ignore[no-any-return]


def _takes_numbers(op_name: str, inputs: Sequence[Any]) -> bool:
    """Return True for an operator that TVM computes on these numbers, and in which no number may be a divisor of 0."""
    if op_name == "Reshape":
        return as_shape(*inputs) is not None
    if op_name in DIVISIONS and not isinstance(inputs[1], tvm.ir.GenericConst | tirx.IntImm):
        return False
    if op_name in _EXTREMES:
        return bounded(op_name, inputs) is not None
    is_constant = all(is_number(x) or isinstance(x, tvm.ir.GenericConst) for x in inputs)
    return op_name in _OF_NUMBERS and (op_name not in _ARITHMETIC or is_constant)


def bounded(op_name: str, inputs: Sequence[Any]) -> Any | None:
    """Return ``Max`` or ``Min`` of numbers that follow from lengths, and of constants; None for others."""
    if not any(map(is_number, inputs)):
        return None
    numbers = [x if is_number(x) else _constant(x) for x in inputs]
    if any(n is None or str(n.ty) != "int64" for n in numbers):
        return None
    return functools.reduce(_EXTREMES[op_name], numbers)


def _constant(x: Any) -> Any | None:
    """Return a constant without axes as a number; None for other values."""
    is_single = isinstance(x, tvm.ir.GenericConst) and not x.ty.ndim and str(x.ty.dtype) == "int64"
    return tirx.IntImm("int64", int(x.value.numpy())) if is_single else None


def as_tensor(bb: Any, number: Any) -> Any:
    """Return a number that follows from lengths as a tensor without axes."""
    # TVM cannot fuse a function that takes a length as a number with another one that does.
    return bb.emit_te(
        lambda number: te.compute((), lambda: number),
        number,
        primfunc_name_hint="number",
        primfunc_attrs={"op_pattern": _OPAQUE},
    )


def as_shape(x: Any, shape: Any) -> Any | None:
    """Return a Reshape of a number that follows from lengths to one dimension, as a shape of TVM's; None for others."""
    is_single = isinstance(shape, tvm.ir.GenericConst) and shape.value.numpy().ravel().tolist() in ([-1], [1])
    return relax.ShapeExpr([x]) if is_single and is_number(x) and str(x.ty) == "int64" else None


def quotient(x: Any, y: Any, inputs: Iterable[Any]) -> Any | None:
    """Return the quotient of a number that follows from lengths and is not negative by a constant; None for others.

    TVM divides towards 0, and does not see that this is how it rounds the lengths of convolutions down. Lengths of the kernel's
    inputs count as 1 at least: see ``machine_facts``.
    """
    if not (is_number(x) and isinstance(y, tvm.ir.GenericConst) and y.value.numpy().size == 1):
        return None
    divisor = int(y.value.numpy().item())
    shapes = (port.ty.shape.values for port in inputs if has_lengths(port))
    given = {length for shape in shapes for n in shape for length in tirx.analysis.undefined_vars(n)}
    if divisor < 1 or not of_any_lengths(x, given).can_prove(x >= 0):
        return None
    return sym.Analyzer().simplify(tirx.floordiv(x, tirx.IntImm(str(x.ty), divisor)))


def is_number(x: Any) -> bool:
    """True for a number that follows from lengths."""
    return x is not None and tvm.ir.is_prim_expr(x)


def counted(inputs: Sequence[Any], values: Iterable[Any]) -> Any | None:
    """Return a Range from 0 in steps of 1 up to a number that follows from lengths; None for others.

    Args:
        inputs: The operands of the Range.
        values: The values before it. A number that is a length of one of them is not negative.
    """
    first, end, step = inputs
    are_usual = all(isinstance(x, tvm.ir.GenericConst) and x.value.numpy().size == 1 for x in (first, step))
    if not are_usual or (first.value.numpy().item(), step.value.numpy().item()) != (0, 1) or not is_number(end):
        return None
    count = end.value if isinstance(end, tirx.Cast) else end
    if str(count.ty) != "int64":
        return None
    with _analyzer(count, values) as analyzer:
        count = analyzer.simplify(count)
        is_never_negative = analyzer.can_prove(count >= 0)
    return relax.op.arange(0, count if is_never_negative else tirx.max(count, 0), 1, str(first.ty.dtype))


def simplified(length: Any, values: Iterable[Any]) -> Any:
    """Return a length without a limit, such as 0 in ``max(n, 0)``, that does not matter since ``n`` is a length of a value.

    Any other length is returned as it is.
    """
    if not isinstance(length, tirx.Max | tirx.Min):
        return length
    with _analyzer(length, values) as analyzer:
        found = analyzer.simplify(length)
    holds_anyway = tvm_ffi.structural_equal(found, of_any_lengths(length).simplify(length))
    return length if holds_anyway else found


@contextmanager
def _analyzer(number: Any, values: Iterable[Any]) -> Iterator[Any]:
    """Yield an analyzer to which no length of the values is negative."""
    analyzer = of_any_lengths(number)
    shapes = (x.ty.shape.values for x in values if isinstance(x, relax.Expr) and has_lengths(x))
    # A length with a name of its own is at least 0 to the analyzer already.
    sums = {str(n): n for shape in shapes for n in shape if not isinstance(n, tirx.IntImm | tirx.Var)}
    with ExitStack() as stack:
        for n in sums.values():
            stack.enter_context(analyzer.constraint_scope(n >= 0))
        yield analyzer
