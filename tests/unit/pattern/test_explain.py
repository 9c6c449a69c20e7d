"""``explain`` names the furthest attempt, what failed there, and the concrete node, attribute or user."""

from __future__ import annotations

import json

import onnx_ir as ir
import pytest

from collage.pattern import NonLeafExternUse, closest, explain, is_const, is_input, is_op, wildcard

from .graphs import graph

CBR = "c = Conv{kernel_shape=[1 1]}(x, w)\nb = Add(c, w)\ny = Relu(b)"


def cbr(outputs: str = "y") -> ir.Graph:
    return graph(CBR, outputs=outputs, initializers="w")


def test_a_match_is_said_to_be_one() -> None:
    found = explain(is_op("Conv") >> is_op("Add"), cbr())
    assert found.matched and len(found.bound) == found.nodes == 2


@pytest.mark.parametrize(
    ("pattern", "outputs", "share", "words"),
    [
        (lambda: is_op("Conv") >> is_op("Add") >> is_op("Tanh"), "y", "2 of 3", ["Tanh was wanted", "n_y", "Relu"]),
        (lambda: is_op("Conv").has_attr(kernel_shape=(3, 3)), "y", "0 of 1", ["n_c", "(3, 3)", "(1, 1)"]),
        (lambda: is_op("Conv") >> is_op("Add"), "y c", "2 of 2", ["n_c", "alone", "graph output"]),
        (lambda: (is_op("Conv") ^ is_op("Add")).first.extern_use(True), "y", "2 of 2", ["n_c", "must", "no node"]),
        (lambda: is_op("Conv").no_consumer(is_op("Add")), "y", "1 of 1", ["n_c", "Add", "n_b"]),
        (lambda: is_op("Add")(is_op("Conv"), is_op("Conv")), "y", "", ["Conv was wanted", "'w'"]),
        (lambda: is_op("Relu")(wildcard(), is_const()), "y", "1 of 1", ["n_y"]),
        (lambda: is_op("Conv").has_dtype("float16"), "y", "0 of 1", ["FLOAT16", "unknown"]),
    ],
)
def test_the_failed_constraint_and_its_place_are_named(pattern, outputs, share, words) -> None:
    found = explain(pattern(), cbr(outputs))
    assert not found.matched
    assert share in found.message
    for word in words:
        assert word in found.message, (word, found.message)
    assert json.loads(found.to_json())["message"] == found.message
    assert found.to_text().splitlines()[0] == found.message


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (lambda: is_op("conv"), "Conv 'n_c' is a Conv (did you mean 'Conv'?)"),
        (lambda: is_op("Relu")(is_op("Split")[1]), "Split was wanted, but Add 'n_b' is a Add"),
        (lambda: is_op("Conv")(wildcard(), is_input()), "; value 'w': a graph input was wanted, but it is computed"),
        (lambda: is_op("Relu").dominates(is_op("Conv"), is_op("Tanh")), "but Add 'n_b' is not allowed on the path"),
        (lambda: is_op("Relu").where(lambda v: False, "is rare"), "Relu at Relu 'n_y': is rare was wanted"),
    ],
)
def test_wording(pattern, message) -> None:
    found = explain(pattern(), cbr())
    assert message in found.message, found.message
    assert found.at in ("n_c", "n_b", "n_y", "w")


def test_attributes_that_differ_are_shown_with_both_values() -> None:
    g = graph("a = LeakyRelu{alpha=0.5}(x)\ny = LeakyRelu{alpha=0.25}(a)")
    a, b = is_op("LeakyRelu"), is_op("LeakyRelu")
    a.attr_eq(b)
    _ = a ^ b
    message = explain(a, g).message
    assert "alpha" in message and "0.5" in message and "0.25" in message


def test_the_outside_user_is_named() -> None:
    pattern = is_op("Conv") ^ is_op("Add") ^ is_op("Relu")
    pattern.add_graph_constraint(NonLeafExternUse(False))
    g = graph(CBR + "\nt = Tanh(b)", outputs="y t", initializers="w")
    assert "Tanh 'n_t'" in explain(pattern, g).message


def test_chosen_alternatives_count_as_wanted() -> None:
    tail = is_op("Conv") | is_op("Relu")(is_op("Add")(is_op("Gemm"), is_const()))
    found = explain(is_op("Relu")(is_op("Add")(tail, is_const())), graph(CBR.replace("Conv", "Tanh"), initializers="w"))
    assert "matched 2 of 3" in found.message and "Tanh 'n_c'" in found.message


def test_near_keeps_to_one_place() -> None:
    g = graph("a = Relu(x)\nb = Tanh(a)\nc = Sigmoid(x)\ny = Tanh(c)", outputs="b y")
    pattern = is_op("Tanh")(is_op("Relu"))
    assert explain(pattern, g).matched
    found = explain(pattern, g, near=g.node(3))
    assert not found.matched and "Sigmoid" in found.message


def test_closest_ranks_near_misses() -> None:
    patterns = {
        "far": is_op("Gemm") >> is_op("Tanh") >> is_op("Neg"),
        "near": is_op("Conv") >> is_op("Add") >> is_op("Tanh"),
        "there": is_op("Conv") >> is_op("Add") >> is_op("Relu"),
    }
    assert [name for name, _ in closest(patterns, cbr())] == ["there", "near", "far"]


def test_explanations_survive_the_budget() -> None:
    g = graph("\n".join(f"r{i} = Relu(x)" for i in range(30)), outputs=" ".join(f"r{i}" for i in range(30)))
    relus = [is_op("Relu") for _ in range(5)]
    last = relus[0].distinct(*relus[1:])
    relus[4].extern_use(False)
    found = explain(last, g, budget=5000)
    assert not found.matched and not found.complete and "budget" in found.to_text()
