"""Shape computations are the host's."""

from __future__ import annotations

from tests.unit.device.scenarios import GPU, SHAPES, copied, plan, where
from tests.unit.device.simulation import parse

from collage.device import (
    PlanDevices,
    register_host_operands,
)


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
