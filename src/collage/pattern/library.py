"""Patterns of the operator groups that toolchains fuse, as PyTorch's exporters and common quantisers write them.

Each function gives a fresh pattern, so that it can be refined and related further. Inner results are used by nothing
else, as fusion needs; only a DequantizeLinear may be shared, for it can be repeated. The docstrings list the names of captures.
"""

from __future__ import annotations

from collections.abc import Callable

from collage.pattern._base import Pattern, PatternLike
from collage.pattern._constraints import NonLeafExternUse
from collage.pattern._nodes import is_const, is_op, maybe, wildcard

__all__ = [
    "ACTIVATIONS",
    "attention",
    "conv_bias_activation",
    "gelu",
    "gemm_activation",
    "group_norm_silu",
    "layer_norm",
    "linear_gelu",
    "patterns",
    "quantized_add",
    "quantized_conv",
    "quantized_matmul",
    "residual_add",
    "rms_norm",
    "silu",
]

ACTIVATIONS = (
    "Relu",
    "Clip",
    "Sigmoid",
    "Tanh",
    "LeakyRelu",
    "PRelu",
    "HardSwish",
    "HardSigmoid",
    "Elu",
    "Selu",
    "Celu",
    "Mish",
    "Softplus",
    "Softsign",
)
"""Activations of one operator, besides GELU and SiLU."""


def conv_bias_activation() -> Pattern:
    """Convolution, then a constant added (or its own bias), then at most one activation. Captures ``x``, ``w``."""
    conv = is_op("Conv", "ConvTranspose")(wildcard("x"), is_const(name="w"), maybe(is_const(name="bias")))
    biased = conv.optional(lambda c: is_op("Add")(c, is_const()))
    return _fused(biased.optional(_activation))


def gemm_activation() -> Pattern:
    """Matrix product with constant weights, then at most a bias and an activation. Captures ``x``, ``w``."""
    return _fused(_linear().optional(_activation))


def residual_add() -> Pattern:
    """A convolution or product, with at most a bias, added to another value ``skip``, then at most a Relu."""
    conv = is_op("Conv")(wildcard("x"), is_const(), maybe(is_const()))
    product = is_op("MatMul")(wildcard(), is_const())
    gemm = is_op("Gemm")(wildcard(), is_const(), maybe(is_const()))
    biased = (conv | product).optional(lambda p: is_op("Add")(p, is_const()))
    total = is_op("Add")(biased | gemm, ~is_const() & wildcard("skip"))
    return _fused(total.optional(lambda t: is_op("Relu")(t)))


def gelu() -> Pattern:
    """GELU, as one operator or written with Erf or Tanh. Captures ``x``."""
    return _fused(_gelu_of(wildcard("x")))


def linear_gelu() -> Pattern:
    """Product with constant weights, at most a bias, GELU. Captures ``x``, ``w``."""
    return _fused(_gelu_of(_linear()))


def silu() -> Pattern:
    """SiLU, as one operator or as ``x * sigmoid(x)``. Captures ``x``."""
    return _fused(_silu_of(wildcard("x")))


def layer_norm() -> Pattern:
    """LayerNormalization, as one operator or written out. Captures ``x``."""
    x = wildcard("x")
    centred = x - is_op("ReduceMean")(x, ...)
    again = x - is_op("ReduceMean")(x, ...)  # a variance may centre its operand again
    variance = is_op("ReduceMean")(_square_of(centred) | _square_of(again), ...)
    shaped = variance.optional(lambda v: is_op("Reshape")(v, is_const()))
    normal = _over_root(centred, shaped)
    scaled = normal.optional(lambda n: is_op("Mul")(n, is_const())).optional(lambda s: is_op("Add")(s, is_const()))
    return _fused(scaled | is_op("LayerNormalization")(wildcard(), ...))


def rms_norm() -> Pattern:
    """Root mean square normalisation, as one operator or written out. Captures ``x``."""
    x = wildcard("x")
    normal = _over_root(x, is_op("ReduceMean")(_square_of(x), ...))
    return _fused(normal.optional(lambda n: is_op("Mul")(n, is_const())) | is_op("RMSNormalization")(wildcard(), ...))


def attention() -> Pattern:
    """Scaled dot-product attention. Captures ``q``, ``k``, ``v``, and ``mask`` where one is added."""
    q, k, v = wildcard("q"), wildcard("k"), wildcard("v")
    scores = is_op("MatMul")(_scaled(q), _scaled(k))
    scaled = _scaled(scores)
    masked = scaled.optional(lambda s: is_op("Add")(s, wildcard("mask")))
    weights = is_op("Softmax")(masked)
    clean = weights.optional(lambda w: is_op("Where")(is_op("IsNaN")(w), is_const(), w))
    return _fused(is_op("MatMul")(clean, v) | is_op("Attention")(wildcard(), ...))


def group_norm_silu() -> Pattern:
    """GroupNormalization, as one operator or through InstanceNormalization, then SiLU. Captures ``x``."""
    direct = is_op("GroupNormalization")(wildcard(), ...)
    instance = is_op("InstanceNormalization")(is_op("Reshape")(wildcard("x"), wildcard()), is_const(), is_const())
    restored = is_op("Reshape")(instance, wildcard())
    affine = is_op("Add")(is_op("Mul")(restored, is_const()), is_const())
    return _fused(_silu_of(direct | affine))


def quantized_conv() -> Pattern:
    """A quantised convolution with the operators that rescale its result.

    As QLinearConv; between DequantizeLinear and QuantizeLinear; or as ConvInteger, scaled back to floating point.
    """
    conv = is_op("Conv")(_dequantized(), _dequantized(), maybe(_dequantized() | is_const()))
    dynamic = _rescaled(is_op("ConvInteger")(wildcard(), ...))
    return _fused(_quantized(conv.optional(_activation)) | is_op("QLinearConv")(wildcard(), ...) | dynamic)


def quantized_matmul() -> Pattern:
    """A quantised matrix product with its bias and the operators that rescale its result.

    As QLinearMatMul or QGemm; between DequantizeLinear and QuantizeLinear; or as MatMulInteger, scaled back.
    """
    product = is_op("MatMul")(_dequantized(), _dequantized())
    kept = is_op("DequantizeLinear")(_quantized(product), ...)  # quantised between product and bias
    biased = product.optional(lambda p: is_op("Add")(p | kept, _dequantized() | is_const()))
    gemm = is_op("Gemm")(_dequantized(), _dequantized(), maybe(_dequantized() | is_const()))
    whole = is_op("QLinearMatMul")(wildcard(), ...) | is_op("QGemm", domain="com.microsoft")(wildcard(), ...)
    dynamic = _rescaled(is_op("MatMulInteger")(wildcard(), ...))
    return _fused(_quantized((biased | gemm).optional(_activation)) | whole | dynamic)


def quantized_add() -> Pattern:
    """A quantised addition of two computed values, as in residual blocks, then at most an activation."""
    total = is_op("Add")(_dequantized(), _dequantized())
    return _fused(
        _quantized(total.optional(_activation)) | is_op("QLinearAdd", domain="com.microsoft")(wildcard(), ...)
    )


def patterns() -> dict[str, PatternLike]:
    """All patterns of the library, fresh, by name."""
    builders: tuple[Callable[[], Pattern], ...] = (
        attention,
        conv_bias_activation,
        gelu,
        gemm_activation,
        group_norm_silu,
        layer_norm,
        linear_gelu,
        quantized_add,
        quantized_conv,
        quantized_matmul,
        residual_add,
        rms_norm,
        silu,
    )
    return {builder.__name__: builder() for builder in builders}


def _fused(pattern: Pattern) -> Pattern:
    pattern.add_graph_constraint(NonLeafExternUse(False))
    return pattern


def _linear() -> Pattern:
    product = is_op("MatMul")(wildcard("x"), is_const(name="w"))
    gemm = is_op("Gemm")(wildcard(), is_const(), maybe(is_const()))
    return product.optional(lambda p: is_op("Add")(p, is_const())) | gemm


def _activation(value: Pattern) -> Pattern:
    mish = is_op("Mul")(value, is_op("Tanh")(is_op("Softplus")(value)))
    softplus = is_op("Where")(is_op("Greater")(value, is_const()), value, is_op("Softplus")(value))
    return is_op(*ACTIVATIONS)(value, ...) | _silu_of(value) | _gelu_of(value) | mish | softplus


def _silu_of(value: Pattern) -> Pattern:
    return is_op("Mul")(value, is_op("Sigmoid")(value)) | is_op("Swish")(value)


def _gelu_of(value: Pattern) -> Pattern:
    inside_erf = is_op("Div")(value, is_const()) | is_op("Mul")(value, is_const())
    cube = is_op("Pow")(value, 3.0) | is_op("Mul")(is_op("Mul")(value, value), value)
    grown = is_op("Mul")(is_op("Mul")(is_op("Mul")(value, is_const()), value), value)
    cubic = is_op("Add")(value, is_op("Mul")(cube, is_const()) | grown)
    exact = is_op("Add")(is_op("Erf")(inside_erf), is_const())
    approximate = is_op("Add")(is_op("Tanh")(is_op("Mul")(cubic, is_const())), is_const())
    return _half_of_product(value, exact) | _half_of_product(value, approximate) | is_op("Gelu")(value)


def _half_of_product(value: Pattern, gate: Pattern) -> Pattern:
    return (
        is_op("Mul")(is_op("Mul")(value, gate), is_const(0.5))
        | is_op("Mul")(is_op("Mul")(value, is_const(0.5)), gate)
        | is_op("Mul")(value, is_op("Mul")(gate, is_const(0.5)))
    )


def _square_of(value: Pattern) -> Pattern:
    return value**2.0 | is_op("Mul")(value, value)


def _over_root(value: Pattern, variance: Pattern) -> Pattern:
    root = is_op("Sqrt")(variance + is_const())
    return (value / root) | (value * (is_op("Reciprocal")(root) | is_op("Div")(is_const(1.0), root)))


def _scaled(value: Pattern) -> Pattern:
    return value | is_op("Mul", "Div")(value, is_const() | is_op("Sqrt")(wildcard()))


def _dequantized() -> Pattern:
    shared = is_op("DequantizeLinear")(wildcard(), wildcard(), ...)
    shared.extern_use(None)
    return shared


def _quantized(value: Pattern) -> Pattern:
    return is_op("QuantizeLinear")(value, wildcard(), ...)


def _rescaled(value: Pattern) -> Pattern:
    scaled = is_op("Mul")(is_op("Cast")(value), wildcard("scale"))
    return value | scaled.optional(lambda s: is_op("Add")(s, is_const() | is_op("Reshape")(is_const(), is_const())))
