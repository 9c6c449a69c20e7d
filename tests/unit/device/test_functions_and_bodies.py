"""Unification through calls, branches and loops."""

from __future__ import annotations

import pytest
from tests.unit.device.scenarios import BRANCHES, CALLS, LOOP, copied, plan, where
from tests.unit.device.simulation import copies_of

from collage.device import (
    DeviceConflict,
)

# Functions


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
