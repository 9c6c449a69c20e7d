"""Horizontal fusion: queries, keys and values side by side, though a reader of the keys comes before the values."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

import collage
from collage.fusion import CombineByPrimitivesFusionRule, HorizontalPrimitive, OpPredicateFusionRule, UnionFusionRule
from collage.graph import SubGraphConfig, kernels_of
from collage.measure import CustomCostEstimator
from collage.target import Target
from collage.toolchains import Registry, Support
from collage.transform import CollageFuseOps, PassContext
from tests.e2e.conftest import LENT, model_of
from tests.fixed_time_toolchain import DeclaredToolchain

FLOAT = TensorProto.FLOAT


def attention() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    weights = {f"w{name}": random.standard_normal((8, 8)).astype(np.float32) for name in "qkv"}
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"], name="q"),
        helper.make_node("MatMul", ["x", "wk"], ["k"], name="k"),
        helper.make_node("Transpose", ["k"], ["t"], name="t", perm=[1, 0]),
        helper.make_node("MatMul", ["q", "t"], ["s"], name="s"),
        helper.make_node("Softmax", ["s"], ["p"], name="p"),
        helper.make_node("MatMul", ["x", "wv"], ["v"], name="v"),
        helper.make_node("MatMul", ["p", "v"], ["y"], name="y"),
    ]
    return model_of(nodes, {"x": (FLOAT, [4, 8])}, {"y": (FLOAT, [4, 8])}, weights)


def horizontal(toolchain: str) -> Target:
    everything = OpPredicateFusionRule(lambda node: Support(True))
    matrices = OpPredicateFusionRule(lambda node: Support(node.op_type == "MatMul"))
    side_by_side = CombineByPrimitivesFusionRule(matrices, (HorizontalPrimitive(),), SubGraphConfig(max_exits=3))
    rule = UnionFusionRule((everything, side_by_side), "horizontal")
    return dataclasses.replace(Target.parse(f"llvm -compiler={toolchain}"), fusion_spec=rule)


def one() -> Registry:
    toolchains = Registry()
    operators = dict.fromkeys(("MatMul", "Transpose", "Softmax"), 1e-5)
    toolchains.add(DeclaredToolchain(seconds={"": 1e-3, **operators}, name="one"))
    return toolchains


def test_compile_finds_admits_and_searches_them(tmp_path: Path) -> None:
    model = attention()
    executable = collage.compile(
        model,
        [horizontal("one")],
        toolchains=one(),
        workers=LENT,
        options=collage.CompileOptions(db=str(tmp_path / "db"), baseline="none"),
    )
    together = [set(kernel["nodes"]) for kernel in executable.report["kernels"] if len(kernel["nodes"]) > 1]
    assert together == [{"q", "k", "v"}]
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    from onnx.reference import ReferenceEvaluator

    wanted = ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(executable.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)
    again = collage.compile(
        model,
        [horizontal("one")],
        toolchains=one(),
        workers=LENT,
        options=collage.CompileOptions(db=str(tmp_path / "db"), baseline="none"),
    )
    assert not again.report["search"]["raced"], "the plan is remembered, its kernels in an order that runs"
    np.testing.assert_allclose(again.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)


def test_an_estimator_finds_them_too() -> None:
    with PassContext(config={"collage.enable_collage": True}):
        made = CollageFuseOps([horizontal("one")], CustomCostEstimator(lambda module, target: 1.0), toolchains=one())(
            ir.from_proto(attention())
        )
    sizes = sorted(sum(node.op_type == "MatMul" for node in call.function) for call in kernels_of(made))
    assert sizes[-1] == 3
