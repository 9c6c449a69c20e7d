"""Layers in ONNX's own operators for transformers, as exporters write them, whole on toolchains that do not read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from collage._errors import Unsupported
from collage.frontend import read_model
from collage.target import Target
from collage.testing import executable_of
from collage.toolchains import registry
from collage.transform import InferType, PassContext

HEADS, GROUPS, WIDTH = 4, 2, 8
HIDDEN = HEADS * WIDTH
TARGETS = ["llvm", "llvm -compiler=openvino"]
PORTS = {"x": "float[b,new,32]", "places": "int64[b,new]", **dict.fromkeys(("past_k", "past_v"), "float[b,2,past,8]")}
MASK = "bool[b,1,new,total]"
RESULTS = {"y": "float[b,new,32]", **dict.fromkeys(("k", "v"), "float[b,2,total,8]")}
Feeds = dict[str, np.ndarray[Any, Any]]

QUERIES = """
n = RMSNormalization <axis = -1, epsilon = 1e-5> (x, norm)
q0 = MatMul (n, w_q)
k0 = MatMul (n, w_k)
v0 = MatMul (n, w_v)
q1 = RotaryEmbedding <num_heads = 4> (q0, cosines, sines, places)
k1 = RotaryEmbedding <num_heads = 2> (k0, cosines, sines, places)
"""


def layer(is_causal: bool) -> onnx.ModelProto:
    """Return attention with a cache: of earlier queries by itself, or by a mask."""
    mask, kind = ("", "is_causal = 1, ") if is_causal else ("mask", "")
    text = f"""{QUERIES}
    z, k, v = Attention <{kind}q_num_heads = 4, kv_num_heads = 2> (q1, k1, v0, {mask}, past_k, past_v)
    o = MatMul (z, w_o)
    y = Add (o, x)
    """
    given = PORTS if is_causal else {**PORTS, "mask": MASK}
    inputs, outputs = (", ".join(f"{type_} {name}" for name, type_ in ports.items()) for ports in (given, RESULTS))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 23]> layer ({inputs}) => ({outputs}) {{{text}}}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights().items())
    return model


def weights() -> Feeds:
    random = np.random.default_rng(0)
    shapes = {
        "norm": (HIDDEN,),
        **{"w_q": (HIDDEN, HIDDEN), "w_k": (HIDDEN, GROUPS * WIDTH), "w_v": (HIDDEN, GROUPS * WIDTH)},
        **{"w_o": (HIDDEN, HIDDEN), "cosines": (40, WIDTH // 2), "sines": (40, WIDTH // 2)},
    }
    return {name: (random.standard_normal(shape) / 4).astype(np.float32) for name, shape in shapes.items()}


def feeds_of(is_causal: bool, batch: int, new: int, past: int) -> Feeds:
    random = np.random.default_rng(new + past)
    mask = random.random((batch, 1, new, new + past)) < 0.7
    mask[..., -1] = True
    return {
        "x": random.standard_normal((batch, new, HIDDEN)).astype(np.float32),
        "places": np.tile(past + np.arange(new), (batch, 1)),
        **{f"past_{x}": random.standard_normal((batch, GROUPS, past, WIDTH)).astype(np.float32) for x in "kv"},
        **({} if is_causal else {"mask": mask}),
    }


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "masked"])
def test_they_are_right_at_any_length(is_causal: bool, target: str) -> None:
    model = layer(is_causal)
    executable = executable_of(read_model(model), target)
    session = ort.InferenceSession(model.SerializeToString())
    for batch, new, past in ((1, 1, 6), (1, 5, 0), (2, 3, 4), (1, 1, 0), (3, 2, 11)):
        feeds = feeds_of(is_causal, batch, new, past)
        got = executable.run(feeds)
        for name, wanted in zip(RESULTS, session.run(None, feeds), strict=True):
            np.testing.assert_allclose(got[name], wanted, rtol=1e-5, atol=1e-5, err_msg=f"{name} {batch} {new} {past}")


def test_openvino_itself_is_not_given_causal_attention_after_a_past(tmp_path: Path) -> None:
    target = Target.parse("llvm -compiler=openvino")
    nodes = [helper.make_node("Attention", ["q", "q", "q", "", "p", "p"], ["y"], is_causal=1)]
    ports = [helper.make_tensor_value_info(name, 1, [1, 2, 3, 4]) for name in "qp"]
    graph = helper.make_graph(nodes, "k", ports, [helper.make_tensor_value_info("y", 1, [1, 2, 3, 4])])
    with PassContext(opt_level=0):
        whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
        model = InferType()(ir.from_proto(whole))
    with pytest.raises(Unsupported, match="whatever the past"):
        registry().for_target(target).compile(model, target, tmp_path)
