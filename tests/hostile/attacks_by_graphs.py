"""Attacks by the graph: what expands, nests or refers to itself without end, and what is no valid model."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.hostile.corpus import attack, constant, model, save


def _bomb(levels: int) -> onnx.ModelProto:
    functions = []
    for level in range(levels):
        inner = f"f{level - 1}" if level else "Relu"
        domain = "local" if level else ""
        nodes = [
            helper.make_node(inner, ["a"], ["b"], domain=domain),
            helper.make_node(inner, ["b"], ["c"], domain=domain),
        ]
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        functions.append(helper.make_function("local", f"f{level}", ["a"], ["c"], nodes, imports))
    return model([helper.make_node(f"f{levels - 1}", ["x"], ["y"], domain="local")], functions=functions)


@attack
def function_bomb(folder):
    return save(_bomb(24), folder)


@attack
def function_bomb_of_a_thousand_levels(folder):
    return save(_bomb(1000), folder)


@attack
def thousands_of_bodies(folder):
    def body(op: str, result: str) -> onnx.GraphProto:
        value = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["x"], [result])], "body", [], [value])

    nodes = [
        helper.make_node("If", ["c"], [f"o{i}"], then_branch=body("Relu", f"t{i}"), else_branch=body("Neg", f"e{i}"))
        for i in range(8000)
    ]
    total = helper.make_node("Sum", [f"o{i}" for i in range(8000)], ["y"])
    return save(model([*nodes, total], initializers=[constant("c", True, np.bool_)]), folder)


@attack
def recursive_function(folder):
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    nodes = [helper.make_node("f", ["a"], ["b"], domain="local")]
    function = helper.make_function("local", "f", ["a"], ["b"], nodes, imports)
    return save(model([helper.make_node("f", ["x"], ["y"], domain="local")], functions=[function]), folder)


@attack
def deep_nesting(folder):
    def branch(depth: int) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"o{depth}", TensorProto.FLOAT, None)
        if depth == 0:
            return helper.make_graph([helper.make_node("Relu", ["x"], ["o0"])], "leaf", [], [out])
        body = branch(depth - 1)
        node = helper.make_node("If", ["c"], [f"o{depth}"], then_branch=body, else_branch=body)
        return helper.make_graph([node], f"b{depth}", [], [out])

    outer = branch(1)
    for _ in range(29):
        inner = onnx.GraphProto()
        inner.CopyFrom(outer)
        out = f"{inner.output[0].name}n"
        leaf = helper.make_graph(
            [helper.make_node("Relu", ["x"], [f"{out}e"])],
            "e",
            [],
            [helper.make_tensor_value_info(f"{out}e", TensorProto.FLOAT, None)],
        )
        node = helper.make_node("If", ["c"], [out], then_branch=inner, else_branch=leaf)
        outer = helper.make_graph([node], "n", [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)])
    nodes = [*outer.node, helper.make_node("Identity", [outer.output[0].name], ["y"])]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    return save(model(nodes, inputs=inputs), folder)


@attack
def too_many_nodes(folder):
    chain = [helper.make_node("Relu", [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(250_000)]
    return save(model([*chain, helper.make_node("Relu", ["v250000"], ["y"])]), folder)


@attack
def constant_of_two_values(folder):
    return save(model([helper.make_node("Constant", [], ["y"], value_float=1.0, value_int=2)]), folder)


@attack
def cycle(folder):
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    return save(model([*nodes, helper.make_node("Relu", ["b"], ["y"])]), folder)


@attack
def cycle_through_a_body(folder):
    body = helper.make_graph(
        [helper.make_node("Relu", ["late"], ["t"])],
        "b",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["e"])], "e", [], [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)]
    )
    nodes = [
        helper.make_node("If", ["c"], ["r"], then_branch=body, else_branch=other),
        helper.make_node("Relu", ["r"], ["late"]),
        helper.make_node("Relu", ["late"], ["y"]),
    ]
    return save(model(nodes, initializers=[constant("c", True, np.bool_)]), folder)


@attack
def duplicate_output(folder):
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]
    return save(model(nodes), folder)


@attack
def output_named_like_an_input(folder):
    return save(model([helper.make_node("Relu", ["x"], ["x"]), helper.make_node("Relu", ["x"], ["y"])]), folder)


@attack
def duplicate_initializers(folder):
    pair = [constant("w", np.ones(4), np.float32), constant("w", np.zeros(4), np.float32)]
    return save(model([helper.make_node("Add", ["x", "w"], ["y"])], initializers=pair), folder)


@attack
def duplicate_functions(folder):
    function = _bomb(1).functions[0]
    return save(model([helper.make_node("f0", ["x"], ["y"], domain="local")], functions=[function, function]), folder)


@attack
def undefined_input(folder):
    return save(model([helper.make_node("Add", ["x", "ghost"], ["y"])]), folder)


@attack
def undefined_capture(folder):
    body = helper.make_graph(
        [helper.make_node("Relu", ["ghost"], ["t"])],
        "b",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    return save(model([node], initializers=[constant("c", True, np.bool_)]), folder)


@attack
def undefined_graph_output(folder):
    return save(model([helper.make_node("Relu", ["x"], ["z"])]), folder)


@attack
def unknown_operator(folder):
    return save(model([helper.make_node("Explode", ["x"], ["y"], name="boom")]), folder)


@attack
def future_opset(folder):
    return save(model([helper.make_node("Relu", ["x"], ["y"])], opset=9000), folder)


@attack
def missing_opset_import(folder):
    return save(model([helper.make_node("Thing", ["x"], ["y"], domain="nowhere")]), folder)


@attack
def wrong_attribute_type(folder):
    return save(model([helper.make_node("Concat", ["x", "x"], ["y"], axis="zero")]), folder)


@attack
def missing_attribute(folder):
    return save(model([helper.make_node("Concat", ["x", "x"], ["y"])]), folder)


@attack
def repeated_attribute(folder):
    node = helper.make_node("Concat", ["x", "x"], ["y"], axis=0)
    node.attribute.add().CopyFrom(node.attribute[0])
    return save(model([node]), folder)
