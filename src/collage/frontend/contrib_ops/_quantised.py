"""Operators of ONNX Runtime's quantiser and of its optimisers, as sums and products of dequantised values.

Some toolchains know quantised values only as pairs of QuantizeLinear and DequantizeLinear, and compute those in integers. They
can take these forms: on a small trained network OpenVINO took a ninth of ONNX Runtime's time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from collage.frontend.contrib_ops._writer import Body, Definition, Undefined

__all__ = ["QUANTISED", "dequantised"]

_BYTES = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)


def _pair(op_type: str) -> Definition:
    """Inputs A, its scale and zero point, B and its, the result's scale and zero point."""
    return lambda b: [_quantised(b, b(op_type, dequantised(b, 0), dequantised(b, 3)), 6)]


def _linear(op_type: str) -> Definition:
    """ONNX's operator of the same name, which takes 16 bits since opset 21 only."""

    def define(b: Body) -> Sequence[str]:
        if b.version < 21:
            b.need(b.kind(0 if op_type == "DequantizeLinear" else 2) in _BYTES)
        return [b(op_type, *(b.input(i) for i in range(3) if b.has(i)), **b.attributes())]

    return define


def _single(op_type: str, **defaults: Any) -> Definition:
    """Input X, its scale and zero point, the result's scale and zero point; attributes are the operator's."""

    def define(b: Body) -> Sequence[str]:
        if b.get("channels_last", 0):
            raise Undefined
        attributes = {**defaults, **b.attributes("channels_last", "opset")}
        return [_quantised(b, b(op_type, dequantised(b, 0), **attributes), 3)]

    return define


def _softmax(b: Body) -> Sequence[str]:
    if b.get("opset", 0) < 13:  # Axes from the given one on were one then.
        raise Undefined
    return _single("Softmax", axis=-1)(b)


def _concat(b: Body) -> Sequence[str]:
    """The result's scale and zero point, then X, its scale and zero point for each part."""
    parts = [dequantised(b, at) for at in range(2, b.count, 3)]
    return [_quantised(b, b("Concat", *parts, **b.attributes()), 0)]


def _gemm(b: Body) -> Sequence[str]:
    """A and its two, B and its two (by column, perhaps), C in their scales' product, the result's two or none."""
    columns = 0 if b.get("transB", 0) else 1
    alpha = b.get("alpha", 1.0)
    flags = {name: b.get(name, 0) for name in ("transA", "transB")}
    y = b("Gemm", dequantised(b, 0), dequantised(b, 3, columns), alpha=alpha, **flags)
    if b.has(6):
        b.need(alpha == 1)
        y = b("Add", y, _bias(b, 6))
    return [_quantised(b, y, 7) if b.has(7) else y]


def _conv(b: Body) -> Sequence[str]:
    """X and its two, W and its two (by channel, perhaps), the result's two, a bias in the product of the scales."""
    bias = [_bias(b, 8)] if b.has(8) else []
    y = b("Conv", dequantised(b, 0), dequantised(b, 3, 0), *bias, **b.attributes())
    return [_quantised(b, y, 6)]


def _mat_mul(b: Body) -> Sequence[str]:
    """A and its two (by row, perhaps), B and its two (by column, perhaps), the result's two."""
    return [_quantised(b, b("MatMul", dequantised(b, 0, -2), dequantised(b, 3, -1)), 6)]


def _mat_mul_integer_to_float(b: Body) -> Sequence[str]:
    """A, B, their scales, their zero points, bias."""
    product = b("MatMul", dequantised(b, 0, at=(0, 2, 4)), dequantised(b, 1, 1, at=(1, 3, 5)))
    return [b("Add", product, b.input(6)) if b.has(6) else product]


def _dynamic_quantize_mat_mul(b: Body) -> Sequence[str]:
    """A in floating point, B, its scale, its zero point, bias."""
    rounded = b("DequantizeLinear", *b.several(3, "DynamicQuantizeLinear", b.input(0)))
    product = b("MatMul", rounded, dequantised(b, 1, 1, at=(1, 2, 3)))
    return [b("Add", product, b.input(4)) if b.has(4) else product]


def dequantised(b: Body, index: int, axis: int = 1, *, at: tuple[int, int, int] | None = None) -> str:
    """An input in floating point; its scale and zero point follow it, unless told where they are."""
    x, scale, zero = at or (index, index + 1, index + 2)
    parameters = [b.input(i) for i in (scale, zero) if b.has(i)]
    by_axis = {"axis": axis} if b.is_vector(scale) else {}
    return b("DequantizeLinear", b.input(x), *parameters, **by_axis)


def _where(b: Body) -> Sequence[str]:
    """Truth values, X, its scale and zero point, Y and its, the result's scale and zero point."""
    return [_quantised(b, b("Where", b.input(0), dequantised(b, 1), dequantised(b, 4)), 7)]


def _lstm(b: Body) -> Sequence[str]:
    """Types and shapes only: what X and states are rounded to follows from their values.

    X, weights [directions, inputs, 4 * hidden], recurrent weights, bias, lengths, states, peepholes, scales and zero points.
    """
    b.need(False)
    return b.several(3, "LSTM", *(b.input(i) for i in range(3)), **b.attributes())


def _bias(b: Body, index: int) -> str:
    """An input in the product of the scales of the first two operands."""
    scales = b("Mul", b.input(1), b.input(4))
    return b("Mul", b("CastLike", b.input(index), scales), scales)


def _quantised(b: Body, y: str, at: int) -> str:
    """A value in the scale and with the zero point that are given as inputs."""
    b.need(b.has(at + 1))
    return b("QuantizeLinear", y, *(b.input(i) for i in (at, at + 1) if b.has(i)))


QUANTISED: Mapping[str, Definition] = {
    "DequantizeLinear": _linear("DequantizeLinear"),
    "DynamicQuantizeLSTM": _lstm,
    "DynamicQuantizeMatMul": _dynamic_quantize_mat_mul,
    "MatMulIntegerToFloat": _mat_mul_integer_to_float,
    "QGemm": _gemm,
    "QLinearAdd": _pair("Add"),
    "QLinearAveragePool": _single("AveragePool"),
    "QLinearConcat": _concat,
    "QLinearConv": _conv,
    "QLinearGlobalAveragePool": _single("GlobalAveragePool"),
    "QLinearLeakyRelu": _single("LeakyRelu", alpha=0.01),
    "QLinearMatMul": _mat_mul,
    "QLinearMul": _pair("Mul"),
    "QLinearSigmoid": _single("Sigmoid"),
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QuantizeLinear": _linear("QuantizeLinear"),
}
