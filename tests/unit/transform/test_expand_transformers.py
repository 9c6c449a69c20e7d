"""ONNX's operators for transformers, written out, compute what ONNX Runtime computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.transform.node_cases import Case, F, answers, expanded, floats

from collage.frontend import has_contrib_ops
from collage.transform import ExpandContributed, InferType, PassContext


def attention(*more: Any, heads: int = 2, new: int = 5, outputs: int = 1, **attributes: Any) -> Case:
    """Three queries of some heads, and two heads of keys and values."""
    given = [floats(2, heads, 3, 8), floats(2, 2, new, 8), floats(2, 2, new, 4)]
    return Case("Attention", [*given, *more], outputs=outputs, attributes=attributes, domain="")


def mask(*shape: int) -> np.ndarray[Any, Any]:
    """Truth for the scores that count: in the first row none, in the others most."""
    made = np.random.default_rng(sum(shape)).random(shape) < 0.7
    made[..., 0, :], made[..., 1, 2] = False, True
    return made


def addends(counts: np.ndarray[Any, Any], least: float = -np.inf) -> np.ndarray[Any, Any]:
    return np.where(counts, floats(*counts.shape), F(least)).astype(F)


def rotary(*more: Any, shape: tuple[int, ...] = (2, 3, 5, 8), width: int = 4, **attributes: Any) -> Case:
    places = (9, width) if more else (2, 5, width)
    angles = floats(*places)
    return Case("RotaryEmbedding", [floats(*shape), np.cos(angles), np.sin(angles), *more], (), 1, attributes, "")


PAST = [floats(2, 2, 4, 8), floats(2, 2, 4, 4)]
WIDE = [floats(2, 3, 32), floats(2, 5, 16), floats(2, 5, 12)]
CASES = {
    "attention": attention(),
    "grouped": attention(heads=6),
    "scaled and capped": attention(scale=0.3, softcap=1.5),
    "causal": attention(is_causal=1),
    "causal, grouped": attention(is_causal=1, heads=4),
    "after a past": attention(None, *PAST, outputs=3),
    "causal, after a past": attention(None, *PAST, outputs=3, is_causal=1, heads=4),
    "truth": attention(mask(3, 5)),
    "truth by sequence": attention(mask(2, 1, 3, 5), heads=4),
    "truth, causal": attention(mask(3, 5), is_causal=1),
    "addends": attention(addends(mask(3, 5))),
    "addends by head": attention(addends(mask(4, 3, 5)), heads=4),
    "finite addends": attention(addends(mask(3, 5), np.finfo(F).min)),
    "addends after a past, causal and capped": attention(
        addends(mask(3, 9)), *PAST, outputs=3, is_causal=1, softcap=2.0
    ),
    "in one axis": Case("Attention", WIDE, (), 1, {"q_num_heads": 4, "kv_num_heads": 2}, ""),
    "in one axis, after a past": Case(
        "Attention",
        [*WIDE, mask(3, 9), floats(2, 2, 4, 8), floats(2, 2, 4, 6)],
        (),
        3,
        {"q_num_heads": 4, "kv_num_heads": 2, "is_causal": 1},
        "",
    ),
    "rotary": rotary(),
    "rotary, interleaved": rotary(interleaved=1),
    "rotary, by places": rotary(np.arange(10).reshape(2, 5) % 9),
    "rotary, of a part": rotary(width=2, rotary_embedding_dim=4),
    "rotary, in one axis": rotary(shape=(2, 5, 24), num_heads=3),
    "rotary, of a part in one axis": rotary(
        np.arange(10).reshape(2, 5) % 9, shape=(2, 5, 24), width=1, num_heads=3, rotary_embedding_dim=2, interleaved=1
    ),
    "swish": Case("Swish", [floats(2, 9)], (), 1, {"alpha": 1.5}, ""),
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_same(name: str, symbolic: bool) -> None:
    case, version = replace(CASES[name], symbolic=symbolic), 24 if name == "swish" else 23
    model = expanded(case, version)
    assert not has_contrib_ops(model) and all(node.op_type != case.op_type for node in model.graph)
    for wanted, got in zip(answers(case.model(version), case), answers(ir.to_proto(model), case), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_onnx_itself_infers_what_comes_out(name: str) -> None:
    case, version = CASES[name], 24 if name == "swish" else 23
    with PassContext(opt_level=0):
        model = InferType()(ir.from_proto(case.model(version)))
    assert model.graph[0].op_type == case.op_type
    for value, wanted in zip(model.graph.outputs, answers(case.model(version), case), strict=True):
        assert value.shape is not None and value.shape.numpy() == wanted.shape


@pytest.mark.parametrize(
    "case",
    [
        attention(None, None, None, np.array([3, 5]), outputs=1),
        attention(outputs=4),
        attention(left_window_size=2),
        attention(mystery=1),
        attention(softmax_precision=10),
        replace(attention(), inputs=[floats(2, 3, 4, 8), *attention().inputs[1:]]),
        Case("Attention", WIDE, (), 1, {}, ""),
        rotary(rotary_embedding_dim=6),
    ],
    ids=["padded", "scores", "window", "unknown", "precision", "five heads of two", "no heads", "other width"],
)
def test_a_form_that_is_not_known_stays(case: Case) -> None:
    proto = case.model(24)
    with PassContext(opt_level=0):
        model = ExpandContributed()(ir.from_proto(proto))
    assert model.graph[0].op_type == case.op_type
