"""Activations on TVM: their values, and that they leave data in the layout of the convolutions around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from collage.target import Target
from collage.toolchains import LoadOptions, compile_for
from collage.toolchains.tvm.toolchain import TvmToolchain

tvm = pytest.importorskip("tvm")

ACTIVATIONS: list[tuple[str, dict[str, Any], list[float]]] = [
    *(("LeakyRelu", {"alpha": alpha}, []) for alpha in (0.01, 0.3, 1.0, 1.5, -0.2)),
    ("LeakyRelu", {}, []),
    ("Clip", {}, [-0.5, 1.5]),
    ("Clip", {}, [0.0, 6.0]),
    ("Clip", {}, [1.0, -1.0]),
    ("HardSigmoid", {}, []),
    ("HardSigmoid", {"alpha": 0.4, "beta": 0.1}, []),
    ("HardSwish", {}, []),
]


def model_of(op: str, attributes: dict[str, Any], bounds: list[float], *, between: bool) -> onnx.ModelProto:
    """An activation alone, or between two convolutions."""
    rng = np.random.default_rng(0)
    constants = [numpy_helper.from_array(np.array(v, np.float32), f"bound{i}") for i, v in enumerate(bounds)]
    names = [constant.name for constant in constants]
    source, result = ("c", "a") if between else ("x", "y")
    nodes = [helper.make_node(op, [source, *names], [result], **attributes)]
    if between:
        weights = [rng.standard_normal((16, 16, 3, 3), dtype=np.float32) for _ in range(2)]
        constants += [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)]
        before, after = (
            helper.make_node("Conv", pair, [out]) for pair, out in ((["x", "w0"], "c"), (["a", "w1"], "y"))
        )
        nodes = [before, *nodes, after]
    shape = [1, 16, 12, 12] if between else [64]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


@pytest.mark.parametrize(("op", "attributes", "bounds"), ACTIVATIONS)
def test_values(op: str, attributes: dict[str, Any], bounds: list[float], tmp_path: Path) -> None:
    model, target = model_of(op, attributes, bounds, between=False), Target.parse("llvm")
    special = np.array([0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-40, 3e38, -3e38, 6.0, -3.0, 3.0, np.nan], np.float32)
    x = np.concatenate([special, np.linspace(-8, 8, 64 - special.size, dtype=np.float32)])
    compiled = compile_for(TvmToolchain(), ir.from_proto(model), target, tmp_path)
    (y,) = TvmToolchain().load(compiled, target, tmp_path, LoadOptions(1))([x])
    with np.errstate(all="ignore"):
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("op", "attributes", "bounds"), [case for case in ACTIVATIONS if 0 < case[1].get("alpha", 0.5) <= 1]
)
def test_the_layout_stays_between_convolutions(op: str, attributes: dict[str, Any], bounds: list[float]) -> None:
    from collage.toolchains.tvm.importer import import_onnx

    module = import_onnx(model_of(op, attributes, bounds, between=True))
    turned = tvm.relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]})(module)
    turns: list[Any] = []

    def visit(value: Any) -> None:
        if isinstance(value, tvm.relax.Call) and value.op == tvm.ir.Op.get("relax.permute_dims"):
            turns.append(value.args[0])

    tvm.relax.analysis.post_order_visit(turned["main"], visit)
    of_data = [source for source in turns if not isinstance(source, tvm.ir.GenericConst)]
    assert len(of_data) == 2, "the input is turned, and the output"
