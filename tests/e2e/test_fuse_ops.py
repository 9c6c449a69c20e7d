"""CollageFuseOps as a pass, on the example of the Collage RFC, with costs that are chosen rather than measured."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import collage
from collage._errors import InputError
from collage.byoc import MergeComposite, PartitionGraph
from collage.device import PlanDevices, on_device
from collage.frontend import read_model
from collage.fusion import FusionOptions, FusionStyle
from collage.graph import kernels_of
from collage.measure import CustomCostEstimator
from collage.pattern import is_op
from collage.testing import MockCostEstimator
from collage.toolchains import PatternEntry
from collage.transform import prepare

ROOT = Path(__file__).parents[2]
LLVM, ORT, OV = "llvm", "llvm -compiler=onnxruntime", "llvm -compiler=openvino"


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> ir.Model:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples")
        models = importlib.import_module("models")
    random = np.random.default_rng(0)
    return read_model(models.mnist_to_onnx(models.initial_mnist(random)))


def fuse(model: ir.Model, costs: dict[str, float], enable: bool = True) -> ir.Model:
    with collage.transform.PassContext(config={"collage.enable_collage": enable}):
        return collage.transform.CollageFuseOps(list(costs), MockCostEstimator(costs))(model)


def targets_of(model: ir.Model) -> list[str]:
    return [call.metadata["target"] for call in kernels_of(model)]


def test_nothing_happens_unless_it_is_enabled(mnist: ir.Model, caplog: pytest.LogCaptureFixture) -> None:
    assert fuse(mnist, {LLVM: 1.0}, enable=False) is mnist
    assert "collage.enable_collage is not set" in caplog.text


def test_the_cheapest_target_takes_the_whole_model(mnist: ir.Model) -> None:
    assert targets_of(fuse(mnist, {LLVM: 1.0, ORT: 0.9, OV: 0.5})) == [OV]


def test_the_total_is_that_of_the_formula(mnist: ir.Model) -> None:
    fused = fuse(mnist, {ORT: 2.0})
    (kernel,) = kernels_of(fused)
    assert sum(node.op_type != "Constant" for node in kernel.function) == 13
    estimator = MockCostEstimator({ORT: 2.0})
    from collage.graph import kernel_model

    total = estimator.estimate(kernel_model(fused, kernel.node, "k"), collage.Target("llvm", "onnxruntime")).seconds
    assert total == pytest.approx(2.0 * (1 - 0.9**13) / 0.1)


def test_twice_is_once(mnist: ir.Model) -> None:
    once = fuse(mnist, {LLVM: 1.0})
    twice = fuse(once, {LLVM: 1.0, OV: 0.1})
    assert ir.to_proto(twice) == ir.to_proto(once)


def test_a_model_with_kernels_is_partitioned_around_them(mnist: ir.Model) -> None:
    """The first convolution goes to one target by hand, and Collage chooses for the rest."""
    prepared = prepare(mnist)
    by_hand = MergeComposite([PatternEntry("own.conv", is_op("Conv"))])(prepared)
    first = next(node for node in by_hand.graph if node.metadata_props.get("Composite", "").startswith("own.conv"))
    for node in by_hand.graph:
        node.metadata_props.pop("Composite", None)
    first.metadata_props["target"] = ORT
    by_hand = PartitionGraph()(by_hand)
    (kept,) = kernels_of(by_hand)
    fused = fuse(by_hand, {OV: 0.5})
    calls = kernels_of(fused)
    assert [call.metadata["target"] for call in calls].count(ORT) == 1
    assert {call.metadata["target"] for call in calls} == {ORT, OV}
    (still,) = (call for call in calls if call.metadata["target"] == ORT)
    assert still.node.name == kept.node.name and still.metadata == kept.metadata
    operators = [node.op_type for call in calls for node in call.function if node.op_type != "Constant"]
    assert sorted(operators) == sorted(node.op_type for node in prepared.graph if node.op_type != "Constant")


def test_bodies_are_searched_two_levels_deep() -> None:
    """A menu that takes no If and no Loop takes what is in them."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[4] x, bool c) => (float[4] y) {
        n = Constant <value = int64 {5}> ()
        z = If (c) <then_branch = t () => (float[4] a) { a = Relu(x) }, else_branch = e () => (float[4] b) {
            b = Loop (n, , x) <body = l (int64 i, bool k, float[4] s) => (bool k2, float[4] s2) {
                k2 = Identity(k)
                s1 = Relu(s)
                s2 = Neg(s1)
            }>
        }>
        y = Neg(z)
    }"""
    model = read_model(onnx.parser.parse_model(text))

    def liked(module: ir.Model, target: collage.Target) -> float:
        operators = [node.op_type for node in module.graph]
        if {"If", "Loop"} & set(operators):
            return float("inf")
        return sum(1.0 if (op == "Relu") == (target.toolchain == "onnxruntime") else 3.0 for op in operators)

    with collage.transform.PassContext(config={"collage.enable_collage": True}):
        made = collage.transform.CollageFuseOps([ORT, OV], CustomCostEstimator(liked))(model)
    inside = [
        f
        for f in made.functions.values()
        if {n.op_type for n in f} & {"Relu", "Neg"} and "Primitive" in f.metadata_props
    ]
    assert {(f.metadata_props["target"], *(n.op_type for n in f)) for f in inside} >= {(ORT, "Relu"), (OV, "Neg")}
    holders = [call for call in kernels_of(made) if "bodies" in call.metadata["target"]]
    assert len(holders) == 1
    # Relu, or five times Relu and Neg; both branches count once.
    assert float(holders[0].metadata["cost"]) == pytest.approx(1 + 5 * 2)


class ByOperator:
    """Convolutions are cheap on one target, everything else on another."""

    def estimate(self, module: ir.Model, target: collage.Target) -> collage.cost.Cost:
        good = {"openvino": {"Conv", "Add", "Relu"}, "onnxruntime": {"MatMul", "Gemm", "Add", "Reshape"}}
        liked = good.get(target.toolchain, {"Pad", "MaxPool"})
        return collage.cost.Cost(seconds=0.1 + sum(0.1 if n.op_type in liked else 1.0 for n in module.graph))


def test_a_mix_gives_the_same_answers_in_any_runtime(mnist: ir.Model, tmp_path: Path) -> None:
    with collage.transform.PassContext(config={"collage.enable_collage": True}):
        mixed = collage.transform.CollageFuseOps([LLVM, ORT, OV], ByOperator())(mnist)
    assert {LLVM, OV} <= set(targets_of(mixed))
    compilers = {call.function.metadata_props.get("Compiler") for call in kernels_of(mixed)}
    assert {None, "openvino"} <= compilers  # A native kernel names no compiler.
    ir.save(mnist, tmp_path / "plain.onnx")
    ir.save(mixed, tmp_path / "mixed.onnx")
    x = np.random.default_rng(1).standard_normal((1, 1, 28, 28)).astype(np.float32)
    name = mnist.graph.inputs[0].name
    plain, other = (
        ort.InferenceSession(str(tmp_path / f"{file}.onnx")).run(None, {name: x})[0] for file in ("plain", "mixed")
    )
    np.testing.assert_allclose(other, plain, rtol=1e-4, atol=1e-5)


def test_what_was_planned_for_devices_is_respected(mnist: ir.Model) -> None:
    planned = mnist.clone()
    first = next(node for node in planned.graph if node.op_type == "Conv")
    on_device(first, "cpu:1[llvm -compiler=onnxruntime]")
    planned = PlanDevices(["cpu:0", "cpu:1[llvm -compiler=onnxruntime]"], default="cpu:0")(planned)
    fused = fuse(planned, {ORT: 2.0, OV: 0.5})
    kernels = {
        call.metadata["result_se_scope"].partition("[")[0]: call.metadata["target"] for call in kernels_of(fused)
    }
    assert kernels == {"cpu:0": OV, "cpu:1": ORT}
    (there,) = (call for call in kernels_of(fused) if call.metadata["target"] == ORT)
    assert [node.op_type for node in there.function if node.op_type in ("Conv", "Relu", "MaxPool")] == ["Conv"]


def small_kernels(module: ir.Model, target: collage.Target) -> float:
    """A second for each operator, a tenth less for each further one, and no kernel of more than six."""
    operators = sum(node.op_type != "Constant" for node in module.graph)
    return sum(0.9**k for k in range(operators)) if operators <= 6 else float("inf")


def sizes(model: ir.Model, config: dict[str, object] | None = None, **options: object) -> list[int]:
    wanted = collage.CompileOptions(**options)  # type: ignore[arg-type]
    with collage.transform.PassContext(config={"collage.enable_collage": True, **(config or {})}):
        fused = collage.transform.CollageFuseOps(["llvm"], CustomCostEstimator(small_kernels), options=wanted)(model)
    return [
        sum(n.op_type != "Constant" for n in call.function)
        for call in kernels_of(fused)
        if call.metadata["target"] == LLVM
    ]


def test_how_deep_kernels_are_is_an_option_and_a_configuration(mnist: ir.Model) -> None:
    assert max(sizes(mnist)) > 2
    assert max(sizes(mnist, {"collage.tvm_max_depth": 2})) == 2
    assert max(sizes(mnist, fusion=FusionOptions(native_max_depth=1))) == 1
    assert max(sizes(mnist, {"collage.tvm_max_depth": 1}, fusion=FusionOptions())) > 2


def test_how_a_toolchain_fuses_can_be_said(mnist: ir.Model) -> None:
    assert set(sizes(mnist, fusion=FusionOptions(styles={"tvm": FusionStyle.NONE}))) == {1}
    assert max(sizes(mnist, fusion=FusionOptions(styles={"tvm": FusionStyle.REGIONS}))) == 6


def test_launch_penalties_can_be_said(mnist: ir.Model) -> None:
    free = {"tvm": FusionStyle.REGIONS}

    def growing(module: ir.Model, target: collage.Target) -> float:
        return 1.2 ** sum(node.op_type != "Constant" for node in module.graph)

    def kernels(**penalties: float) -> int:
        options = collage.CompileOptions(fusion=FusionOptions(styles=free), launch_penalties_s=penalties)
        with collage.transform.PassContext(config={"collage.enable_collage": True}):
            fused = collage.transform.CollageFuseOps(["llvm"], CustomCostEstimator(growing), options=options)(mnist)
        return len(kernels_of(fused))

    assert kernels(tvm=100.0) == 1 < kernels(tvm=2.0) < kernels()


SYMBOLIC = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[seq, 4] x) => (float[seq, 4] y) { h = Relu (x) y = Tanh (h) }
"""


def with_options(model: ir.Model, **options: object) -> ir.Model:
    wanted = collage.CompileOptions(**options)  # type: ignore[arg-type]
    with collage.transform.PassContext(config={"collage.enable_collage": True}):
        return collage.transform.CollageFuseOps([ORT], MockCostEstimator({ORT: 1.0}), options=wanted)(model)


def test_given_inputs_have_to_fit() -> None:
    model = read_model(ir.from_onnx_text(SYMBOLIC))
    with pytest.raises(InputError, match=r"the model takes x\b"):
        with_options(model, inputs={"z": np.ones((2, 4), np.float32)})
    with pytest.raises(InputError, match=r"\[2, 5\]"):
        with_options(model, inputs={"x": np.ones((2, 5), np.float32)})
    with pytest.raises(InputError, match="'seq' is 2"):
        with_options(model, inputs={"x": np.ones((2, 4), np.float32)}, dims={"seq": 3})
    assert targets_of(with_options(model, inputs={"x": np.ones((2, 4), np.float32)})) == [ORT]


def test_fixed_lengths_are_those_of_the_kernels() -> None:
    model = read_model(ir.from_onnx_text(SYMBOLIC))
    fused = with_options(model, fixed={"seq": 3})
    assert [list(value.shape or ()) for value in fused.graph.inputs] == [[3, 4]]
    assert str(model.graph.inputs[0].shape) != str(fused.graph.inputs[0].shape)
