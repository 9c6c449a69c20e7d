"""Models that are legal and rare, and models that are not what they pretend to be."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.unit.device.simulation import copies_of, parse, run, simulate

from collage._errors import ModelError, TargetError
from collage.device import (
    AnnotateSEScopes,
    PartitionBySEScope,
    PlanDevices,
    on_device,
    planned_value_scope,
    require_output,
)
from collage.frontend import read_model
from collage.graph import kernels_of
from collage.toolchains import registry
from collage.transform import InferType, Sequential, prepare

GPU = PlanDevices(["cuda:0", "cpu:0"], default="cuda")


def planned(model: ir.Model, planner: PlanDevices = GPU) -> ir.Model:
    result = planner(model)
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    simulate(result)
    assert ir.to_proto(planner(result)) == ir.to_proto(result)
    return result


def test_a_copy_in_a_branch_in_a_function() -> None:
    model = parse("""g (bool c, float[2] x) => (float[2] y) { y = f.choose(c, x) }
    <domain: "f", opset_import: ["" : 20]>
    choose (c, x) => (y) {
        s = Neg(x)
        y = If (c) <
            then_branch = t () => (float[2] p) { p = Exp(s) },
            else_branch = e () => (float[2] q) { o = Abs(s) q = Relu(o) }
        >
    }""")
    on_device("s", "cuda", model=model)
    on_device("o", "cpu", model=model)
    result = planned(model)
    assert copies_of(result)
    (y,) = run(result, {"c": np.array(False), "x": np.ones(2, np.float32)})
    assert (y == 1).all()


def test_one_value_is_two_outputs_and_a_constant_is_one() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1, 2}> {\n a = Neg(x)\n y = Add(a, w)\n}"
    model = parse(text)
    require_output(model, "w", "cpu")
    require_output(model, "y", "cpu")
    result = planned(model)
    assert [value.name for value in result.graph.outputs] == ["y", "w"]
    assert str(planned_value_scope(result.graph.outputs[1]).storage) == "cpu:0"
    y, w = run(result, {"x": np.zeros(2, np.float32)})
    assert (y == [1, 2]).all() and (w == [1, 2]).all()


def test_an_output_that_others_read_too_is_renamed_behind_their_backs() -> None:
    model = parse("g (float[2] x) => (float[2] y, float[2] z) {\n y = Neg(x)\n z = Exp(y)\n}")
    require_output(model, "y", "cpu")
    result = planned(model)
    assert [value.name for value in result.graph.outputs] == ["y", "z"] and len(copies_of(result)) == 1


def test_inputs_with_default_values_are_inputs() -> None:
    text = "g (float[2] x, float[2] w = {1, 2}) => (float[2] y, float[2] z) {\n y = Add(x, w)\n z = Mul(x, w)\n}"
    model = parse(text)
    on_device("y", "cpu", model=model)
    result = planned(model)
    assert sorted(copy.inputs[0].name for copy in copies_of(result)) == ["w", "x"]


def test_an_input_that_nobody_reads() -> None:
    result = planned(parse("g (float[2] x, float[2] unused) => (float[2] y) { y = Neg(x) }"))
    assert str(planned_value_scope(result.graph.inputs[1]).storage) == "cuda:0"


def test_a_loop_without_trip_count_and_one_without_condition() -> None:
    body = "body = b (int64 i, bool k, float[2] a) => (bool l, float[2] r) { l = Identity(k) r = Neg(a) }"
    for operands in (f"(, c, x) <{body}>", f"(n, , x) <{body}>"):
        model = parse(f"g (int64 n, bool c, float[2] x) => (float[2] y) {{ y = Loop {operands} }}")
        assert str(planned_value_scope(planned(model).graph.outputs[0]).storage) == "cuda:0"


def test_a_planned_copy_that_is_no_copy_is_left_alone() -> None:
    model = parse("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    model.graph[0].metadata_props["planned_copy"] = "1"
    assert [node.op_type for node in planned(model).graph] == ["Add"]


def test_a_device_copy_that_computes_something_is_refused() -> None:
    text = """g (float[2] x) => (float[2] y) { y = collage.device_copy(x) }
    <domain: "collage", opset_import: ["" : 20]> device_copy (a) => (b) { b = Neg(a) }"""
    with pytest.raises(ModelError, match="not an Identity"):
        GPU(parse(text, '<ir_version: 10, opset_import: ["" : 20, "collage" : 1]>\n'))


@pytest.mark.parametrize("key", ["on_device", "se_scope"])
def test_metadata_that_cannot_be_read_is_refused_with_its_place(key: str) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph[0].name = "negate"
    model.graph[0].metadata_props[key] = "mars:0"
    with pytest.raises(TargetError, match=f"metadata '{key}'.*mars"):
        GPU(model)


def test_an_older_file_becomes_one_that_may_have_metadata() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }", '<ir_version: 8, opset_import: ["" : 13]>\n')
    assert GPU(model).ir_version == 10 and model.ir_version == 8


def test_annotations_survive_the_preparation() -> None:
    proto = ir.to_proto(parse("g (float[2,3] x) => (float[2,3] y) {\n a = Exp(x)\n b = Neg(a)\n y = Abs(b)\n}"))
    model = read_model(proto)
    on_device("b", "cpu:1", model=model)
    require_output(model, "y", "cpu:0")
    result = PlanDevices(["cpu:0", "cpu:1"])(prepare(model))
    assert [str(planned_value_scope(v).storage) for v in result.graph.outputs] == ["cpu:0"]
    assert any(str(node.metadata_props.get("on_device")) == "cpu:1" for node in result.graph)


def test_a_real_toolchain_by_the_old_flow() -> None:
    text = """g (float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y) {
        c = Conv(x, w)
        r = Relu(c)
        s = Erf(r)
        y = Add(s, c)
    }"""
    toolchains = registry()
    target = toolchains.parse_target("onnxruntime")
    toolchain = toolchains.for_target(target)
    flow = Sequential(
        [
            InferType(),
            AnnotateSEScopes([(target, lambda node: node.op_type != "Erf" and toolchain.supports(node, target).ok)]),
            PlanDevices(),
            PartitionBySEScope(where=lambda scope: not scope.target.is_native),
        ]
    )
    model = read_model(ir.to_proto(parse(text)))
    partitioned = flow(model)
    assert [kernel.metadata["Compiler"] for kernel in kernels_of(partitioned)] == ["onnxruntime"] * 2
    random = np.random.default_rng(0)
    arrays = {"x": random.normal(size=(1, 3, 8, 8)), "w": random.normal(size=(4, 3, 3, 3))}
    inputs = {name: array.astype(np.float32) for name, array in arrays.items()}
    np.testing.assert_array_equal(run(partitioned, inputs)[0], run(model, inputs)[0])
