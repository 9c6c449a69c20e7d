"""What ONNX Runtime's own operators are written out as computes what ONNX Runtime computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.unit.transform.node_cases import Case, F, answers, expanded, floats

from collage.frontend import has_contrib_ops, standard_form
from collage.transform import ExpandContributed, InferType, PassContext


def bytes_(*shape: int, seed: int = 0, kind: type = np.uint8) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed + sum(shape)).integers(0, 120, shape).astype(kind)


def scaled(x: np.ndarray[Any, Any], scale: float | np.ndarray[Any, Any], zero: int = 60) -> list[np.ndarray[Any, Any]]:
    """With its scale and zero point."""
    scales = np.asarray(scale, F)
    return [x, scales, np.full(scales.shape, zero, x.dtype)]


def ints(below: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(below).integers(0, below, shape).astype(np.int32)


MASK = np.array([[1, 1, 1, 0, 0, 0], [1] * 6], np.int32)
LONG_MASK = np.concatenate([np.ones((2, 3), np.int32), MASK], axis=1)
CUBE = np.tril(np.ones((2, 6, 6), np.int32))


def fused_mat_mul(a: tuple[int, ...], b: tuple[int, ...], **attributes: Any) -> Case:
    return Case("FusedMatMul", [floats(*a), floats(*b, seed=1)], attributes=attributes)


def fused_conv(*inputs: Any, **attributes: Any) -> Case:
    return Case("FusedConv", [floats(1, 4, 9, 9), floats(6, 4, 3, 3), *inputs], (1,), attributes=attributes)


def attention(*more: Any, outputs: int = 1, **attributes: Any) -> Case:
    inputs = [floats(2, 6, 8), floats(8, 24, seed=1), *more]
    return Case("Attention", inputs, (1, 2), outputs, {"num_heads": 2, **attributes})


def multi_head(*more: Any, outputs: int = 1, **attributes: Any) -> Case:
    inputs = [floats(2, 6, 8), floats(2, 6, 8, seed=1), floats(2, 6, 8, seed=2), *more]
    return Case("MultiHeadAttention", inputs, (3,) if more else (), outputs, {"num_heads": 2, **attributes})


def quantised_attention(mask: Any = None, scale: Any = 0.01, past: Any = None, **attributes: Any) -> Case:
    weights = [bytes_(8, 24, kind=np.int8), floats(24), F(0.02), np.asarray(scale, F)]
    zeros = [np.uint8(60), np.zeros(np.shape(scale), np.int8)]
    inputs = [bytes_(2, 6, 8), *weights, mask, *zeros, past]
    return Case("QAttention", inputs, (1, 2, 3, 4, 6, 7), 1 if past is None else 2, {"num_heads": 2, **attributes})


def rotary(x: np.ndarray[Any, Any], places: Any, width: int = 4, **attributes: Any) -> Case:
    """Cosines and sines of nine places, of which ``width`` pairs are turned."""
    turns = [np.cos(floats(9, width)), np.sin(floats(9, width, seed=1))]
    inputs = [x, np.asarray(places, np.int64), *turns]
    return Case("RotaryEmbedding", inputs, (2, 3), attributes=attributes)


PAST = floats(2, 2, 2, 3, 4)
PLACES = [[0, 1, 2], [4, 7, 8]]

A, B = bytes_(2, 4, 6, 6), bytes_(2, 4, 6, 6, seed=1)
RESULT = [F(0.05), np.uint8(50)]
BY_COLUMN = np.array([0.1, 0.2, 0.05], F)

QUANTISED = {
    "QLinearAdd": Case("QLinearAdd", [*scaled(A, 0.1), *scaled(B, 0.02), *RESULT], (1, 2, 4, 5, 6, 7)),
    "QLinearMul": Case("QLinearMul", [*scaled(A, 0.1), *scaled(B, 0.02), *RESULT], (1, 2, 4, 5, 6, 7)),
    "QLinearSigmoid": Case("QLinearSigmoid", [*scaled(A, 0.1), F(0.01), np.uint8(0)], (1, 2, 3, 4)),
    "QLinearLeakyRelu": Case("QLinearLeakyRelu", [*scaled(A, 0.1), *RESULT], (1, 2, 3, 4), attributes={"alpha": 0.3}),
    "QLinearGlobalAveragePool": Case("QLinearGlobalAveragePool", [*scaled(A, 0.1), *RESULT], (1, 2, 3, 4)),
    "QLinearAveragePool": Case(
        "QLinearAveragePool",
        [*scaled(A, 0.1), F(0.061), np.uint8(50)],
        (1, 2, 3, 4),
        attributes={"kernel_shape": [2, 2]},
    ),
    "DequantizeLinear": Case(
        "DequantizeLinear", scaled(bytes_(2, 3, kind=np.int8), BY_COLUMN), (1, 2), attributes={"axis": 1}
    ),
    "QuantizeLinear": Case("QuantizeLinear", [floats(2, 3), F(0.1), np.uint8(9)], (1, 2)),
    "QLinearConcat": Case(
        "QLinearConcat", [*RESULT, *scaled(A, 0.1), *scaled(B, 0.02)], (0, 1, 3, 4, 6, 7), attributes={"axis": 1}
    ),
    "QLinearSoftmax": Case(
        "QLinearSoftmax",
        [*scaled(A, 0.1), F(1 / 256), np.uint8(0)],
        (1, 2, 3, 4),
        attributes={"axis": -1, "opset": 13},
    ),
    "QLinearConv": Case(
        "QLinearConv",
        [
            *scaled(bytes_(1, 4, 6, 6), 0.1),
            *scaled(bytes_(3, 4, 3, 3, kind=np.int8), BY_COLUMN, 0),
            F(0.9),
            np.uint8(9),
            ints(50, 3),
        ],
        (1, 2, 3, 4, 5, 6, 7, 8),
        attributes={"pads": [1, 1, 1, 1]},
        domain="",
    ),
    "QLinearMatMul": Case(
        "QLinearMatMul",
        [*scaled(bytes_(2, 4), 0.1), *scaled(bytes_(4, 3, kind=np.int8), BY_COLUMN, 0), F(0.5), np.uint8(9)],
        (1, 2, 3, 4, 5, 6, 7),
        domain="",
    ),
    "QGemm": Case(
        "QGemm",
        [
            *scaled(bytes_(2, 4), 0.1),
            *scaled(bytes_(4, 3, kind=np.int8), BY_COLUMN, 0),
            ints(50, 3),
            F(0.5),
            np.uint8(9),
        ],
        (1, 2, 3, 4, 5, 6, 7, 8),
    ),
    "QGemm, to floats": Case(
        "QGemm",
        [*scaled(bytes_(2, 4), 0.1), *scaled(bytes_(3, 4, kind=np.int8), 0.1, 0), ints(50, 3)],
        (1, 2, 3, 4, 5, 6),
        attributes={"transB": 1},
    ),
    "QLinearWhere": Case(
        "QLinearWhere",
        [floats(2, 4, 6, 6) > 0, *scaled(A, 0.1), *scaled(B, 0.02), *RESULT],
        (2, 3, 5, 6, 7, 8),
    ),
    "QAttention": quantised_attention(),
    "QAttention, by column": quantised_attention(scale=np.linspace(0.005, 0.02, 24, dtype=F)),
    "QAttention, masked": quantised_attention(MASK, unidirectional=1),
    "QAttention, after a past": quantised_attention(LONG_MASK, past=floats(2, 2, 2, 3, 4), unidirectional=1),
    "MatMulIntegerToFloat": Case(
        "MatMulIntegerToFloat",
        [bytes_(2, 4), bytes_(4, 3), F(0.1), BY_COLUMN, np.uint8(3), np.full(3, 60, np.uint8), floats(3)],
        (1, 2, 3, 4, 5, 6),
    ),
    "DynamicQuantizeMatMul": Case(
        "DynamicQuantizeMatMul",
        # Small enough that two products fit in 16 bits: where a processor has nothing better, ONNX Runtime adds them there.
        [floats(2, 4), bytes_(4, 3, kind=np.int8) // 2, BY_COLUMN, np.zeros(3, np.int8), floats(3)],
        (1, 2, 3, 4),
    ),
}

CASES = {
    **QUANTISED,
    "FusedMatMul": fused_mat_mul((2, 3, 4), (2, 4, 5), alpha=0.5),
    "FusedMatMul, b the other way": fused_mat_mul((2, 3, 4), (2, 5, 4), transB=1),
    "FusedMatMul, both": fused_mat_mul((4, 3), (5, 4), transA=1, transB=1, alpha=2.0),
    "FusedMatMul, batch of a": fused_mat_mul((3, 2, 6, 4), (2, 6, 4, 5), transBatchA=1),
    "FusedMatMul, batch of both": fused_mat_mul((3, 2, 6, 4), (5, 2, 6, 4), transBatchA=1, transB=1, transBatchB=1),
    "FusedMatMul, batch and last of a": fused_mat_mul((4, 2, 6, 3), (2, 6, 4, 5), transBatchA=1, transA=1),
    "FusedMatMul, a vector": fused_mat_mul((4,), (2, 4, 5), transA=1),
    "FusedGemm": Case(
        "FusedGemm", [floats(3, 4), floats(5, 4), floats(5)], (1,), attributes={"activation": "Relu", "transB": 1}
    ),
    "FusedGemm, leaky": Case(
        "FusedGemm",
        [floats(3, 4), floats(4, 5)],
        (1,),
        attributes={"activation": "LeakyRelu", "activation_alpha": 0.2, "alpha": 0.5},
    ),
    "FusedConv": fused_conv(floats(6), activation="Relu", strides=[2, 2], pads=[1, 1, 1, 1]),
    "FusedConv, with a sum": fused_conv(floats(6), floats(1, 6, 7, 7), activation="Relu"),
    "FusedConv, clipped": fused_conv(None, activation="Clip", activation_params=[0.0, 1.0]),
    "FusedConv, hard": fused_conv(None, activation="HardSigmoid", activation_params=[0.3, 0.4]),
    "FusedConv, leaky": fused_conv(None, activation="LeakyRelu", activation_params=[0.3]),
    "Gelu": Case("Gelu", [floats(3, 4)]),
    "BiasGelu": Case("BiasGelu", [floats(3, 4), floats(4)]),
    "FastGelu": Case("FastGelu", [floats(3, 4)]),
    "FastGelu, with bias": Case("FastGelu", [floats(3, 4), floats(4)]),
    "QuickGelu": Case("QuickGelu", [floats(3, 4)], attributes={"alpha": 1.3}),
    "SkipLayerNormalization": Case(
        "SkipLayerNormalization", [floats(2, 3, 8), floats(2, 3, 8, seed=1), floats(8), floats(8), floats(8, seed=2)]
    ),
    "SkipLayerNormalization, with the sum": Case(
        "SkipLayerNormalization",
        [floats(2, 3, 8), floats(1, 3, 8), floats(8)],
        attributes={"epsilon": 0.1},
    ),
    "SkipSimplifiedLayerNormalization": Case(
        "SkipSimplifiedLayerNormalization", [floats(2, 3, 8), floats(2, 3, 8, seed=1), floats(8), floats(8, seed=1)]
    ),
    "SimplifiedLayerNormalization": Case(
        "SimplifiedLayerNormalization", [floats(2, 3, 8), floats(8)], domain="", attributes={"epsilon": 0.1}
    ),
    "EmbedLayerNormalization": Case(
        "EmbedLayerNormalization",
        [
            ints(9, 2, 6),
            ints(2, 2, 6),
            floats(9, 8),
            floats(7, 8),
            floats(2, 8),
            floats(8),
            floats(8, seed=1),
            MASK,
        ],
        (2, 3, 4, 5, 6),
        2,
    ),
    "EmbedLayerNormalization, places given": Case(
        "EmbedLayerNormalization",
        [ints(9, 2, 6), None, floats(9, 8), floats(7, 8), None, floats(8), floats(8, seed=1), None, ints(7, 2, 6)],
        (2, 3, 5, 6),
        2,
    ),
    "Attention": attention(floats(24)),
    "Attention, scaled": attention(floats(24), scale=0.7),
    "Attention, causal": attention(floats(24), unidirectional=1),
    "Attention, masked": attention(floats(24), MASK),
    "Attention, causal, beginning with padding": attention(floats(24), 1 - MASK, unidirectional=1),
    "Attention, causal, of few": attention(floats(24), MASK, unidirectional=1, mask_filter_value=-2.0),
    "Attention, mask of other numbers": attention(floats(24), 5 * MASK - 3),
    "Attention, mask of pairs": attention(floats(24), CUBE),
    "Attention, with an addend": attention(floats(24), None, None, floats(2, 2, 6, 6)),
    "Attention, after a past": attention(floats(24), LONG_MASK, PAST, outputs=2, unidirectional=1),
    "Attention, narrow values": Case(
        "Attention",
        [floats(2, 6, 8), floats(8, 20), floats(20)],
        (1, 2),
        attributes={"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]},
    ),
    "MultiHeadAttention": multi_head(),
    "MultiHeadAttention, with bias": multi_head(floats(24), scale=0.5),
    "MultiHeadAttention, masked": multi_head(floats(24), MASK),
    "MultiHeadAttention, causal": multi_head(unidirectional=1),
    "MultiHeadAttention, causal, of more keys": Case(
        "MultiHeadAttention",
        [floats(2, 3, 8), floats(2, 5, 8), floats(2, 5, 8)],
        attributes={"num_heads": 2, "unidirectional": 1},
    ),
    "MultiHeadAttention, causal, of fewer keys": Case(
        "MultiHeadAttention",
        [floats(2, 5, 8), floats(2, 3, 8), floats(2, 3, 8)],
        attributes={"num_heads": 2, "unidirectional": 1},
    ),
    "MultiHeadAttention, after a past": multi_head(None, None, None, PAST[0], PAST[1], outputs=3),
    "Trilu": Case("Trilu", [floats(3, 4), np.array(1, np.int64)], attributes={"upper": 0}),
    "ExpandDims": Case("ExpandDims", [floats(2, 3), np.array(-1, np.int32)], (1,)),
    "GatherND": Case("GatherND", [floats(2, 3, 4), np.array([[0, 1], [1, 2]], np.int64)]),
    "GridSample": Case("GridSample", [floats(1, 2, 5, 5), floats(1, 3, 3, 2)], attributes={"padding_mode": "border"}),
    "GridSample, cubic": Case(
        "GridSample", [floats(1, 2, 5, 5), floats(1, 3, 3, 2)], attributes={"mode": "bicubic", "align_corners": 1}
    ),
    "Range": Case("Range", [F(0.5), F(4), F(0.25)], (0, 1, 2)),
    "Range, by one": Case("Range", [np.array(2, np.int32), np.array(7, np.int32)], (0, 1)),
    "Range, of vectors": Case("Range", [np.array([2], np.int32), np.array([7], np.int32)]),
    "RotaryEmbedding": rotary(floats(2, 3, 24), PLACES),
    "RotaryEmbedding, interleaved": rotary(floats(2, 3, 24), PLACES, interleaved=1),
    "RotaryEmbedding, from a place": rotary(floats(2, 3, 24), [5]),
    "RotaryEmbedding, of heads": rotary(floats(2, 5, 3, 8), PLACES),
    "RotaryEmbedding, of heads from a place": rotary(floats(2, 5, 3, 8), [5], interleaved=1),
    "RotaryEmbedding, of a part": rotary(floats(2, 3, 24), PLACES, 2, num_heads=3, rotary_embedding_dim=4),
    "RotaryEmbedding, of a part of heads": rotary(
        floats(2, 5, 3, 8), PLACES, 2, num_heads=5, rotary_embedding_dim=4, interleaved=1
    ),
    "MultiHeadAttention, of heads": Case(
        "MultiHeadAttention",
        [floats(2, 6, 8), floats(2, 2, 5, 4), floats(2, 2, 5, 4, seed=1)],
        attributes={"num_heads": 2},
    ),
}


def grouped(
    *inputs: Any, past: int = 0, total: int = 0, outputs: int = 3, batch: int = 2, width: int = 8, **attributes: Any
) -> Case:
    """Four heads of some width in two groups, after so many words."""
    shape = (batch, 2, past, width)
    cache = [floats(*shape), floats(*shape, seed=1)] if past else [None, None]
    lengths = [np.full(batch, total - 1, np.int32), np.array(total, np.int32)]
    return Case(
        "GroupQueryAttention",
        [*inputs, *cache, *lengths],
        (6,),
        outputs,
        {"num_heads": 4, "kv_num_heads": 2, **attributes},
    )


def with_attributes(case: Case, *more: Any, **attributes: Any) -> Case:
    return replace(case, inputs=[*case.inputs, *more], attributes={**case.attributes, **attributes})


def of_few_bits(bits: int, block: int, *more: Any, rows: int = 40, **attributes: Any) -> Case:
    blocks = -(-rows // block)
    stored = [bytes_(5, blocks, block * bits // 8), floats(5 * blocks)]
    return Case(
        "MatMulNBits",
        [floats(2, 3, rows), *stored, *more],
        tuple(range(1, 3 + len(more))),
        attributes={"K": rows, "N": 5, "bits": bits, "block_size": block, **attributes},
    )


def gathered(data: np.ndarray[Any, Any], blocks: int, *more: Any, **attributes: Any) -> Case:
    inputs = [data, ints(5, 2, 3), floats(data.shape[0], blocks), *more]
    return Case(
        "GatherBlockQuantized", inputs, (0, 2, 3)[: len(inputs) - 1], attributes={"quantize_axis": 1, **attributes}
    )


PROMPT = [floats(2, 3, 32), floats(2, 3, 16), floats(2, 3, 16, seed=1)]
WORD = [x[:, :1] for x in PROMPT]
ONLY_KNOWN = {
    "GroupQueryAttention": grouped(*PROMPT, total=3),
    "GroupQueryAttention, after a past": grouped(*WORD, past=4, total=5),
    "GroupQueryAttention, in a buffer": grouped(*PROMPT, past=9, total=3),
    "GroupQueryAttention, packed": grouped(floats(2, 1, 64), None, None, past=4, total=5),
    "MatMulNBits": of_few_bits(4, 16),
    "MatMulNBits, of bytes": of_few_bits(8, 32, None, None, floats(5)),
    "DynamicQuantizeLSTM": Case(
        "DynamicQuantizeLSTM",
        [
            floats(5, 2, 8),
            bytes_(1, 8, 16, kind=np.int8),
            bytes_(1, 4, 16, kind=np.int8),
            floats(1, 32),
            *[None] * 4,
            *[np.full(1, 0.01, F), np.zeros(1, np.int8)] * 2,
        ],
        (1, 2, 3, 8, 9, 10, 11),
        3,
        {"hidden_size": 4},
    ),
    "GatherBlockQuantized, with zero points": gathered(bytes_(9, 16), 1, bytes_(9, 1), block_size=32),
}
"""Of which types and shapes are known, and nothing is written out."""
OPEN = {
    "ExpandDims": {0},
    "Range, of vectors": {0},
    "GroupQueryAttention, after a past": {1, 2},
    "GroupQueryAttention, in a buffer": {1, 2},
    "GroupQueryAttention, packed": {1, 2},
}
"""Which outputs are as long as a value says that nobody computes before the model runs."""


CASES |= {
    "GatherBlockQuantized": gathered(bytes_(9, 16), 1, block_size=32),
    "GatherBlockQuantized, of bytes": gathered(bytes_(9, 32), 2, block_size=16, bits=8),
}
WIDE = grouped(floats(1, 3, 128), None, None, past=4, total=7, batch=1, width=16)
TURNS = [np.cos(floats(9, 8)), np.sin(floats(9, 8, seed=1))]
LATER = grouped(*(x[:1] for x in PROMPT), past=4, total=7, batch=1)
WITHOUT_PADDING = {
    "prompt": grouped(*PROMPT, total=3),
    "word": ONLY_KNOWN["GroupQueryAttention, after a past"],
    "packed": ONLY_KNOWN["GroupQueryAttention, packed"],
    "later": LATER,
    "scaled": with_attributes(LATER, scale=0.3),
    "capped": with_attributes(LATER, softcap=1.5),
    "window": with_attributes(LATER, local_window_size=2),
    "window of a word": with_attributes(grouped(*WORD, past=4, total=5), local_window_size=3),
    "turned": with_attributes(WIDE, *TURNS, do_rotary=1),
    "turned, interleaved": with_attributes(WIDE, *TURNS, do_rotary=1, rotary_interleaved=1),
    "with an addend": with_attributes(LATER, None, None, None, floats(1, 4, 3, 7)),
}
"""Attention with a cache, of sequences that fill it."""


@pytest.mark.parametrize("version", [13, 17, 21])
@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_same(name: str, version: int) -> None:
    case = CASES[name]
    model = expanded(case, version)
    assert not has_contrib_ops(model) and all(node.domain == "" for node in model.graph)
    for wanted, got in zip(answers(case.model(version), case), answers(ir.to_proto(model), case), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("version", [13, 21])
@pytest.mark.parametrize("name", WITHOUT_PADDING)
def test_attention_with_a_cache_is_written_out_for_those_who_check_what_it_assumes(name: str, version: int) -> None:
    case = WITHOUT_PADDING[name]
    assert has_contrib_ops(expanded(case, version))
    model = expanded(case, version, assuming=True)
    assert not has_contrib_ops(model) and all(node.domain == "" for node in model.graph)
    for wanted, got in zip(answers(case.model(version), case), answers(ir.to_proto(model), case), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("version", [13, 17, 21])
@pytest.mark.parametrize("name", [*CASES, *ONLY_KNOWN])
def test_inference_knows_what_comes_out(name: str, version: int) -> None:
    case = {**CASES, **ONLY_KNOWN}[name]
    with PassContext(opt_level=0):
        model = InferType()(ir.from_proto(case.model(version)))
    assert any(node.op_type == case.op_type for node in model.graph)
    for i, wanted in enumerate(answers(case.model(version), case)):
        value = model.graph.outputs[i]
        assert value.dtype is not None and value.dtype.numpy() == wanted.dtype
        if i not in OPEN.get(name, ()):
            assert value.shape is not None and value.shape.numpy() == wanted.shape
    caches = [value.shape for value in model.graph[0].outputs[1:] if case.op_type == "GroupQueryAttention"]
    assert all(shape is not None and (shape[1], shape[3]) == (2, 8) for shape in caches)


def test_normalisations_of_a_later_opset_are_read_too() -> None:
    case = Case("LayerNormalization", [floats(2, 3, 8), floats(8), floats(8)], domain="", attributes={"epsilon": 0.1})
    model = expanded(case, 14)
    assert model.opset_imports[""] == 17 and not has_contrib_ops(model)
    for wanted, got in zip(answers(case.model(14), case), answers(ir.to_proto(model), case), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    with PassContext(opt_level=0):
        inferred = InferType()(ir.from_proto(case.model(14)))
    assert inferred.opset_imports[""] == 14 and inferred.graph.outputs[0].shape == [2, 3, 8]


def test_where_a_later_opset_means_something_else_nothing_is_written_out() -> None:
    model = CASES["Gelu"].model(13)
    model.graph.node.add(op_type="RoiAlign", input=["f", "r", "b"], output=["a"])
    shapes = {"f": [1, 1, 4, 4], "r": [1, 4], "b": [1]}
    kinds = {"f": TensorProto.FLOAT, "r": TensorProto.FLOAT, "b": TensorProto.INT64}
    model.graph.input.extend(helper.make_tensor_value_info(name, kinds[name], shapes[name]) for name in shapes)
    model.graph.output.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, None))
    with PassContext(opt_level=0):
        result = ExpandContributed()(ir.from_proto(model))
    assert has_contrib_ops(result) and result.opset_imports[""] == 13


@pytest.mark.parametrize(
    "case",
    [
        Case("FusedConv", [floats(1, 1, 4, 4), floats(1, 1, 3, 3)], attributes={"activation": "Mystery"}),
        Case("Attention", [floats(2, 6, 8), floats(8, 24), floats(24), np.array([6, 6], np.int32)]),
        Case("Attention", [floats(2, 6, 8), floats(8, 24)], attributes={"num_heads": 2, "do_rotary": 1}),
        Case("Crop", [floats(2, 6)]),
        *(
            ONLY_KNOWN[name]
            for name in ("GroupQueryAttention", "MatMulNBits", "GatherBlockQuantized, with zero points")
        ),
    ],
    ids=["activation", "lengths as a mask", "rotary", "unknown", "groups", "few bits", "rows of few bits"],
)
def test_a_form_that_is_not_known_stays(case: Case) -> None:
    assert expanded(case, 17).graph[0].op_type == case.op_type


ATTRIBUTES = [
    "K",
    "N",
    "bits",
    "gather_axis",
    "hidden_size",
    "interleaved",
    "kv_num_heads",
    "rotary_embedding_dim",
    "activation",
    "activation_params",
    "alpha",
    "axis",
    "do_rotary",
    "epsilon",
    "kernel_shape",
    "mask_filter_value",
    "num_heads",
    "opset",
    "qkv_hidden_sizes",
    "scale",
    "transA",
    "transB",
    "transBatchA",
    "transBatchB",
    "unidirectional",
]


@settings(max_examples=300, deadline=None)
@given(
    op_type=st.sampled_from(sorted({case.op_type for case in [*CASES.values(), *ONLY_KNOWN.values()]})),
    shapes=st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=4), max_size=9),
    attributes=st.dictionaries(
        st.sampled_from(ATTRIBUTES),
        st.integers(-3, 2**40) | st.floats(width=32) | st.text(max_size=3) | st.lists(st.integers(-2, 9), min_size=1),
    ),
    outputs=st.lists(st.sampled_from(["", "y", "z"]), max_size=5),
    kind=st.integers(0, 16),
)
def test_nonsense_is_left_as_it_is(
    op_type: str, shapes: list[Any], attributes: dict[str, Any], outputs: list[str], kind: int
) -> None:
    node = helper.make_node(
        op_type, [f"i{i}" for i in range(len(shapes))], outputs, domain="com.microsoft", **attributes
    )
    for exact in (False, True):
        made = standard_form(node, 17, lambda name: (kind, shapes[int(name[1:])]), exact=exact, assuming=True)
        assert made is None or {name for each in made for name in each.output} >= set(filter(None, outputs))
