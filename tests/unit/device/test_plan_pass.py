"""The pass among others, its plan in a file, and what it leaves to a search."""

from __future__ import annotations

import onnx_ir as ir
from tests.unit.device.scenarios import BRANCHES, CALLS, DIAMOND, LOOP, SHAPES, copied, plan, where
from tests.unit.device.simulation import nodes_of, parse, run

from collage.device import (
    CompilationConfig,
    DevicePlan,
    PlanDevices,
    SEScope,
    clear_plan,
    on_device,
    planned_scope,
    require_output,
    targets_for,
)
from collage.target import Target
from collage.transform import PassContext, Sequential, get_pass


def test_it_is_a_pass_among_others() -> None:
    model = parse(DIAMOND)
    assert planned_scope(get_pass("PlanDevices")(model).graph[0]) is not None
    with PassContext(disabled_pass=["PlanDevices"]):
        assert Sequential([PlanDevices()])(model) is model
    assert planned_scope(model.graph[0]) is None, "the pass changed the model that it was given"


def test_a_plan_survives_a_file_and_can_be_forgotten(tmp_path) -> None:
    model = plan(DIAMOND, left="cpu")
    ir.save(model, tmp_path / "m.onnx")
    loaded = ir.load(tmp_path / "m.onnx")
    assert where(loaded) == where(model)
    clear_plan(loaded)
    assert not where(loaded) and not copied(loaded) and str(loaded.graph[0].metadata_props["on_device"]) == "cpu"


def test_constrained_nodes_limit_the_menu_and_free_ones_do_not() -> None:
    model = parse(DIAMOND)
    on_device("left", "cpu:1", model=model)
    plan = DevicePlan(model, CompilationConfig.of(["cpu:0", "cpu:1", "cuda"]))
    left, right, _ = model.graph
    assert plan.required(left) == SEScope("cpu", 1) and plan.required(right).is_free
    menu = [Target("llvm"), Target("llvm", "some"), Target("cuda"), Target("cuda", libs="other")]
    assert [plan.allows(left, target) for target in menu] == [True, True, False, False]
    assert all(plan.allows(right, target) for target in menu)
    planned = PlanDevices(["cpu:0", "cpu:1"])(model)
    assert targets_for(planned.graph[0], menu) == tuple(menu[:2])


def test_an_output_on_any_device_of_a_type_is_read_where_its_value_lies() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { a = Relu(x) y = Neg(a) }")
    require_output(model, "y", "cpu")
    plans = PlanDevices(["cpu:0", "cpu:1"], default="cpu:1")
    once = plans(model)
    assert [str(planned_scope(node)) for node in once.graph] == ["cpu:1[llvm]"] * 2
    assert ir.to_proto(plans(once)) == ir.to_proto(once)


def test_a_target_is_planned_on_a_device_that_is_configured_for_it() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { a = Relu(x) y = Neg(a) }")
    on_device("a", "llvm -compiler=some", model=model)
    some = [f"cpu:{number}[llvm -compiler=some]" for number in (1, 2)]
    planned = PlanDevices(["cpu:0[llvm -compiler=other]", *some])(model)
    assert str(planned_scope(planned.graph[0])) == some[0]


def test_a_target_must_refine_what_was_planned() -> None:
    model = parse(DIAMOND)
    on_device("left", "llvm -compiler=some", model=model)
    plan = DevicePlan(model, CompilationConfig.of(["cpu:0"]))
    menu = [Target("llvm"), Target("llvm", "some"), Target("llvm", "other")]
    assert [plan.allows(model.graph[0], target) for target in menu] == [False, True, False]
    assert str(plan.scope_of(model.graph[0])) == "cpu:0[llvm -compiler=some]"
    assert not plan.copies(), "another toolchain on the same device reads the same memory"


def test_control_flow_is_allowed_where_all_of_it_is() -> None:
    model = parse(BRANCHES)
    on_device("p", "cuda", model=model)
    plan = DevicePlan(model, CompilationConfig.of(["cuda", "cpu"], default="cuda"))
    branch = next(node for node in model.graph if node.op_type == "If")
    assert not plan.allows(branch, Target("llvm")) and plan.allows(branch, Target("cuda"))
    assert str(plan.scope_of(branch)) == "cuda:0[cuda]"


def test_every_node_is_planned_in_bodies_and_functions_too() -> None:
    for text in (DIAMOND, CALLS, BRANCHES, LOOP, SHAPES):
        for node in nodes_of(plan(text)):
            assert planned_scope(node) is not None


def test_a_planned_model_runs_anywhere() -> None:
    import numpy as np

    model = plan(DIAMOND, left="cpu")
    inputs = {name: np.full((2, 3), k, np.float32) for k, name in enumerate("abcd")}
    (result,) = run(model, inputs)
    assert (result == 1 - 5).all()
