"""Scenarios of device planning: what lands where, and which copies come between. Specification 001."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from tests.unit.device.simulation import copies_of, nodes_of, parse, run, simulate

from collage._errors import ConfigError, TargetError
from collage.device import (
    CompilationConfig,
    DeviceConflict,
    DevicePlan,
    PlanDevices,
    SEScope,
    clear_plan,
    copy_scopes,
    demand_memory_scope,
    device_copy,
    on_device,
    planned_scope,
    planned_value_scope,
    register_host_operands,
    require_output,
    targets_for,
)
from collage.graph import DataflowGraph, KernelSpec, SubGraph, partition
from collage.target import Target
from collage.transform import InferType, PassContext, Sequential, get_pass

GPU = PlanDevices(["cuda:0", "cpu:0"], default="cuda")
"""Most scenarios: the default is a GPU, the host a CPU."""

DIAMOND = """g (float[2,3] a, float[2,3] b, float[2,3] c, float[2,3] d) => (float[2,3] y) {
    left = Add(a, b)
    right = Add(c, d)
    y = Sub(left, right)
}"""


def values_of(model: ir.Model) -> dict[str, ir.Value]:
    graphs = [*model.graphs()]
    for function in model.functions.values():
        if function.name in ("device_copy", "gem", "sub", "kernel"):
            continue
        graphs += [function.graph, *function.graph.subgraphs()]
    return {
        v.name: v for g in graphs for v in (*g.inputs, *g.initializers.values(), *(o for n in g for o in n.outputs))
    }


def where(model: ir.Model) -> dict[str, str]:
    """The device of every planned value, with its memory."""
    found = {name: planned_value_scope(value) for name, value in values_of(model).items()}
    return {name: str(scope.storage) for name, scope in found.items() if scope is not None}


def copied(model: ir.Model) -> list[tuple[str, str, str]]:
    scopes = [(node, *copy_scopes(node)) for node in copies_of(model)]
    return sorted((n.inputs[0].name, str(src.storage), str(dst.storage)) for n, src, dst in scopes)


def plan(text: str, planner: PlanDevices = GPU, host: str = "cpu:0", **annotations: str) -> ir.Model:
    """A model with annotations by value, planned and simulated."""
    model = parse(text)
    for name, scope in annotations.items():
        on_device(name, scope, model=model)
    planned = planner(InferType()(model))
    onnx.checker.check_model(ir.to_proto(planned), full_check=True)
    simulate(planned, host)
    return planned


# Defaults and annotations


def test_without_annotations_all_is_on_the_default_device() -> None:
    model = plan(DIAMOND)
    assert set(where(model).values()) == {"cuda:0"} and not copied(model)


def test_the_default_is_the_fallback_device_of_the_context() -> None:
    for name in ("cpu", "cuda", "cpu:1"):
        with PassContext(fallback_device=name):
            model = PlanDevices()(parse(DIAMOND))
        assert str(planned_scope(model.graph[0]).device) == (name if ":" in name else f"{name}:0")


def test_an_annotated_operator_takes_its_inputs_along_but_not_its_readers() -> None:
    model = plan(DIAMOND, left="cpu")
    assert where(model) | {} == {
        **dict.fromkeys(("a", "b", "left"), "cpu:0"),
        **dict.fromkeys(("c", "d", "right", "y", "left_to_cuda_0"), "cuda:0"),
    }
    assert copied(model) == [("left", "cpu:0", "cuda:0")]


def test_two_annotated_operands_are_two_copies() -> None:
    model = plan(DIAMOND, left="cpu", right="cpu")
    assert copied(model) == [("left", "cpu:0", "cuda:0"), ("right", "cpu:0", "cuda:0")]


def test_operands_on_different_devices_meet_where_the_reader_is() -> None:
    model = plan(DIAMOND, left="cpu", right="cuda", y="cpu")
    assert copied(model) == [("right", "cuda:0", "cpu:0")]


def test_an_annotation_that_constrains_nothing_only_allows_a_copy() -> None:
    text = "g (float[2] x) => (float[2] z) {\n a = Relu(x)\n b = Neg(a)\n z = Sigmoid(b)\n}"
    model = plan(text, a="?", z="cpu")
    assert where(model)["a"] == "cuda:0" and copied(model) == [("a", "cuda:0", "cpu:0")]


def test_operands_of_an_unannotated_producer_follow_its_reader() -> None:
    model = plan("g (float[2] x) => (float[2] z) {\n a = Relu(x)\n b = Neg(a)\n z = Sigmoid(b)\n}", z="cpu")
    assert set(where(model).values()) == {"cpu:0"} and not copied(model)


def test_one_value_for_several_readers_elsewhere_is_copied_once() -> None:
    text = "g (float[2] x) => (float[2] p, float[2] q, float[2] r) {\n a = Relu(x)\n p = Neg(a)\n q = Abs(a)\n r = Add(a, a)\n}"
    model = plan(text, a="cpu")
    assert copied(model) == [("a", "cpu:0", "cuda:0")]
    (copy,) = copies_of(model)
    assert len(copy.outputs[0].uses()) == 4


def test_one_input_may_be_read_on_two_devices() -> None:
    text = "g (float[2] x) => (float[2] p, float[2] q) {\n p = Neg(x)\n q = Abs(x)\n}"
    model = plan(text, p="cpu", q="cuda")
    assert copied(model) == [("x", "cpu:0", "cuda:0")]


def test_what_is_annotated_twice_alike_is_copied_nowhere() -> None:
    text = "g (float[2] x) => (float[2] r) {\n p = Neg(x)\n q = Abs(p)\n r = Exp(q)\n}"
    model = plan(text, p="cpu", q="cpu", r="cpu")
    assert not copied(model)


def test_three_devices_in_a_chain() -> None:
    text = "g (float[2] x) => (float[2] r) {\n p = Neg(x)\n q = Abs(p)\n r = Exp(q)\n}"
    planner = PlanDevices(["cpu:0", "cpu:1", "cuda"])
    model = plan(text, planner, p="cpu:1", q="cuda", r="cpu:0")
    assert copied(model) == [("p", "cpu:1", "cuda:0"), ("q", "cuda:0", "cpu:0")]


def test_the_id_distinguishes_devices_of_one_type() -> None:
    model = plan(DIAMOND, PlanDevices(["cpu:0", "cpu:1"]), left="cpu:1", right="cpu:0")
    assert copied(model) == [("left", "cpu:1", "cpu:0")]


def test_a_device_type_alone_takes_the_id_of_its_neighbour() -> None:
    text = "g (float[2] x) => (float[2] r) {\n p = Neg(x)\n r = Exp(p)\n}"
    model = plan(text, PlanDevices(["cpu:0", "cpu:1", "cuda"], default="cuda"), p="cpu:1", r="cpu")
    assert where(model)["r"] == "cpu:1" and not copied(model)


def test_parameters_may_be_annotated_and_weights_stay_where_they_are_asked_to_be() -> None:
    text = (
        "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] v = {1, 2}> {\n t = Add(x, w)\n y = Add(t, v)\n}"
    )
    model = plan(text, x="cpu", w="cpu")
    assert copied(model) == [("w", "cpu:0", "cuda:0"), ("x", "cpu:0", "cuda:0")]
    assert where(model)["v"] == "cuda:0"


def test_constants_are_where_they_are_read_without_copies() -> None:
    text = "g (float[2] x) => (float[2] p, float[2] q) <float[2] w = {1, 2}> {\n p = Add(x, w)\n q = Mul(x, w)\n}"
    model = plan(text, p="cpu", q="cuda")
    assert copied(model) == [("x", "cpu:0", "cuda:0")]
    twins = [value for value in values_of(model).values() if value.is_initializer()]
    assert sorted(where(model)[v.name] for v in twins) == ["cpu:0", "cuda:0"]
    assert twins[0].const_value is twins[1].const_value


def test_outputs_may_be_demanded_where_nothing_is_computed() -> None:
    model = parse(DIAMOND)
    require_output(model, "y", "cpu")
    planned = GPU(model)
    simulate(planned)
    assert [value.name for value in planned.graph.outputs] == ["y"]
    assert where(planned)["y"] == "cpu:0" and planned_scope(planned.graph[2]).device_type == "cuda"
    assert len(copied(planned)) == 1


def test_a_demand_that_is_met_anyway_costs_nothing() -> None:
    model = parse(DIAMOND)
    require_output(model, "y", "cuda:0")
    assert not copied(GPU(model))


def test_results_of_one_operator_lie_together() -> None:
    text = """g (float[4] x) => (float[2] p, float[2] q) {
        a, b = Split <num_outputs = 2> (x)
        p = Neg(a)
        q = Neg(b)
    }"""
    model = plan(text, p="cpu")
    assert where(model)["a"] == where(model)["b"] == where(model)["q"] == "cpu:0" and not copied(model)


# Copies that somebody wrote


def test_an_explicit_copy_fixes_both_of_its_sides() -> None:
    model = parse(DIAMOND)
    left = values_of(model)["left"]
    copy = device_copy(model, left, "cuda", "cpu")
    model.graph[-1].replace_input_with(0, copy)
    planned = PlanDevices(["cpu:0", "cuda:0"])(model)
    simulate(planned)
    assert where(planned)["left"] == "cpu:0" and where(planned)["right"] == where(planned)["y"] == "cuda:0"
    assert copied(planned) == [("left", "cpu:0", "cuda:0")]


def test_an_explicit_copy_that_copies_nothing_is_dropped() -> None:
    model = parse(DIAMOND)
    left = values_of(model)["left"]
    model.graph[-1].replace_input_with(0, device_copy(model, left, "cuda"))
    planned = GPU(model)
    assert not copied(planned)
    simulate(planned)


def test_an_explicit_copy_is_shared_with_readers_that_need_the_same() -> None:
    model = parse(
        DIAMOND.replace("=> (float[2,3] y)", "=> (float[2,3] y, float[2,3] z)").replace("\n}", "\n z = Neg(left)\n}")
    )
    left = values_of(model)["left"]
    on_device(left, "cpu")
    sub = next(node for node in model.graph if node.op_type == "Sub")
    sub.replace_input_with(0, device_copy(model, left, "cuda"))
    planned = GPU(model)
    simulate(planned)
    assert copied(planned) == [("left", "cpu:0", "cuda:0")]


def test_there_and_back_is_no_way() -> None:
    model = parse("g (float[2] x) => (float[2] y) {\n p = Neg(x)\n y = Abs(p)\n}")
    p = values_of(model)["p"]
    model.graph[-1].replace_input_with(0, device_copy(model, p, "cuda"))
    on_device(p, "cpu")
    on_device("y", "cpu", model=model)
    planned = GPU(model)
    simulate(planned)
    assert not copied(planned)


# Functions

CALLS = """g (float[2] a, float[2] b) => (float[2] y, float[2] z) {
    s = Neg(a)
    y = f.both(s, b)
    t = Abs(b)
    z = f.both(t, a)
}
<domain: "f", opset_import: ["" : 20]>
both (p, q) => (r) { m = Add(p, q) n = Exp(m) r = Relu(n) }"""


def test_an_annotation_in_a_function_reaches_the_arguments_of_every_call() -> None:
    model = plan(CALLS, m="cpu")
    for name in ("p", "q", "m", "s", "t", "a", "b"):
        assert where(model)[name] == "cpu:0", name
    assert where(model)["n"] == where(model)["y"] == where(model)["z"] == "cuda:0"
    assert copied(model) == [("m", "cpu:0", "cuda:0")]


def test_an_annotation_on_a_call_reaches_into_the_function() -> None:
    model = plan(CALLS, y="cpu")
    assert {where(model)[name] for name in ("r", "n", "m", "p", "s", "t", "z")} == {"cpu:0"}


def test_arguments_elsewhere_are_copied_before_the_call() -> None:
    model = plan(CALLS, s="cuda", m="cpu")
    assert ("s", "cuda:0", "cpu:0") in copied(model)


def test_two_calls_cannot_have_results_on_two_devices() -> None:
    with pytest.raises(DeviceConflict, match="functions of their own") as caught:
        plan(CALLS, y="cpu", z="cuda")
    error = caught.value
    assert "'y'" in error.one and "cpu" in error.one and "'z'" in error.other and "cuda" in error.other
    assert len(error.chain) == 2 and all("result 0 of function 'both'" in step for step in error.chain)


def test_calls_within_functions() -> None:
    text = """g (float[2] a) => (float[2] y) { s = Neg(a) y = f.outer(s) }
    <domain: "f", opset_import: ["" : 20, "f" : 1]> outer (p) => (r) { m = Abs(p) r = f.inner(m) }
    <domain: "f", opset_import: ["" : 20]> inner (v) => (w) { u = Exp(v) w = Neg(u) }"""
    model = plan(text, u="cpu")
    assert {where(model)[name] for name in ("u", "v", "m", "p", "s", "a")} == {"cpu:0"}
    assert where(model)["w"] == where(model)["y"] == "cuda:0"


# Control flow

BRANCHES = """g (bool c, float[2] x, float[2] z) => (float[2] y) {
    s = Neg(x)
    h = If (c) <
        then_branch = t () => (float[2] p) { p = Add(s, z) },
        else_branch = e () => (float[2] q) { o = Abs(s) q = Exp(o) }
    >
    y = Neg(h)
}"""


def test_branches_agree_on_their_results() -> None:
    model = plan(BRANCHES, h="cpu")
    assert {where(model)[name] for name in ("p", "q", "o", "h", "s")} == {"cpu:0"}
    assert where(model)["y"] == "cuda:0" and copied(model) == [("h", "cpu:0", "cuda:0")]


def test_a_branch_elsewhere_is_copied_where_it_ends() -> None:
    model = plan(BRANCHES.replace("Abs(s)", "Abs(z)"), p="cpu")
    assert where(model)["q"] == where(model)["h"] == "cuda:0"
    assert ("p", "cpu:0", "cuda:0") in copied(model)


def test_conditions_are_read_on_the_host() -> None:
    assert where(plan(BRANCHES))["c"] == "cpu:0"


def test_conditions_are_computed_where_their_tensor_is_and_copied_to_the_host() -> None:
    text = """g (float[2] x) => (float[2] y) {
        m = ReduceMax <keepdims = 0> (x)
        k = Constant <value_float = 0.0> ()
        c = Greater(m, k)
        y = If (c) <
            then_branch = t () => (float[2] p) { p = Neg(x) },
            else_branch = e () => (float[2] q) { q = Abs(x) }
        >
    }"""
    model = plan(text)
    assert where(model)["m"] == where(model)["c"] == "cuda:0" and copied(model) == [("c", "cuda:0", "cpu:0")]


def test_a_copy_for_one_branch_is_made_in_that_branch_only() -> None:
    text = BRANCHES.replace("y = Neg(h)", "y = Add(h, s)")
    model = plan(text, s="cuda", o="cpu")
    (copy,) = (node for node in copies_of(model) if node.inputs[0].name == "s")
    assert copy.graph.name == "e"


LOOP = """g (int64 n, bool c, float[2] x, float[2] w) => (float[2] y) {
    v = Neg(w)
    s = Abs(x)
    y = Loop (n, c, s) <body = b (int64 i, bool k, float[2] a) => (bool l, float[2] r) {
        l = Identity(k)
        m = Mul(a, v)
        o = Exp(m)
        r = Add(o, v)
    }>
}"""


def test_a_carried_value_stays_where_it_is_from_iteration_to_iteration() -> None:
    model = plan(LOOP, m="cpu")
    assert {where(model)[name] for name in ("m", "a", "s", "v", "y")} == {"cpu:0"}
    assert not copied(model), "the rest of the body follows the carried value"


def test_what_a_loop_captures_is_copied_outside_of_it() -> None:
    model = plan(LOOP, v="cpu", m="cuda")
    (copy,) = copies_of(model)
    assert copy.graph is model.graph and copied(model) == [("v", "cpu:0", "cuda:0")]


def test_trip_counts_and_conditions_are_the_hosts() -> None:
    model = plan(LOOP)
    assert {where(model)[name] for name in ("n", "c", "i", "k", "l")} == {"cpu:0"}
    assert {where(model)[name] for name in ("m", "a", "r", "y", "x", "w")} == {"cuda:0"} and not copied(model)


def test_counters_of_loops_are_the_hosts_too() -> None:
    text = """g (int64 n, float[2] x) => (float[2] y, int64 z) {
        t = Constant <value = bool {1}> ()
        zero = Constant <value_int = 0> ()
        y, z = Loop (n, t, x, zero) <body = b (int64 i, bool k, float[2] a, int64 j) => (bool l, float[2] r, int64 q) {
            one = Constant <value_int = 1> ()
            q = Add(j, one)
            l = Less(q, n)
            r = Neg(a)
        }>
    }"""
    model = plan(text)
    assert {where(model)[name] for name in ("j", "q", "l", "z", "n")} == {"cpu:0"}
    assert where(model)["r"] == where(model)["y"] == "cuda:0" and not copied(model)


def test_loops_in_branches_and_branches_in_loops() -> None:
    text = """g (int64 n, bool c, float[2] x) => (float[2] y) {
        v = Neg(x)
        y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] a) => (bool l, float[2] r) {
            l = Identity(k)
            r = If (k) <
                then_branch = t () => (float[2] p) { p = Mul(a, v) },
                else_branch = e () => (float[2] q) { q = Add(a, v) }
            >
        }>
    }"""
    model = plan(text, v="cpu", p="cuda")
    assert copied(model) == [("v", "cpu:0", "cuda:0"), ("x", "cpu:0", "cuda:0")]
    assert {copy.graph for copy in copies_of(model)} == {model.graph}


def test_scans_slice_where_their_operand_is() -> None:
    text = """g (float[2] x, float[3,2] xs) => (float[2] y, float[3,2] ys) {
        s = Abs(xs)
        y, ys = Scan (x, s) <num_scan_inputs = 1, body = b (float[2] a, float[2] e) => (float[2] r, float[2] o) {
            r = Add(a, e)
            o = Neg(e)
        }>
    }"""
    model = plan(text, r="cpu")
    assert {where(model)[name] for name in ("a", "e", "r", "s")} == {"cpu:0"}


# Shapes


SHAPES = """g (float[2,N] x, float[2,3] w) => (float[N,2] y) {
    d = Neg(x)
    s = Shape(d)
    i = Constant <value_ints = [1, 0]> ()
    t = Gather(s, i)
    y = Reshape(d, t)
}"""


def test_shape_computations_are_the_hosts_as_a_whole() -> None:
    model = plan(SHAPES)
    assert {where(model)[name] for name in ("s", "t", "i")} == {"cpu:0"}
    assert where(model)["d"] == where(model)["y"] == "cuda:0" and not copied(model)


def test_a_shape_does_not_pull_the_tensor_that_it_is_of() -> None:
    text = "g (float[2,3] x) => (int64[2] s) { d = Neg(x) s = Shape(d) }"
    model = plan(text)
    assert where(model) == {"x": "cuda:0", "d": "cuda:0", "s": "cpu:0"}


def test_a_shape_that_is_data_to_somebody_is_copied_to_him() -> None:
    text = """g (float[2,3] x, int64[200,2] big, int64[1,1] at) => (float[2,3] y, int64[200,2] z) {
        s = Shape(x)
        i = Constant <value_ints = [1, 0]> ()
        t = Gather(s, i)
        z = ScatterND(big, at, t)
        y = Relu(x)
    }"""
    model = plan(text)
    assert where(model)["t"] == "cpu:0" and copied(model) == [("t", "cpu:0", "cuda:0")]


def test_islands_reach_back_through_small_tensors_only() -> None:
    text = """g (float[2,300] x, int64[1] n) => (float[a,b] y) {
        k = Constant <value_ints = [3]> ()
        zero = Constant <value_ints = [0]> ()
        one = Constant <value_float = 1.0> ()
        m = Add(n, k)
        f = Cast <to = 7> (x)
        o = ReduceMax(f)
        q = Squeeze(o)
        u = Unsqueeze(q, zero)
        p = Concat <axis = 0> (m, u)
        y = Expand(one, p)
    }"""
    model = plan(text)
    assert {where(model)[name] for name in ("m", "n", "u", "p", "k")} == {"cpu:0"}
    assert {where(model)[name] for name in ("x", "f", "o", "y")} == {"cuda:0"}
    assert len(copied(model)) == 1


def test_an_annotation_keeps_a_node_out_of_an_island() -> None:
    model = plan(SHAPES, t="cuda")
    assert where(model)["t"] == "cuda:0" and copied(model) == [("s", "cpu:0", "cuda:0"), ("t", "cuda:0", "cpu:0")]


def test_the_axes_of_other_domains_can_be_registered() -> None:
    register_host_operands("Fold", (1,), "custom")
    header = '<ir_version: 10, opset_import: ["" : 20, "custom" : 1]>\n'
    model = GPU(parse("g (float[2] x, int64[1] n) => (float[2] y) { y = custom.Fold(x, n) }", header))
    assert where(model) == {"x": "cuda:0", "n": "cpu:0", "y": "cuda:0"}


def test_the_host_may_be_another_cpu() -> None:
    planner = PlanDevices(["cpu:0", "cpu:1"], default="cpu:1", host="cpu:0")
    assert where(plan(SHAPES, planner))["s"] == "cpu:0" and where(plan(SHAPES, planner))["y"] == "cpu:1"


# Conflicts


def test_results_of_one_operator_cannot_be_on_two_devices() -> None:
    model = parse("g (float[4] x) => (float[2] a, float[2] b) { a, b = Split <num_outputs = 2> (x) }")
    on_device("a", "cpu", model=model)
    on_device("b", "cuda", model=model)
    with pytest.raises(DeviceConflict) as caught:
        GPU(model)
    assert "'a'" in caught.value.one and "'b'" in caught.value.other and "annotated" in caught.value.other
    assert len(caught.value.chain) == 2 and caught.value.remedies


def test_a_result_that_is_fixed_is_read_where_it_lies() -> None:
    text = "g (float[2] x) => (float[2] y) {\n p = Neg(x)\n y = Exp(p)\n}"
    model = parse(text)
    on_device("p", "cpu", model=model, constrain_result=True)
    assert where(GPU(model))["y"] == "cpu:0"
    on_device("y", "cuda", model=model)
    with pytest.raises(DeviceConflict, match="leave out constrain_result"):
        GPU(model)
    on_device("p", "cpu", model=model)
    assert copied(GPU(model)) == [("p", "cpu:0", "cuda:0")]


def test_sequences_are_not_copied() -> None:
    text = """g (float[2] x) => (float[2] y) {
        s = SequenceConstruct(x, x)
        i = Constant <value_int = 0> ()
        y = SequenceAt(s, i)
    }"""
    assert where(plan(text, y="cpu"))["s"] == "cpu:0"
    model = parse(text)
    on_device("s", "cpu", model=model)
    on_device("y", "cuda", model=model)
    with pytest.raises(DeviceConflict, match="sequences, optionals, maps and strings are never copied") as caught:
        GPU(model)
    assert any("cannot be copied" in step for step in caught.value.chain)


def test_a_chain_names_every_step_between_the_fixed_ends() -> None:
    text = """g (float[2] x) => (float[2] y) {
        s = SequenceConstruct(x, x)
        t = SequenceInsert(s, x)
        u = SequenceInsert(t, x)
        i = Constant <value_int = 0> ()
        y = SequenceAt(u, i)
    }"""
    model = parse(text)
    on_device("s", "cpu", model=model)
    on_device("y", "cuda", model=model)
    with pytest.raises(DeviceConflict) as caught:
        GPU(model)
    assert [step.count("cannot be copied") for step in caught.value.chain] == [1, 1, 1]


def test_an_output_that_is_an_input_cannot_be_elsewhere() -> None:
    model = parse("g (float[2] x) => (float[2] x, float[2] y) { y = Neg(x) }")
    on_device("x", "cpu", model=model)
    require_output(model, "x", "cuda")
    with pytest.raises(DeviceConflict):
        GPU(model)


def test_devices_that_are_not_configured_are_refused_with_the_node() -> None:
    model = parse(DIAMOND)
    on_device("left", "cpu:3", model=model)
    with pytest.raises(TargetError, match=r"'left' \(Add\).*cpu:3.*configured"):
        GPU(model)


def test_unknown_names_are_refused_with_near_ones() -> None:
    model = parse(DIAMOND)
    with pytest.raises(ConfigError, match="'left'"):
        on_device("lefd", "cpu", model=model)
    with pytest.raises(ConfigError, match="no output called 'z'"):
        require_output(model, "z", "cpu")


# Why


def test_why_a_value_is_where_it_is() -> None:
    model = parse("g (float[2] x) => (float[2] z) {\n a = Relu(x)\n b = Neg(a)\n z = Sigmoid(b)\n}")
    on_device("z", "cpu", model=model)
    plan = DevicePlan(model, CompilationConfig.of(["cuda", "cpu"], default="cuda"))
    lines = plan.why(values_of(model)["a"]).split("\n")
    assert lines[0] == "'a' (Relu) is in cpu:0[llvm]"
    assert "input 0 of 'b' (Neg) is 'a'" in lines[1] and "input 0 of 'z' (Sigmoid) is 'b'" in lines[2]
    assert lines[3] == "  'z' (Sigmoid) has device cpu: annotated on_device"
    assert "an input" in plan.why(values_of(model)["x"])


def test_why_the_default_and_why_a_shape() -> None:
    model = parse(SHAPES)
    plan = DevicePlan(model, CompilationConfig.of(["cuda", "cpu"], default="cuda"))
    assert "the default" in plan.why(values_of(model)["d"])
    assert "computes shapes" in plan.why(values_of(model)["t"])


def test_why_a_copy_is_there_also_from_a_file() -> None:
    model = parse(DIAMOND)
    on_device("left", "cpu", model=model)
    plan = DevicePlan(model, CompilationConfig.of(["cuda", "cpu"], default="cuda"))
    (copy,) = plan.copies()
    text = plan.why_copy(copy)
    assert "'left' lies in cpu:0[llvm]" in text and "annotated on_device" in text and "'y' (Sub)" in text
    (node,) = copies_of(GPU(model))
    assert node.metadata_props["se_scope_why"] == text


# After lowering


KERNELS = """g (float[2] x, float[2] y) => (float[2] o) {
    a = Neg(x)
    b = collage.gem(a, y)
    c = Abs(b)
    o = collage.gem(c, y)
}
<domain: "collage", opset_import: ["" : 20]> gem (p, q) => (r) { r = Add(p, q) }"""
KERNEL_HEADER = '<ir_version: 10, opset_import: ["" : 20, "collage" : 1]>\n'


def lowered(**memories: str) -> ir.Model:
    model = parse(KERNELS, KERNEL_HEADER)
    (function,) = model.functions.values()
    function.metadata_props["Primitive"] = "1"
    for formal, memory in memories.items():
        demand_memory_scope(function, formal, memory)
    return model


def test_memories_that_kernels_demand_flow_through_the_model() -> None:
    model = GPU(lowered(p="texture", q="global", r="texture"))
    simulate_kernels(model)
    assert where(model) == {
        **dict.fromkeys(("x", "a", "b", "c", "o"), "cuda:0/texture"),
        "y": "cuda:0/global",
    }


def test_memories_that_disagree_are_copied_between() -> None:
    model = GPU(lowered(p="texture", q="global", r="global"))
    simulate_kernels(model)
    assert len(copied(model)) == 1
    ((_, src, dst),) = copied(model)
    assert (src, dst) == ("cuda:0/global", "cuda:0/texture")


def simulate_kernels(model: ir.Model) -> None:
    """Every argument of a kernel lies in the memory that it demands."""
    for node in model.graph:
        function = model.functions[node.op_identifier()] if node.op_type == "gem" else None
        for formal, actual in zip(function.inputs if function else [], node.inputs, strict=False):
            demanded = function.metadata_props.get(f"memory_scope:{formal.name}")
            assert planned_value_scope(actual).memory_scope == demanded


def test_planning_again_after_lowering_refines_what_was_planned() -> None:
    model = parse(KERNELS, KERNEL_HEADER)
    (function,) = model.functions.values()
    function.metadata_props["Primitive"] = "1"
    first = GPU(model)
    assert where(first)["b"] == "cuda:0"
    (function,) = (f for f in first.functions.values() if f.name == "gem")
    demand_memory_scope(function, "p", "texture")
    demand_memory_scope(function, "r", "global")
    second = GPU(first)
    assert where(second)["a"] == "cuda:0/texture" and where(second)["b"] == "cuda:0/global"
    assert ir.to_proto(GPU(second)) == ir.to_proto(second)


def test_a_memory_that_was_planned_stays() -> None:
    model = lowered(p="texture")
    on_device("a", "cuda:0/global", model=model)
    planned = GPU(model)
    assert where(planned)["a"] == "cuda:0/global"
    assert ("a", "cuda:0/global", "cuda:0/texture") in copied(planned)


def test_kernels_made_by_collage_get_the_scope_of_their_target_and_neighbours() -> None:
    model = plan(DIAMOND, PlanDevices(["cpu:0", "cpu:1", "cuda"]), left="cpu:1")
    graph = DataflowGraph(model)
    index = next(i for i, node in enumerate(graph.nodes) if node.op_type == "Sub")
    kernel = KernelSpec(SubGraph(graph, [index]), "sub", {"target": "llvm -compiler=some"})
    again = PlanDevices(["cpu:0", "cpu:1", "cuda"])(partition(model, [kernel]))
    call = next(node for node in again.graph if node.op_type == "sub")
    assert str(planned_scope(call)) == "cpu:0[llvm -compiler=some]"


def test_shapes_that_only_a_kernel_reads_as_shapes_stay_on_the_host() -> None:
    model = GPU(parse(SHAPES))
    graph = DataflowGraph(model)
    index = next(i for i, node in enumerate(graph.nodes) if node.op_type == "Reshape")
    again = GPU(partition(model, [KernelSpec(SubGraph(graph, [index]), "kernel", {"target": "cuda"})]))
    assert where(again)["t"] == "cpu:0" and where(again)["y"] == "cuda:0" and not copied(again)


def test_a_kernel_of_another_target_contradicts_the_annotation() -> None:
    model = lowered()
    (function,) = model.functions.values()
    function.metadata_props["target"] = "llvm"
    on_device("b", "cuda", model=model)
    with pytest.raises(DeviceConflict, match="compiled for"):
        GPU(model)


# The pass


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
