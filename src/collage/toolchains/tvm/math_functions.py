"""Elementary functions for TVM's loops on CPUs, of single precision as arithmetic that fills vectors.

TVM calls the C library for each element, which takes ten times as long as the loop around it. Here they are
polynomials on a short range, and known values outside of it. The coefficients minimise the largest error, computed in
double precision against 40 digits; those of sines and cosines are of the library Cephes.
``tests/toolchain/test_tvm_math_functions.py`` holds the bounds, and the results for infinities and NaN.

TVM writes ``tanh`` of double precision and ``atanh`` as differences and quotients of nearly equal numbers: of 1e-77 they are 0.
Both are written with ``exp`` and ``log`` that lose no digits near 0 and 1, by the quotients of W. Kahan.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, tirx

__all__ = ["as_arithmetic", "as_functions_of_vectors"]

Body = Callable[[Any, "Steps"], Any]
"""A function of a value, as arithmetic."""

_DTYPE = "float32"
_EXPONENT_BITS = 23
_EXPONENT_OF_ONE = 127
_TO_WHOLE = 1.5 * 2.0**_EXPONENT_BITS
"""Added to a small number, it rounds to an integer: the last binary digit becomes that of ones."""
_LOG_2 = (0.693359375, -2.12194440054690583e-4)
"""The logarithm of 2, as a number of few digits, whose multiples are exact, and the rest."""
_EXP_LOWEST, _EXP_HIGHEST = -104.0, 89.0
"""Nothing but 0 below, and infinity above."""
_MODERATE = 88.0
"""Up to here exponentials are numbers."""
_TINY, _LARGE = 2.0**-126, 2.0**_EXPONENT_BITS
"""The least normal number, and the factor that makes subnormal numbers normal."""
_TANH_NEAR = 0.625
_ERF_IS_ONE = 4.0
_LARGEST_ANGLE = 2.0**20
"""Up to here as many quarters of a turn are exact in double precision; beyond, the C library computes sines."""
_QUARTER = (1.57079632673412561417, 6.07710050650619224932e-11)
"""A quarter of a turn, as a number of 33 binary digits, whose multiples are exact in double precision, and the rest."""
_TO_WHOLE_DOUBLE = 1.5 * 2.0**52
"""Added to a small number of double precision, it rounds to an integer."""
_SIN = (-0.16666654611, 0.0083321608736, -0.00019515295891)
_COS = (-0.5, 0.041666645683, -0.0013887316255, 2.4433157118e-05)
_EXP = (0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.008368735201656818, 0.0013814560370519757)
_LOG = (
    -0.49999988079071045,
    0.33333325386047363,
    -0.25001582503318787,
    0.2000197470188141,
    -0.16609081625938416,
    0.14181822538375854,
    -0.13242986798286438,
    0.12904445827007294,
    -0.07621793448925018,
)
_TANH = (-0.3333328068256378, 0.13331441581249237, -0.05373971536755562, 0.0206390880048275, -0.005704986862838268)
_ERF_NEAR = (
    1.1283791065216064,
    -0.3761262595653534,
    0.1128358542919159,
    -0.026853810995817184,
    0.005188327748328447,
    -0.0008010192541405559,
    7.853857823647559e-05,
)
_ERF_FAR = (
    0.0003415230894461274,
    1.1270891427993774,
    0.638144850730896,
    0.10310675203800201,
    -0.02183806337416172,
    0.0029476583003997803,
    -0.00018637918401509523,
)


def as_functions_of_vectors() -> Any:
    """The pass that calls own operators for functions of which TVM has none of vectors: it would make loops of numbers."""

    def named(call: Any) -> Any:
        is_own = _body_of(call) is not None and call.op.name in _OF_NUMBERS
        return ir.Call(_OF_NUMBERS[call.op.name], call.args, ret_ty=call.ty) if is_own else call

    def name_all(module: Any, _: Any) -> Any:
        return _with_bodies(module, lambda body: _mapped(body, named))

    return tvm.transform.module_pass(name_all, opt_level=0, name="ElementaryFunctionsOfVectors")


def as_arithmetic() -> Any:
    """The pass that writes the functions out, in loops whose vectors are made and which nothing simplifies any more.

    What is computed once is stored in memory that will be registers. TVM's code generator simplifies what is bound to a variable
    together with all that is bound in it: a convolution with the Tanh of a Softplus took four seconds.
    """

    def write_out(module: Any, _: Any) -> Any:
        steps = [(tirx.BufferStore, _apart), (tirx.Bind, _apart)]
        return _with_bodies(module, lambda body: tvm_ffi.structural_map(body, steps))

    return tvm.transform.module_pass(write_out, opt_level=0, name="ElementaryFunctionsAsArithmetic")


def _with_bodies(module: Any, change: Callable[[Any], Any]) -> Any:
    """A module with the bodies of its loops changed."""
    made = module.clone()
    for name, function in module.functions.items():
        if isinstance(function, tirx.PrimFunc):
            made.update_func(name, function.with_body(change(function.body)))
    return made


def _apart(statement: Any) -> Any:
    """A statement after those that compute its functions."""
    steps = Steps()
    steps.statements.append(_without_functions(statement, steps))
    return steps.in_order()


class Steps:
    """Statements that compute values once, in registers.

    Attributes:
        statements: The statements, in order.
    """

    def __init__(self) -> None:
        self.statements: list[Any] = []

    def __call__(self, value: Any) -> Any:
        """Compute a value once, and return what reads it."""
        place = self._place(value)
        self.statements.append(tirx.BufferStore(place, value, [0]))
        return tirx.BufferLoad(place, [0])

    def either(self, condition: Any, *bodies: Callable[[Steps], Any]) -> Any:
        """Compute the value of the first body where a condition holds, else that of the second, and return what reads it."""
        branches = [Steps() for _ in bodies]
        values = [body(branch) for branch, body in zip(branches, bodies, strict=True)]
        place = self._place(values[0])
        for branch, value in zip(branches, values, strict=True):
            branch.statements.append(tirx.BufferStore(place, value, [0]))
        self.statements.append(tirx.IfThenElse(condition, *(branch.in_order() for branch in branches)))
        return tirx.BufferLoad(place, [0])

    def in_order(self) -> Any:
        """Return all statements as one."""
        return self.statements[0] if len(self.statements) == 1 else tirx.SeqStmt(self.statements)

    def _place(self, value: Any) -> Any:
        place = tirx.decl_buffer((1,), str(value.ty.dtype), name="value")
        self.statements.append(tirx.AllocBuffer(place))
        return place


def _without_functions(body: Any, steps: Steps) -> Any:
    """A statement or value that reads results of functions, which steps before it store."""
    # Choices in others are changed with these: what they read may exist under the outer condition only.
    choices = [choice for choice in _all_of(body, _is_choice) if _all_of(choice, _body_of)]
    inner = [each for choice in choices for branch in choice.args for each in _all_of(branch, _is_choice)]
    outer = [choice for choice in choices if not any(choice.same_as(each) for each in inner)]

    def chosen(call: Any) -> Any:
        if not any(call.same_as(choice) for choice in outer):
            return call
        condition, *values = call.args
        bodies = (functools.partial(_without_functions, value) for value in values)
        return steps.either(_without_functions(condition, steps), *bodies)

    return _mapped(_mapped(body, chosen), lambda call: _written_out(call, steps))


def _all_of(body: Any, is_wanted: Callable[[Any], Any]) -> list[Any]:
    found = list[Any]()
    tvm_ffi.structural_walk(body, (ir.Call, lambda call: found.append(call) if is_wanted(call) else None))
    return found


def _is_choice(call: Any) -> bool:
    """Return True for one of two values, of which the other one is not computed."""
    return isinstance(call.op, ir.Op) and call.op.name == "prim.if_then_else"


def _mapped(body: Any, change: Callable[[Any], Any]) -> Any:
    return tvm_ffi.structural_map(body, (ir.Call, change))


def _written_out(call: Any, once: Steps) -> Any:
    body = _body_of(call)
    return call if body is None else body(once(call.args[0]), once)


def _body_of(call: Any) -> Body | None:
    """The body of the function that is called; None if the call stays."""
    bodies = _FUNCTIONS.get(call.op.name.replace(_OWN, "tirx.")) if isinstance(call.op, ir.Op) else None
    return None if bodies is None else bodies.get(_element_of(call))


def _exp(x: Any, once: Steps) -> Any:
    """For any argument: results below the smallest number become 0, and results above the largest become infinity."""
    return _power(once(_within(x, _EXP_LOWEST, _EXP_HIGHEST)), once, all_sizes=True)


def _power(x: Any, once: Steps, *, all_sizes: bool = False) -> Any:
    """The exponential as ``2^n exp(r)``, where ``x = n log(2) + r``; without ``all_sizes`` of what 2^n is a number for."""
    shifted = once(x * _f32(1.0 / math.log(2.0)) + _f32(_TO_WHOLE))
    n = _bits(shifted) - _bits_of(_TO_WHOLE)
    whole = shifted - _f32(_TO_WHOLE)
    factors = [n >> _i32(1), n - (n >> _i32(1))] if all_sizes else [n]
    r = once(x - whole * _f32(_LOG_2[0]) - whole * _f32(_LOG_2[1]))
    return math.prod(map(_power_of_two, factors), start=r * r * _polynomial(r, _EXP) + r + _f32(1.0))


def _log(x: Any, once: Steps) -> Any:
    """``e log(2) + log(1 + f)``, where ``x = 2^e (1 + f)``."""
    tiny = x < _TINY
    bits = once(_bits(_select(tiny, x * _f32(_LARGE), x)))
    exponent = (bits - _bits_of(math.sqrt(0.5))) >> _i32(_EXPONENT_BITS)
    e = exponent.astype(_type_like(x)) - _select(tiny, math.log2(_LARGE), 0.0)
    f = once(_float_of(bits - (exponent << _i32(_EXPONENT_BITS))) - _f32(1.0))
    finite = f * f * _polynomial(f, _LOG) + e * _f32(_LOG_2[1]) + f + e * _f32(_LOG_2[0])
    special = _select(x < 0.0, math.nan, _select(x <= 0.0, -math.inf, x))  # infinity, or no number
    return _select(tirx.all(x > 0.0, x < math.inf), finite, special)


def _sigmoid(x: Any, once: Steps) -> Any:
    return _f32(1.0) / (_f32(1.0) + _power(once(_within(-x, -_MODERATE, _MODERATE)), once))


def _tanh(x: Any, once: Steps) -> Any:
    """Near 0 a polynomial, since a difference of nearly equal numbers has few digits."""
    square = once(x * x)
    near = x * (square * _polynomial(square, _TANH) + _f32(1.0))
    twice = once(_within(_f32(2.0) * tirx.abs(x), 0.0, _MODERATE))
    far = _f32(1.0) - _f32(2.0) / (_power(twice, once) + _f32(1.0))
    return _select(tirx.abs(x) < _TANH_NEAR, near, _with_sign_of(x, far))


def _erf(x: Any, once: Steps) -> Any:
    """Near 0 a polynomial; from there on ``1 - exp(-p)``, where ``p`` is one."""
    near = x * _polynomial(once(x * x), _ERF_NEAR)
    distance = once(_within(tirx.abs(x), 0.0, _ERF_IS_ONE))
    far = _f32(1.0) - _power(once(-_polynomial(distance, _ERF_FAR)), once)
    return _select(tirx.abs(x) < 1.0, near, _with_sign_of(x, far))


def _sin(x: Any, once: Steps) -> Any:
    return _sine(x, once, 0)


def _cos(x: Any, once: Steps) -> Any:
    return _sine(x, once, 1)


def _sine(x: Any, once: Steps, quarters: int) -> Any:
    """The sine of ``x`` and so many quarters of a turn.

    Where a number of a vector is too large, infinite or none, the C library computes each of them.
    """
    size = once(_bits(x) & _i32(2**31 - 1))
    is_moderate = _largest_of(size) < _bits_of(_LARGEST_ANGLE)
    return once.either(
        is_moderate, lambda inner: _moderate_sine(x, inner, quarters), lambda _: _by_library(x, quarters)
    )


def _moderate_sine(x: Any, once: Steps, quarters: int) -> Any:
    """A polynomial of what is left of a quarter of a turn, that of a sine or of a cosine."""
    double = _type_like(x, "float64")
    wide = once(x.astype(double))
    whole = once(wide * _f64(2.0 / math.pi) + _f64(_TO_WHOLE_DOUBLE) - _f64(_TO_WHOLE_DOUBLE))
    r = once((wide - whole * _f64(_QUARTER[0]) - whole * _f64(_QUARTER[1])).astype(_type_like(x)))
    n = once(whole.astype(_type_like(x, "int32")) + _i32(quarters))
    square = once(r * r)
    sine = r * (square * _polynomial(square, _SIN) + _f32(1.0))
    cosine = square * _polynomial(square, _COS) + _f32(1.0)
    value = once(_select((n & _i32(1)).equal(_i32(0)), sine, cosine))
    return _float_of(_bits(value) ^ ((n & _i32(2)) << _i32(30)))


def _largest_of(vector: Any) -> Any:
    """Return the largest of the integers of a vector."""
    if "x" not in str(vector.ty.dtype):
        return vector
    return tirx.call_llvm_pure_intrin("int32", "llvm.vector.reduce.smax", vector)


def _by_library(x: Any, quarters: int) -> Any:
    """Return what the C library computes of each number of a vector."""
    function = tirx.cos if quarters else tirx.sin
    _, _, lanes = str(x.ty.dtype).partition("x")
    if not lanes:
        return function(x)
    places = range(int(lanes))
    return tirx.Shuffle([function(tirx.Shuffle([x], [i])) for i in places], [*places])


def _tanh_of_double(x: Any, once: Steps) -> Any:
    """``-m / (2 + m)``, where ``m = exp(-2|x|) - 1``."""
    two = _like(x, 2.0)
    m = once(_expm1(once(-two * tirx.abs(x)), once))
    return _signed(x, once(-m / (two + m)))


def _atanh(x: Any, once: Steps) -> Any:
    """Half of ``log(1 + 2|x| / (1 - |x|))``."""
    one, two = _like(x, 1.0), _like(x, 2.0)
    logarithm = _log1p(once(two * tirx.abs(x) / (one - tirx.abs(x))), once)
    return _signed(x, once(_like(x, 0.5) * logarithm))


def _expm1(x: Any, once: Steps) -> Any:
    """``exp(x) - 1`` for ``x <= 0``: ``(u - 1) x / log(u)``, where ``u = exp(x)``, has the errors of ``u`` twice."""
    one, u = _like(x, 1.0), once(tirx.exp(x))
    quotient = (u - one) * x / tirx.log(u)
    return tirx.Select(u == one, x, tirx.Select(u < _like(x, 1e-20), -one, quotient))


def _log1p(x: Any, once: Steps) -> Any:
    """``log(1 + x)`` as ``log(u) x / (u - 1)``, where ``u = 1 + x`` is rounded."""
    one = _like(x, 1.0)
    u = once(one + x)
    logarithm = once(_log(u, once) if _element_of(u) == _DTYPE else tirx.log(u))
    near = tirx.Select(u < _like(x, math.inf), logarithm * x / (u - one), logarithm)
    return tirx.Select(u == one, x, near)


def _signed(x: Any, positive: Any) -> Any:
    """A number with the sign of ``x``; ``x`` itself where that is a zero."""
    zero = _like(x, 0.0)
    return tirx.Select(x == zero, x, tirx.Select(x < zero, -positive, positive))


def _like(x: Any, number: float) -> Any:
    return tirx.const(number, str(x.ty.dtype))


def _with_sign_of(x: Any, positive: Any) -> Any:
    sign = _bits(x) & _i32(-(2**31))
    return _float_of(_bits(positive) | sign)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """A polynomial by Horner's scheme; coefficients from the lowest power on."""
    value: Any = _f32(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + _f32(coefficient)
    return value


def _power_of_two(n: Any) -> Any:
    return _float_of((n + _i32(_EXPONENT_OF_ONE)) << _i32(_EXPONENT_BITS))


def _bits(x: Any) -> Any:
    return tirx.reinterpret(_type_like(x, "int32"), x)


def _float_of(bits: Any) -> Any:
    return tirx.reinterpret(_type_like(bits), bits)


def _element_of(x: Any) -> str:
    return str(x.ty.dtype).partition("x")[0]


def _type_like(x: Any, element: str = _DTYPE) -> str:
    """Return the type of vectors with as many lanes as another value has."""
    _, of, lanes = str(x.ty.dtype).partition("x")
    return f"{element}{of}{lanes}"


def _bits_of(number: float) -> Any:
    return _i32(int(np.float32(number).view(np.int32)))


def _within(x: Any, low: float, high: float) -> Any:
    return _select(x < low, low, _select(x > high, high, x))


def _select(condition: Any, yes: Any, no: Any) -> Any:
    """Select one of two computed values. Unlike a minimum, the result for NaN is defined."""
    kind = _type_like(condition)
    return tirx.Select(condition, *(tirx.const(each, kind) if isinstance(each, float) else each for each in (yes, no)))


def _f32(number: float) -> Any:
    return tirx.const(number, _DTYPE)


def _f64(number: float) -> Any:
    return tirx.const(number, "float64")


def _i32(number: int) -> Any:
    return tirx.const(number, "int32")


_FUNCTIONS: Mapping[str, Mapping[str, Body]] = {
    "tirx.atanh": {"float32": _atanh, "float64": _atanh},
    "tirx.cos": {"float32": _cos},
    "tirx.erf": {"float32": _erf},
    "tirx.exp": {"float32": _exp},
    "tirx.log": {"float32": _log},
    "tirx.sigmoid": {"float32": _sigmoid},
    "tirx.sin": {"float32": _sin},
    "tirx.tanh": {"float32": _tanh, "float64": _tanh_of_double},
}
"""Bodies of functions, by element type."""


def _own_operator(name: str) -> Any:
    """A pure operator that vectors may be given to."""
    tvm.get_global_func("ir.RegisterOp")(name, "A function that is written out when vectors are made.")
    ir.register_op_attr(name, "TVectorizable", True)
    ir.register_op_attr(name, "TCallEffectKind", _PURE)
    return ir.Op.get(name)


_PURE = 1
_OWN = "collage."
_OF_NUMBERS = {f"tirx.{name}": _own_operator(f"{_OWN}{name}") for name in ("atanh", "erf")}
"""Own operators in place of TVM's."""
