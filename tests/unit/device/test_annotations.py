"""Planning by defaults, annotations and copies that are in the model already."""

from __future__ import annotations

from tests.unit.device.scenarios import DIAMOND, GPU, copied, plan, values_of, where
from tests.unit.device.simulation import copies_of, parse, simulate

from collage.device import (
    PlanDevices,
    device_copy,
    on_device,
    planned_scope,
    require_output,
)
from collage.transform import PassContext

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
    assert [value.const_value.name for value in twins] == [value.name for value in twins]
    assert [value.const_value.numpy().tolist() for value in twins] == [[1, 2], [1, 2]]


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
