"""TVM's own loops for products whose weights a model stores in 4 or 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage._errors import Unsupported
from collage.target import Target
from collage.toolchains import LoadOptions, compile_for
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")


def stored(
    depth: int, columns: int, *more: np.ndarray[Any, Any] | None, block: int = 32, **attributes: Any
) -> ir.Model:
    """Return a ``MatMulNBits`` of any number of rows; what follows its scales is zero points, indices of groups and a bias."""
    bits, random = attributes.setdefault("bits", 4), np.random.default_rng(depth)
    blocks = depth // block
    packed = random.integers(0, 256, (columns, blocks, block * bits // 8), np.uint8)
    scales = (random.random(columns * blocks) + 0.5).astype(np.float32) / (4 << bits)
    tensors = {f"w{i}": x for i, x in enumerate((packed, scales, *more)) if x is not None}
    names = [f"w{i}" if f"w{i}" in tensors else "" for i in range(2 + len(more))]
    attributes |= {"K": depth, "N": columns, "block_size": block}
    nodes = [
        helper.make_node("MatMulNBits", ["x", *names], ["p"], "product", domain="com.microsoft", **attributes),
        helper.make_node("Sigmoid", ["p"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", n]) for name, n in (("x", depth), ("y", columns))
    ]
    weights = [numpy_helper.from_array(x, name) for name, x in tensors.items()]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    graph.value_info.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n", columns]))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=9))


@pytest.mark.few(4)
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("accuracy_level", [0, 4])
@pytest.mark.parametrize(
    ("depth", "columns", "block", "bits"), [(288, 136, 32, 4), (512, 64, 128, 4), (288, 80, 32, 8), (256, 257, 64, 8)]
)
def test_products_are_those_of_the_stored_weights(
    depth: int, columns: int, block: int, bits: int, accuracy_level: int, has_zeros: bool, tmp_path: Path
) -> None:
    bias = np.linspace(-1, 1, columns, dtype=np.float32)
    # Of an odd number of blocks, half of a byte is not used.
    shape = (columns, -(-depth // block * bits // 8))
    zeros = np.random.default_rng(1).integers(0, 256, shape, np.uint8) if has_zeros else None
    model = stored(depth, columns, zeros, None, bias, block=block, bits=bits, accuracy_level=accuracy_level)
    exact = stored(depth, columns, zeros, None, bias, block=block, bits=bits)
    session = ort.InferenceSession(ir.to_proto(exact).SerializeToString())
    made = compile_for(TvmToolchain(), model, TARGET, tmp_path)
    assert len(made.metadata["calls"]) == 1, "what follows a product is computed in its loops"
    run = TvmToolchain().load(made, TARGET, tmp_path, LoadOptions(2, exclusive=True))
    for rows in (1, 2, 5, 33):
        x = np.random.default_rng(rows).standard_normal((rows, depth)).astype(np.float32)
        (y,) = run([x])
        # Rows may be rounded to 16 bits, where ONNX Runtime rounds them to 8.
        np.testing.assert_allclose(y, session.run(None, {"x": x})[0], atol=2e-4 if accuracy_level else 5e-6)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (stored(256, 64, np.zeros((64, 8), np.float32)), "whole zero points"),
        (stored(256, 64, None, np.zeros(256, np.int32)), "another order"),
        (stored(256, 64, block=16), "blocks"),
        (stored(256, 64, bits=2), "4 or 8 bits"),
    ],
)
def test_other_forms_are_refused(model: ir.Model, reason: str, tmp_path: Path) -> None:
    assert not TvmToolchain().supports(model.graph[0], TARGET).ok
    with pytest.raises(Unsupported, match=reason):
        compile_for(TvmToolchain(), model, TARGET, tmp_path)


def test_weights_that_are_given_at_run_time_are_refused(tmp_path: Path) -> None:
    model = stored(256, 64)
    weight = model.graph.initializers.pop("w0")
    weight.const_value = None
    model.graph.inputs.append(weight)
    with pytest.raises(Unsupported, match="constant weights"):
        compile_for(TvmToolchain(), model, TARGET, tmp_path)
