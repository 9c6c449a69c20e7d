"""Conflicts and questions: the chain of causes, and what would resolve it."""

from __future__ import annotations

import pytest
from tests.unit.device.scenarios import DIAMOND, GPU, SHAPES, copied, plan, values_of, where
from tests.unit.device.simulation import copies_of, parse

from collage._errors import ConfigError, TargetError
from collage.device import (
    CompilationConfig,
    DeviceConflict,
    DevicePlan,
    on_device,
    require_output,
)

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
