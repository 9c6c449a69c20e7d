"""Elementary functions for TVM's loops on CPUs, of single precision as arithmetic that fills vectors.

TVM calls the C library for each element, which takes ten times as long as the loop around it. Here they are
polynomials on a short range, and known values outside of it. The coefficients minimise the largest error, computed in
double precision against 40 digits. ``tests/toolchain/test_tvm_math_functions.py`` holds the bounds, and the results for
infinities and NaN.

TVM writes ``tanh`` of double precision and ``atanh`` as differences and quotients of nearly equal numbers: of 1e-77 they are 0.
Both are written with ``exp`` and ``log`` that lose no digits near 0 and 1, by the quotients of W. Kahan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, tirx

__all__ = ["as_arithmetic"]

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


def as_arithmetic() -> Any:
    """The pass that writes the functions out in every loop of a module."""

    def write_out(module: Any, _: Any) -> Any:
        made = module.clone()
        for name, function in module.functions.items():
            if isinstance(function, tirx.PrimFunc):
                body = tvm_ffi.structural_map(function.body, (ir.Call, _written_out))
                made.update_func(name, function.with_body(body))
        return made

    return tvm.transform.module_pass(write_out, opt_level=0, name="ElementaryFunctionsAsArithmetic")


def _written_out(call: Any) -> Any:
    if not isinstance(call.op, ir.Op):
        return call
    dtype = str(call.args[0].ty.dtype) if len(call.args) == 1 else ""
    function = _FUNCTIONS.get(dtype, {}).get(call.op.name)
    return call if function is None else _of(call.args[0], function)


def _of(x: Any, body: Callable[[Any], Any]) -> Any:
    """An expression of ``x``, which is computed once."""
    variable = tirx.Var("x", str(x.ty.dtype))
    return tirx.Let(variable, x, body(variable))


def _exp(x: Any) -> Any:
    """For any argument: results below the smallest number become 0, and results above the largest become infinity."""
    return _of(_within(x, _EXP_LOWEST, _EXP_HIGHEST), lambda bounded: _power(bounded, all_sizes=True))


def _power(x: Any, *, all_sizes: bool = False) -> Any:
    """The exponential as ``2^n exp(r)``, where ``x = n log(2) + r``; without ``all_sizes`` of what 2^n is a number for."""

    def scaled(shifted: Any) -> Any:
        n = _bits(shifted) - _bits_of(_TO_WHOLE)
        whole = shifted - _f32(_TO_WHOLE)
        factors = [n >> _i32(1), n - (n >> _i32(1))] if all_sizes else [n]
        return _of(
            x - whole * _f32(_LOG_2[0]) - whole * _f32(_LOG_2[1]),
            lambda r: math.prod(map(_power_of_two, factors), start=r * r * _polynomial(r, _EXP) + r + _f32(1.0)),
        )

    return _of(x * _f32(1.0 / math.log(2.0)) + _f32(_TO_WHOLE), scaled)


def _log(x: Any) -> Any:
    """``e log(2) + log(1 + f)``, where ``x = 2^e (1 + f)``."""
    tiny = x < _TINY
    normal = _select(tiny, x * _f32(_LARGE), x)

    def combined(bits: Any) -> Any:
        exponent = (bits - _bits_of(math.sqrt(0.5))) >> _i32(_EXPONENT_BITS)
        e = exponent.astype(_DTYPE) - _select(tiny, math.log2(_LARGE), 0.0)
        fraction = tirx.reinterpret(_DTYPE, bits - (exponent << _i32(_EXPONENT_BITS))) - _f32(1.0)
        return _of(fraction, lambda f: f * f * _polynomial(f, _LOG) + e * _f32(_LOG_2[1]) + f + e * _f32(_LOG_2[0]))

    finite = _of(_bits(normal), combined)
    special = _select(x < 0.0, math.nan, _select(x <= 0.0, -math.inf, x))  # infinity, or no number
    return _select(tirx.all(x > 0.0, x < math.inf), finite, special)


def _sigmoid(x: Any) -> Any:
    return _f32(1.0) / (_f32(1.0) + _of(_within(-x, -_MODERATE, _MODERATE), _power))


def _tanh(x: Any) -> Any:
    """Near 0 a polynomial, since a difference of nearly equal numbers has few digits."""
    near = _of(x * x, lambda s: x * (s * _polynomial(s, _TANH) + _f32(1.0)))
    twice = _within(_f32(2.0) * tirx.abs(x), 0.0, _MODERATE)
    far = _f32(1.0) - _f32(2.0) / (_of(twice, _power) + _f32(1.0))
    return _select(tirx.abs(x) < _TANH_NEAR, near, _with_sign_of(x, far))


def _erf(x: Any) -> Any:
    """Near 0 a polynomial; from there on ``1 - exp(-p)``, where ``p`` is one."""
    near = _of(x * x, lambda s: x * _polynomial(s, _ERF_NEAR))
    distance = _within(tirx.abs(x), 0.0, _ERF_IS_ONE)
    far = _f32(1.0) - _of(_of(distance, lambda t: -_polynomial(t, _ERF_FAR)), _power)
    return _select(tirx.abs(x) < 1.0, near, _with_sign_of(x, far))


def _tanh_of_double(x: Any) -> Any:
    """``-m / (2 + m)``, where ``m = exp(-2|x|) - 1``."""
    two = _like(x, 2.0)
    return _of(_expm1(-two * tirx.abs(x)), lambda m: _signed(x, -m / (two + m)))


def _atanh(x: Any) -> Any:
    """Half of ``log(1 + 2|x| / (1 - |x|))``."""
    one, two = _like(x, 1.0), _like(x, 2.0)
    z = two * tirx.abs(x) / (one - tirx.abs(x))
    return _of(_log1p(z), lambda y: _signed(x, _like(x, 0.5) * y))


def _expm1(x: Any) -> Any:
    """``exp(x) - 1`` for ``x <= 0``: ``(u - 1) x / log(u)``, where ``u = exp(x)``, has the errors of ``u`` twice."""
    one = _like(x, 1.0)

    def made(y: Any) -> Any:
        def of_power(u: Any) -> Any:
            quotient = (u - one) * y / tirx.log(u)
            return tirx.Select(u == one, y, tirx.Select(u < _like(x, 1e-20), -one, quotient))

        return _of(tirx.exp(y), of_power)

    return _of(x, made)


def _log1p(x: Any) -> Any:
    """``log(1 + x)`` as ``log(u) x / (u - 1)``, where ``u = 1 + x`` is rounded."""
    one = _like(x, 1.0)

    def made(z: Any) -> Any:
        def of_sum(u: Any) -> Any:
            log = _log(u) if str(u.ty.dtype) == _DTYPE else tirx.log(u)
            near = _of(log, lambda y: tirx.Select(u < _like(x, math.inf), y * z / (u - one), y))
            return tirx.Select(u == one, z, near)

        return _of(one + z, of_sum)

    return _of(x, made)


def _signed(x: Any, positive: Any) -> Any:
    """A number with the sign of ``x``; ``x`` itself where that is a zero."""
    zero = _like(x, 0.0)
    return tirx.Select(x == zero, x, tirx.Select(x < zero, -positive, positive))


def _like(x: Any, number: float) -> Any:
    return tirx.const(number, str(x.ty.dtype))


def _with_sign_of(x: Any, positive: Any) -> Any:
    sign = _bits(x) & _i32(-(2**31))
    return tirx.reinterpret(_DTYPE, _bits(positive) | sign)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """A polynomial by Horner's scheme; coefficients from the lowest power on."""
    value: Any = _f32(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + _f32(coefficient)
    return value


def _power_of_two(n: Any) -> Any:
    return tirx.reinterpret(_DTYPE, (n + _i32(_EXPONENT_OF_ONE)) << _i32(_EXPONENT_BITS))


def _bits(x: Any) -> Any:
    return tirx.reinterpret("int32", x)


def _bits_of(number: float) -> Any:
    return _i32(int(np.float32(number).view(np.int32)))


def _within(x: Any, low: float, high: float) -> Any:
    return _select(x < low, low, _select(x > high, high, x))


def _select(condition: Any, yes: Any, no: Any) -> Any:
    """Select one of two computed values. Unlike a minimum, the result for NaN is defined."""
    return tirx.Select(condition, _as_f32(yes), _as_f32(no))


def _as_f32(value: Any) -> Any:
    return _f32(value) if isinstance(value, float) else value


def _f32(number: float) -> Any:
    return tirx.const(number, _DTYPE)


def _i32(number: int) -> Any:
    return tirx.const(number, "int32")


_FUNCTIONS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "float32": {
        "tirx.atanh": _atanh,
        "tirx.erf": _erf,
        "tirx.exp": _exp,
        "tirx.log": _log,
        "tirx.sigmoid": _sigmoid,
        "tirx.tanh": _tanh,
    },
    "float64": {"tirx.atanh": _atanh, "tirx.tanh": _tanh_of_double},
}
