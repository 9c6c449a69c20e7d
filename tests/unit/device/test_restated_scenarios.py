"""Scenarios of other planners' suites, restated as ONNX models: what no other module here covers.

Relay's device planner tested calls, tuples, branches, loops and lowered kernels; partitioners of other stacks constants on
several devices, values that are outputs as well, and names that are taken. Every plan is simulated, read by read.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from collage._errors import ModelError
from collage.device import (
    DeviceConflict,
    PartitionBySEScope,
    PlanDevices,
    SEScope,
    clear_plan,
    demand_memory_scope,
    device_copy,
    is_device_copy,
    on_device,
    planned_scope,
    require_output,
)
from collage.transform import InferType, PassContext

from .scenarios import DIAMOND, GPU, LOOP, copied, plan, where
from .simulation import copies_of, parse, run, simulate

CPU, CUDA = "cpu:0", "cuda:0"
X = {"x": np.array([1.0, -2.0], np.float32)}
TWO_GPUS = ["cuda:0", "cuda:1", "cpu:0"]


def replan(model: ir.Model, planner: PlanDevices = GPU, host: str = CPU) -> ir.Model:
    planned = planner(InferType()(model))
    onnx.checker.check_model(ir.to_proto(planned), full_check=True)
    simulate(planned, host)
    return planned


def conflict(model: ir.Model) -> str:
    with pytest.raises(DeviceConflict) as caught:
        GPU(InferType()(model))
    return str(caught.value)


# Chains and sharing ---------------------------------------------------------------------------------------------------


def test_one_annotation_in_a_chain_of_two_thousand() -> None:
    lines = "\n".join(f"v{i + 1} = Neg(v{i})" for i in range(2000))
    planned = plan(f"g (float[2] v0) => (float[2] v2000) {{ {lines} }}", v1000=CPU)
    found = where(planned)
    assert found["v1"] == found["v1000"] == CPU and found["v1001"] == found["v2000"] == CUDA
    assert len(copied(planned)) == 1


def test_a_shared_free_value_goes_with_one_of_two_readers_on_different_devices() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] z) { s = Neg(x) y = Abs(s) z = Exp(s) }"
    assert [name for name, _, _ in copied(plan(text, y=CPU, z="cuda"))] == ["s"]


def test_four_readers_on_two_devices_share_two_copies() -> None:
    planned = plan(
        """g (float[2] x) => (float[2] p, float[2] q, float[2] r, float[2] s) {
            a = Neg(x) p = Abs(a) q = Exp(a) r = Relu(a) s = Tanh(a) }""",
        PlanDevices(TWO_GPUS, default="cuda:0"),
        a=CPU,
        p="cuda:0",
        q="cuda:1",
        r="cuda:0",
        s="cuda:1",
    )
    assert copied(planned) == [("a", CPU, "cuda:0"), ("a", CPU, "cuda:1")]


def test_an_operand_that_is_read_twice_is_copied_once() -> None:
    assert len(copied(plan("g (float[2] x) => (float[2] y) { a = Neg(x) y = Mul(a, a) }", a=CPU))) == 1


def test_stuttering_copies_become_one() -> None:
    model = parse("g (float[2] x) => (float[2] y) { s = Neg(x) y = Abs(s) }")
    once = device_copy(model, model.graph.node(0).outputs[0], "cpu")
    model.graph.node(-1).replace_input_with(0, device_copy(model, once, "cpu"))
    assert len(copies_of(replan(model))) == 1


def test_there_and_back_stays_where_somebody_wrote_it() -> None:
    model = parse("g (float[2] x) => (float[2] y) { s = Neg(x) y = Abs(s) }")
    for name in ("s", "y"):
        on_device(name, "cuda", model=model)
    there = device_copy(model, model.graph.node(0).outputs[0], "cpu")
    model.graph.node(-1).replace_input_with(0, device_copy(model, there, "cuda"))
    planned = replan(model)
    assert where(planned)["y"] == CUDA
    assert copied(planned) == [("s", CUDA, CPU), ("s_copy", CPU, CUDA)]


def test_names_that_copies_and_twins_would_take_are_taken() -> None:
    planned = plan(
        """g (float[2] a_to_cuda_0) => (float[2] y, float[2] k_on_cuda_0) <float[2] k = {1,2}> {
            a = Add(a_to_cuda_0, k) y = Neg(a) k_on_cuda_0 = Mul(y, k) }""",
        a=CPU,
    )
    run(planned, {"a_to_cuda_0": X["x"]})


# Partly constrained scopes --------------------------------------------------------------------------------------------


def test_a_device_of_which_only_the_type_is_known_takes_its_neighbours_number() -> None:
    planner = PlanDevices(TWO_GPUS, default="cpu")
    planned = plan("g (float[2] x) => (float[2] y) { a = Neg(x) y = Exp(a) }", planner, a="cuda:1", y="cuda")
    assert where(planned)["y"] == "cuda:1" and not copied(planned)


def test_a_number_alone_is_a_device_of_the_default_type() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    on_device("y", SEScope(virtual_device_id=1), model=model)
    assert where(replan(model, PlanDevices(TWO_GPUS, default="cuda")))["y"] == "cuda:1"


def test_the_fallback_device_of_the_context_may_have_a_number() -> None:
    with PassContext(fallback_device="cuda:1"):
        planned = PlanDevices(TWO_GPUS)(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"))
    assert where(planned)["y"] == "cuda:1"


def test_libraries_of_one_device_read_one_memory() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Neg(x) y = Abs(a) }"
    planned = plan(text, a="cuda -libs=cudnn", y="cuda -libs=cublas")
    assert not copied(planned)
    assert [str(planned_scope(node).target) for node in planned.graph] == ["cuda -libs=cudnn", "cuda -libs=cublas"]


def test_a_second_cpu_may_be_the_host() -> None:
    planner = PlanDevices(["cuda:0", "cpu:0", "cpu:1"], default="cuda", host="cpu:1")
    text = "g (float[N,2] x) => (float[A,B] y) { d = Neg(x) s = Shape(d) y = Reshape(d, s) }"
    assert where(plan(text, planner, host="cpu:1"))["s"] == "cpu:1"


# Outputs --------------------------------------------------------------------------------------------------------------


def test_an_output_that_others_read_is_delivered_by_one_copy() -> None:
    model = parse("""g (bool c, float[2] x) => (float[2] s, float[2] y) { s = Neg(x)
        y = If (c) < then_branch = t () => (float[2] p) { p = Abs(s) }, else_branch = e () => (float[2] q) { q = Exp(s) } > }""")
    require_output(model, "s", "cpu")
    for name in ("s", "y"):
        on_device(name, "cuda", model=model)
    planned = replan(model)
    assert copied(planned) == [("s_on_cuda_0", CUDA, CPU)]
    run(planned, {"c": np.array(True), **X})


def test_one_value_that_is_two_outputs_stays_one() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph.outputs.append(model.graph.outputs[0])
    require_output(model, "y", "cpu")
    assert [value.name for value in GPU(model).graph.outputs] == ["y", "y"]


def test_an_output_that_is_an_input_arrives_where_it_is_wanted_or_the_conflict_says_that_they_are_one() -> None:
    model = parse("g (float[2] x) => (float[2] x, float[2] y) { y = Neg(x) }")
    require_output(model, "x", "cpu")
    assert where(replan(model))["x"] == CPU
    on_device("x", "cuda", model=model)
    clear_plan(model)
    assert "they are one value" in conflict(model)


def test_outputs_that_are_constants_are_delivered_without_a_copy() -> None:
    for text in (
        "g (float[2] x) => (float[2] k, float[2] y) <float[2] k = {1,2}> { y = Add(x, k) }",
        "g (float[2] x) => (float[2] k, float[2] y) { k = Constant <value = float[2] {1,2}> () y = Add(x, k) }",
    ):
        model = parse(text)
        require_output(model, "k", "cpu")
        planned = replan(model)
        assert not copied(planned) and where(planned)["k"] == CPU
        run(planned, X)


def test_a_memory_may_be_demanded_of_an_output_and_a_free_demand_demands_nothing() -> None:
    for scope, copies in (("cuda:0/out", [("y_on_cuda_0", CUDA, "cuda:0/out")]), ("?", [])):
        model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
        require_output(model, "y", scope)
        assert copied(replan(model)) == copies


# Constants ------------------------------------------------------------------------------------------------------------


def test_an_annotated_weight_is_copied_and_a_free_one_is_not() -> None:
    model = parse("g (float[2] x) => (float[2] y) <float[2] k = {1,2}> { y = Add(x, k) }")
    on_device("k", "cpu", model=model)
    on_device("y", "cuda", model=model)
    assert copied(replan(model)) == [("k", CPU, CUDA)]


def test_a_weight_that_callers_may_replace_is_an_input() -> None:
    model = parse(
        "g (float[2] x, float[2] k) => (float[2] y, float[2] z) <float[2] k = {1,2}> { y = Add(x, k) z = Mul(x, k) }"
    )
    on_device("y", "cpu", model=model)
    on_device("z", "cuda", model=model)
    planned = replan(model)
    assert copied(planned) == [("k", CPU, CUDA), ("x", CPU, CUDA)]
    run(planned, X)


def test_a_weight_of_a_branch_has_a_twin_in_that_branch() -> None:
    model = parse("""g (bool c, float[2] x) => (float[2] y) { y = If (c) <
        then_branch = t () => (float[2] p) <float[2] k = {1,2}> { a = Add(x, k) p = Mul(a, k) },
        else_branch = e () => (float[2] q) { q = Exp(x) } > }""")
    on_device("a", "cpu", model=model)
    on_device("p", "cuda", model=model)
    planned = replan(model)
    assert "k" not in [name for name, _, _ in copied(planned)]
    run(planned, {"c": np.array(True), **X})


# Several results ------------------------------------------------------------------------------------------------------


def test_all_results_of_a_node_lie_together_also_those_that_nobody_reads() -> None:
    text = "g (float[4] x) => (float[2] y, float[2] z) { a, b = Split<num_outputs=2>(x) y = Neg(a) z = Exp(b) }"
    planned = plan(text, y=CPU, z="cuda")
    assert where(planned)["a"] == where(planned)["b"] and len(copied(planned)) == 1
    unused = plan("g (float[4] x) => (float[2] y) { a, b = Split<num_outputs=2>(x) y = Neg(a) }", y=CPU)
    assert where(unused)["a"] == where(unused)["b"] == CPU


def test_results_of_one_node_on_two_devices_are_a_conflict_that_says_so() -> None:
    model = parse("g (float[4] x) => (float[2] a, float[2] b) { a, b = Split<num_outputs=2>(x) }")
    on_device("a", "cpu", model=model)
    on_device("b", "cuda", model=model)
    assert "one operator runs in one place" in conflict(model)


# Functions ------------------------------------------------------------------------------------------------------------

ONE = '<domain: "f", opset_import: ["" : 20]> one (p) => (r) { s = Exp(p) r = Neg(s) }'


def test_a_call_is_where_its_function_is_through_two_levels() -> None:
    planned = plan(
        """g (float[2] x) => (float[2] y) { h = Neg(x) y = f.outer(h) }
        <domain: "f", opset_import: ["" : 20, "f": 1]> outer (p) => (r) { q = f.inner(p) r = Relu(q) }
        <domain: "f", opset_import: ["" : 20]> inner (p2) => (r2) { s2 = Exp(p2) r2 = Abs(s2) }""",
        s2=CPU,
    )
    found = where(planned)
    assert {found[name] for name in ("x", "h", "p", "p2", "s2")} == {CPU}
    assert copied(planned) == [("s2", CPU, CUDA)]


def test_a_function_that_is_called_in_a_loop_moves_what_the_loop_carries() -> None:
    planned = plan(
        """g (int64 n, bool c, float[2] x, float[2] v) => (float[2] y) {
          y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] a) => (bool l, float[2] r) {
            l = Identity(k) r = f.both(a, v) }> }
        <domain: "f", opset_import: ["" : 20]> both (p, q) => (r) { m = Add(p, q) r = Relu(m) }""",
        m=CPU,
    )
    assert not copied(planned) and where(planned)["y"] == CPU


def test_results_of_a_function_agree_over_its_calls() -> None:
    model = parse("g (float[2] x) => (float[2] y, float[2] z) { y = f.one(x) z = f.one(y) }" + ONE)
    on_device("y", "cpu", model=model)
    on_device("z", "cuda", model=model)
    text = conflict(model)
    assert "'y' and result 0 of function 'one' agree" in text and "functions of their own" in text


def test_a_result_of_a_call_that_is_annotated_pulls_the_body_and_not_the_reader() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] z) { y = f.one(x) z = Neg(y) }" + ONE
    planned = plan(text, y=CPU, z="cuda")
    assert where(planned)["s"] == CPU and copied(planned) == [("y", CPU, CUDA)]


def test_an_argument_that_a_function_ignores_is_not_copied() -> None:
    text = "g (float[2] x, float[2] u) => (float[2] y) { v = Neg(u) y = f.first(x, v) }"
    planned = plan(text + '<domain: "f", opset_import: ["" : 20]> first (p, q) => (r) { r = Neg(p) }', y=CPU, v="cuda")
    assert len(copied(planned)) <= 1


def test_functions_that_call_each_other_in_a_circle_are_refused_by_name() -> None:
    model = parse("""g (float[2] x) => (float[2] y) { y = f.a(x) }
        <domain: "f", opset_import: ["" : 20, "f": 1]> a (p) => (r) { r = f.b(p) }
        <domain: "f", opset_import: ["" : 20, "f": 1]> b (p) => (r) { r = f.a(p) }""")
    with pytest.raises(ModelError, match="function 'a' calls itself"):
        GPU(model)


def test_shapes_and_conditions_stay_on_the_host_on_their_way_into_functions_whose_types_nobody_knows() -> None:
    shape = parse("""g (float[N,2] x) => (float[A,B] y) { d = Neg(x) s = Shape(d) y = f.r(d, s) }
        <domain: "f", opset_import: ["" : 20]> r (p, q) => (o) { o = Reshape(p, q) }""")
    condition = parse("""g (bool c, float[2] x) => (float[2] y) { y = f.a(c, x) }
        <domain: "f", opset_import: ["" : 20]> a (d, p) => (r) { s = Exp(p) r = If (d) <
          then_branch = t () => (float[2] u) { u = Abs(s) }, else_branch = e () => (float[2] v) { v = Neg(s) } > }""")
    for model, names in ((shape, ("s", "q")), (condition, ("c", "d"))):
        planned = GPU(model)
        simulate(planned, CPU)
        assert {where(planned)[name] for name in names} == {CPU} and not copied(planned)


# Branches and loops ---------------------------------------------------------------------------------------------------


def test_an_annotation_two_branches_deep_moves_only_its_own_operator() -> None:
    planned = plan(
        """g (bool c, bool d, float[2] x) => (float[2] y) {
          h = If (c) < then_branch = t () => (float[2] p) { p = If (d) <
              then_branch = tt () => (float[2] q) { q = Neg(x) },
              else_branch = te () => (float[2] r) { o = Abs(x) r = Exp(o) } > },
            else_branch = e () => (float[2] s) { s = Exp(x) } >
          y = Neg(h) }""",
        o=CPU,
    )
    found = where(planned)
    assert found["o"] == CPU and {found[name] for name in "qrspy"} == {CUDA}


def test_a_branch_may_hand_out_what_it_captures() -> None:
    planned = plan(
        """g (bool c, float[2] x) => (float[2] y) { s = Neg(x)
          h = If (c) < then_branch = t () => (float[2] p) { p = Identity(s) },
                       else_branch = e () => (float[2] q) { q = Exp(x) } >
          y = Relu(h) }""",
        s=CPU,
        y="cuda",
    )
    assert ("s", CPU, CUDA) in copied(planned)


def test_a_condition_that_is_computed_from_data_is_copied_and_its_data_are_not() -> None:
    planned = plan("""g (float[2] x) => (float[2] y) {
        s = ReduceSum<keepdims=0>(x) z = Constant<value=float {0.0}>() c = Greater(s, z)
        y = If (c) < then_branch = t () => (float[2] p) { p = Abs(x) }, else_branch = e () => (float[2] q) { q = Exp(x) } > }""")
    assert copied(planned) == [("c", CUDA, CPU)]


def test_shapes_pass_through_a_branch_on_the_host() -> None:
    planned = plan("""g (bool c, float[N,2] x) => (float[A,B] y) { d = Neg(x) s = Shape(d)
        t = If (c) < then_branch = th () => (int64[2] p) { p = Identity(s) },
          else_branch = el () => (int64[2] q) { i = Constant<value_ints=[1,0]>() q = Gather(s, i) } >
        y = Reshape(d, t) }""")
    assert not copied(planned) and where(planned)["t"] == CPU and where(planned)["y"] == CUDA


def test_what_two_nested_loops_read_is_copied_before_the_outer_one() -> None:
    planned = plan(
        """g (int64 n, bool c, float[2] x, float[2] w) => (float[2] y) { s = Neg(w)
          y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] a) => (bool l, float[2] r) { l = Identity(k)
            r = Loop (n, c, a) <body = b2 (int64 i2, bool k2, float[2] a2) => (bool l2, float[2] r2) {
              l2 = Identity(k2) r2 = Add(a2, s) }> }> }""",
        s=CPU,
    )
    assert copied(planned) == [("s", CPU, CUDA)] and any(map(is_device_copy, planned.graph))


def test_a_loop_counts_on_the_host_and_hands_its_counter_to_the_device() -> None:
    planned = plan("""g (int64 n, bool c, float[2] x) => (float[2] y) {
        y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] a) => (bool l, float[2] r) {
          l = Identity(k) f = Cast<to=1>(i) r = Mul(a, f) }> }""")
    assert copied(planned) == [("i", CPU, CUDA)]


def test_what_a_loop_collects_may_lie_elsewhere_than_it_is_made() -> None:
    model = parse("""g (int64 n, bool c, float[2] x) => (float[2] y, float[M,2] ys) {
        y, ys = Loop (n, c, x) <body = b (int64 i, bool k, float[2] a) => (bool l, float[2] r, float[2] q) {
          l = Identity(k) r = Abs(a) q = Exp(a) }> }""")
    on_device("ys", "cpu", model=model)
    on_device("q", "cuda", model=model)
    assert copied(replan(model)) == [("q", CUDA, CPU)]


# Shapes ---------------------------------------------------------------------------------------------------------------


def test_the_larger_of_two_shapes_is_the_hosts() -> None:
    text = (
        "g (float[N,2] x, float[1,2] b) => (float[A,B] y) { s = Shape(x) t = Shape(b) u = Max(s, t) y = Expand(b, u) }"
    )
    planned = plan(text)
    assert where(planned)["u"] == CPU and not copied(planned)


def test_a_shape_that_is_annotated_is_computed_there_and_copied_to_whoever_needs_it() -> None:
    planned = plan("g (float[N,2] x) => (float[A,B] y) { d = Neg(x) s = Shape(d) y = Reshape(d, s) }", s="cuda")
    assert copied(planned) == [("s", CUDA, CPU)]


# Sequences and strings ------------------------------------------------------------------------------------------------


def test_sequences_and_strings_are_conflicts_rather_than_copies() -> None:
    for text in (
        "g (float[2] x) => (float[2] y) { s = SequenceConstruct(x) i = Constant<value_int=0>() y = SequenceAt(s, i) }",
        "g (string[2] x) => (string[2] y) { s = Identity(x) y = Identity(s) }",
    ):
        model = parse(text)
        on_device("s", "cuda", model=model)
        on_device("y", "cpu", model=model)
        assert "never copied" in conflict(model)


# Lowered kernels ------------------------------------------------------------------------------------------------------

KERNELS = """<domain: "f", opset_import: ["" : 20]> one (p) => (r) { r = Neg(p) }
    <domain: "f", opset_import: ["" : 20]> two (p) => (r) { r = Exp(p) }"""


def lowered(body: str, **memories: str) -> ir.Model:
    model = parse("g (float[2] x) => (float[2] y, float[2] z) {" + body + "}" + KERNELS)
    for function in model.functions.values():
        function.metadata_props.update({"Primitive": "1", "target": "cuda"})
        if function.name in memories:
            demand_memory_scope(function, "p", memories[function.name])
    return model


def test_a_memory_that_a_kernel_demands_flows_back_to_the_input() -> None:
    planned = GPU(lowered("a = Neg(x) b = Abs(a) y = f.one(b) z = Exp(y)", one="texture"))
    assert where(planned)["x"] == where(planned)["b"] == "cuda:0/texture" and not copied(planned)


def test_two_kernels_with_two_memories_share_a_value_by_one_copy() -> None:
    planned = GPU(lowered("a = Neg(x) y = f.one(a) z = f.two(a)", one="texture", two="buffer"))
    assert copied(planned) == [("a", "cuda:0/texture", "cuda:0/buffer")]


# Again, and after -----------------------------------------------------------------------------------------------------


def test_planning_again_refines_and_a_contradiction_names_the_earlier_plan() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Neg(x) b = Abs(a) y = Exp(b) }"
    model = plan(text, a=CPU)
    on_device("b", "cuda:0/texture", model=model)
    planned = replan(model)
    assert (where(planned)["a"], where(planned)["b"]) == (CPU, "cuda:0/texture")
    on_device("a", "cuda", model=planned)
    assert "planned by an earlier PlanDevices" in conflict(planned)
    clear_plan(planned)
    assert not any(str(planned_scope(node)).startswith("cpu") for node in GPU(planned).graph)


def test_regions_of_a_scope_that_lies_on_both_sides_of_another_stay_apart() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] d) { a = Neg(x) b = Exp(a) c = Add(a, b) d = Abs(x) y = Mul(c, d) }"
    planned = plan(text, a="cuda", b=CPU, c="cuda", d="cuda", y="cuda")
    partitioned = PartitionBySEScope()(planned)
    for expected, found in zip(run(planned, X), run(partitioned, X), strict=True):
        np.testing.assert_allclose(found, expected)
    again = PlanDevices(["cuda:0", "cpu:0"], default="cuda")(partitioned)
    simulate(again, CPU)
    assert len(copies_of(again)) == len(copies_of(planned))


@pytest.mark.parametrize(("text", "name"), [(LOOP, "o"), (DIAMOND, "left")])
def test_partitioning_twice_is_partitioning_once(text: str, name: str) -> None:
    once = PartitionBySEScope()(plan(text, **{name: CPU}))
    assert ir.to_proto(PartitionBySEScope()(once)) == ir.to_proto(once)
