"""Decoders of ONNX Runtime's builder, whole on toolchains that do not know its operators."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage._errors import Unsupported
from collage.frontend import read_model
from collage.target import Target
from collage.testing import executable_of
from collage.toolchains import compile_for, registry, support_for
from collage.toolchains._kernels import INDEX_CHECKS
from collage.toolchains._sum_checks import with_sum_checks
from collage.transform import InferType, PassContext

HEADS, GROUPS, WIDTH = 4, 2, 16
TARGETS = ["llvm", "llvm -compiler=openvino"]
Feeds = dict[str, np.ndarray[Any, Any]]


def decoder(lengths: str = "mask") -> onnx.ModelProto:
    """Return a layer as ONNX Runtime's builder writes it; ``lengths`` says if lengths of sequences are of a mask, or given."""
    random = np.random.default_rng(0)
    hidden, packed = HEADS * WIDTH, (HEADS + 2 * GROUPS) * WIDTH
    weights: Feeds = {
        "table": random.integers(0, 256, (50, hidden // 2), np.uint8),
        "scales": random.random((50, hidden // 32)).astype(np.float32) / 8,
        "norm": random.random(hidden).astype(np.float32),
        "w": random.integers(0, 256, (packed, hidden // 32, 16), np.uint8),
        "w_scales": random.random(packed * hidden // 32).astype(np.float32) / 16,
        "cosines": random.standard_normal((99, WIDTH // 2)).astype(np.float32),
        "sines": random.standard_normal((99, WIDTH // 2)).astype(np.float32),
        "one": np.array([1]),
        "axis": np.array(1),
    }
    of_mask = [
        helper.make_node("ReduceSum", ["mask", "one"], ["summed"], keepdims=0),
        helper.make_node("Sub", ["summed", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["lengths"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "axis"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["longest"], to=TensorProto.INT32),
    ]
    kinds = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1}
    stored = {"K": hidden, "N": packed, "bits": 4, "block_size": 32}
    qkv = ["qkv", "", "", "past_k", "past_v", "lengths", "longest", "cosines", "sines"]
    own = [
        ("GatherBlockQuantized", ["table", "ids", "scales"], ["x"], {"quantize_axis": 1, "block_size": 32}),
        ("SkipSimplifiedLayerNormalization", ["x", "x", "norm"], ["n", "", "", "sum"], {}),
        ("MatMulNBits", ["n", "w", "w_scales"], ["qkv"], stored),
        ("GroupQueryAttention", qkv, ["y", "k", "v"], kinds),
        ("RotaryEmbedding", ["y", "places", "cosines", "sines"], ["z"], {"num_heads": HEADS}),
    ]
    nodes = [helper.make_node(kind, given, made, domain="com.microsoft", **more) for kind, given, made, more in own]
    cache = ["b", GROUPS, "past", WIDTH]
    ports = {
        "ids": (TensorProto.INT64, ["b", "new"]),
        "places": (TensorProto.INT64, ["b", "new"]),
        **({"mask": (TensorProto.INT64, ["b", "total"])} if lengths == "mask" else {}),
        **({"lengths": (TensorProto.INT32, ["b"]), "longest": (TensorProto.INT32, [])} if lengths == "given" else {}),
        **{name: (TensorProto.FLOAT, cache) for name in ("past_k", "past_v")},
    }
    results = {"z": ["b", "new", hidden], **{name: ["b", GROUPS, "total", WIDTH] for name in "kv"}}
    graph = helper.make_graph(
        [*(of_mask if lengths == "mask" else []), *nodes],
        "decoder",
        [helper.make_tensor_value_info(name, *port) for name, port in ports.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in results.items()],
        [numpy_helper.from_array(x, name) for name, x in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds_of(batch: int, new: int, past: int) -> Feeds:
    random = np.random.default_rng(new + past)
    caches = {f"past_{x}": random.standard_normal((batch, GROUPS, past, WIDTH)).astype(np.float32) for x in "kv"}
    places = np.tile(past + np.arange(new), (batch, 1))
    mask = np.ones((batch, new + past), np.int64)
    return {"ids": random.integers(0, 50, (batch, new)), "places": places, "mask": mask, **caches}


def answers(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Any]:
    session = ort.InferenceSession(model.SerializeToString())
    return dict(zip("zkv", session.run(None, feeds), strict=True))


@pytest.mark.parametrize("target", TARGETS)
def test_they_are_right_at_any_length(target: str) -> None:
    model = decoder()
    executable = executable_of(read_model(model), target)
    with warnings.catch_warnings(action="error"):
        for batch, new, past in ((1, 1, 5), (1, 4, 0), (1, 3, 7), (3, 1, 2), (2, 5, 0)):
            feeds = feeds_of(batch, new, past)
            got = executable.run(feeds)
            for name, wanted in answers(model, feeds).items():
                np.testing.assert_allclose(got[name], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_sequences_with_padding_are_right_too(target: str) -> None:
    model = decoder()
    executable = executable_of(read_model(model), target)
    feeds = feeds_of(3, 1, 6)
    feeds["mask"][1, :3] = 0
    with pytest.warns(RuntimeWarning, match=r"without padding.*the host ran it instead"):
        got = executable.run(feeds)
    for name, wanted in answers(model, feeds).items():
        np.testing.assert_allclose(got[name], wanted, rtol=1e-4, atol=1e-4)


def inferred(model: onnx.ModelProto) -> ir.Model:
    with PassContext(opt_level=0):
        return InferType()(ir.from_proto(model))


@pytest.mark.parametrize("lengths", ["mask", "given"])
def test_lengths_are_checked_before_a_kernel_runs(lengths: str) -> None:
    checked = with_sum_checks(inferred(decoder(lengths)))
    assert not checked.outputs
    readings = [(checked.model.graph.inputs[each.value].name, each.reading) for each in checked.sums]
    expected = [("mask", "sums"), ("mask", "length")]
    assert readings == (expected if lengths == "mask" else [("lengths", "elements"), ("longest", "elements")])


def test_lengths_that_are_computed_otherwise_become_outputs(tmp_path: Path) -> None:
    model = decoder()
    next(node for node in model.graph.node if node.op_type == "Sub").op_type = "Mul"
    checked = with_sum_checks(inferred(model))
    assert len(checked.outputs) == 1 and checked.sums[0].value == len(checked.model.graph.inputs)
    toolchain, target = registry().for_target(Target.parse("llvm")), Target.parse("llvm")
    made = compile_for(toolchain, inferred(model), target, tmp_path)
    assert len(made.outputs) == 3 and made.metadata[INDEX_CHECKS]["outputs"] == checked.outputs


@pytest.mark.parametrize("target", TARGETS)
def test_operators_are_told_to_be_taken(target: str) -> None:
    model, goal = inferred(decoder()), Target.parse(target)
    own = [node for node in model.graph if node.domain]
    found = {node.op_type: support_for(registry().for_target(goal), node, goal) for node in own}
    assert all(each.ok for each in found.values()), found


def test_attention_of_another_form_is_refused(tmp_path: Path) -> None:
    model = decoder()
    next(node for node in model.graph.node if node.op_type == "GroupQueryAttention").input.extend(["places"])
    goal = Target.parse("llvm")
    with pytest.raises(Unsupported, match="GroupQueryAttention"):
        compile_for(registry().for_target(goal), inferred(model), goal, tmp_path)
