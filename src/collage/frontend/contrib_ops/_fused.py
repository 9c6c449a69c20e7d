"""Operators that ONNX Runtime joins: products, convolutions, activations and normalisations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from collage.frontend.contrib_ops._writer import Body, Definition, Undefined

__all__ = ["FUSED", "scaled"]


def _fused_mat_mul(b: Body) -> Sequence[str]:
    a, c = (_transposed(b, i, b.get(f"trans{x}", 0), b.get(f"transBatch{x}", 0)) for i, x in enumerate("AB"))
    return [scaled(b, b("MatMul", a, c), b.get("alpha", 1.0))]


def _transposed(b: Body, index: int, last_two: int, batch: int) -> str:
    x = b.input(index)
    if not (last_two or batch):
        return x
    rank = b.rank(index)
    if rank is None:
        b.need(False)
        if batch:
            raise Undefined
        return b("Einsum", x, equation="...ij->...ji")
    if rank < 2:
        return x
    axes = list(range(rank))
    if batch:
        axes = [*axes[1:-1], 0, axes[-1]]
    if last_two:
        axes[-2:] = axes[:-3:-1]
    return b("Transpose", x, perm=axes)


def scaled(b: Body, x: str, factor: float) -> str:
    """A value times a number."""
    return x if factor == 1 else b("Mul", x, b.number(factor))


def _fused_gemm(b: Body) -> Sequence[str]:
    activation = [name for name in b.attributes() if name.startswith("activation")]
    inputs = [b.input(i) for i in range(3) if b.has(i)]
    y = b("Gemm", *inputs, **b.attributes(*activation))
    parameters = [b.get(name, 0.0) for name in ("activation_alpha", "activation_beta") if name in activation]
    return [_activated(b, y, b.get("activation", ""), parameters)]


def _fused_conv(b: Body) -> Sequence[str]:
    inputs = [b.input(0), b.input(1), *([b.input(2)] if b.has(2) else [])]
    y = b("Conv", *inputs, **b.attributes("activation", "activation_params"))
    if b.has(3):
        y = b("Add", y, b.input(3))
    return [_activated(b, y, b.get("activation", ""), b.get("activation_params", ()))]


def _activated(b: Body, x: str, name: str, parameters: Sequence[float]) -> str:
    if not name:
        return x
    if name in ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"):
        return b(name, x)
    if name in ("Elu", "LeakyRelu", "ThresholdedRelu") and len(parameters) == 1:
        return b(name, x, alpha=parameters[0])
    if name == "HardSigmoid" and len(parameters) == 2:
        return b(name, x, alpha=parameters[0], beta=parameters[1])
    if name == "Clip" and len(parameters) == 2:
        return b(name, x, *(b.number(limit) for limit in parameters))
    raise Undefined


def _gelu(b: Body) -> Sequence[str]:
    return [_gelu_of(b, b.input(0))]


def _bias_gelu(b: Body) -> Sequence[str]:
    return [_gelu_of(b, b("Add", b.input(0), b.input(1)))]


def _gelu_of(b: Body, x: str) -> str:
    if b.version >= 20:
        return b("Gelu", x)
    gate = b("Add", b("Erf", b("Mul", x, b.number(math.sqrt(0.5)))), b.number(1))
    return b("Mul", b("Mul", x, b.number(0.5)), gate)


def _fast_gelu(b: Body) -> Sequence[str]:
    x = b("Add", b.input(0), b.input(1)) if b.has(1) else b.input(0)
    if b.version >= 20:
        return [b("Gelu", x, approximate="tanh")]
    cube = b("Mul", b("Mul", x, x), b("Mul", x, b.number(0.044715)))
    inner = b("Mul", b("Add", x, cube), b.number(math.sqrt(2 / math.pi)))
    return [b("Mul", b("Mul", x, b.number(0.5)), b("Add", b("Tanh", inner), b.number(1)))]


def _quick_gelu(b: Body) -> Sequence[str]:
    x = b.input(0)
    return [b("Mul", x, b("Sigmoid", b("Mul", x, b.number(b.get("alpha", 1.702)))))]


def _simplified_layer_norm(b: Body) -> Sequence[str]:
    b.need(b.get("axis", -1) in (-1, (b.rank(0) or 0) - 1))
    y, inverse = _divided_by_root_mean_square(b, b.input(0), b.input(1), b.get("epsilon", 1e-5))
    return [y, inverse]


def _skip_layer_norm(b: Body) -> Sequence[str]:
    total = _sum_of(b, 0, 1, 4)
    bias = b.input(3) if b.has(3) else None
    return [*_normalised(b, total, b.input(2), bias, b.get("epsilon", 1e-12)), total]


def _skip_simplified_layer_norm(b: Body) -> Sequence[str]:
    total = _sum_of(b, 0, 1, 3)
    y, inverse = _divided_by_root_mean_square(b, total, b.input(2), b.get("epsilon", 1e-12))
    return [y, "", inverse, total]


def _sum_of(b: Body, *indices: int) -> str:
    total = b.input(indices[0])
    for index in indices[1:]:
        total = b("Add", total, b.input(index)) if b.has(index) else total
    return total


def _normalised(b: Body, x: str, scale: str, bias: str | None, epsilon: float) -> list[str]:
    """Along the last axis; the mean and the inverse of the deviation come with it."""
    given = [x, scale] if bias is None else [x, scale, bias]
    return b.several(3, "LayerNormalization", *given, axis=-1, epsilon=epsilon)


def _divided_by_root_mean_square(b: Body, x: str, scale: str, epsilon: float) -> tuple[str, str]:
    root = b("Sqrt", b("Add", b.mean(b("Mul", x, x)), b.number(epsilon)))
    inverse = b("Reciprocal", root)
    return b("Mul", b("Mul", x, inverse), scale), inverse


def _embed_layer_norm(b: Body) -> Sequence[str]:
    ids, words, places = b.input(0), b.input(2), b.input(3)
    if b.has(8):
        place = b("Gather", places, b.input(8))
    else:
        length = b.sliced(b("Shape", ids), 0, 1, 2)
        place = b("Unsqueeze", b("Slice", places, b.integers(0), length, b.integers(0)), b.integers(0))
    total = b("Add", b("Gather", words, ids), place)
    if b.has(1):
        total = b("Add", total, b("Gather", b.input(4), b.input(1)))
    y = _normalised(b, total, b.input(5), b.input(6), b.get("epsilon", 1e-12))[0]
    return [y, _mask_index(b, ids), total] if b.wants(1) or b.wants(2) else [y]


def _mask_index(b: Body, ids: str) -> str:
    """Number of words of each sequence that are not masked out."""
    if b.has(7):
        return b("ReduceSum", b("Cast", b.input(7), to=onnx.TensorProto.INT32), b.integers(1), keepdims=0)
    count = b.sliced(b("Shape", ids), 0, 0, 1)
    return b("ConstantOfShape", count, value=numpy_helper.from_array(np.zeros(1, np.int32)))


FUSED: Mapping[str, Definition] = {
    "BiasGelu": _bias_gelu,
    "EmbedLayerNormalization": _embed_layer_norm,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_mat_mul,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _simplified_layer_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_simplified_layer_norm,
    "TransposeMatMul": _fused_mat_mul,
}
