"""Attacks by sizes that operators compute: gigabytes that only show when somebody follows the shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.hostile.corpus import attack, constant, laborious, model, save


@attack
def huge_constant_of_shape(folder):
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["z"]), helper.make_node("ReduceSum", ["z"], ["y"], keepdims=0)]
    return save(model(nodes, initializers=[constant("s", [2**40])]), folder)


@attack
def huge_expand(folder):
    nodes = [helper.make_node("Expand", ["x", "s"], ["z"]), helper.make_node("ReduceSum", ["z"], ["y"], keepdims=0)]
    return save(model(nodes, initializers=[constant("s", [2**30, 4])]), folder)


@attack
def huge_lengths_beside_a_length_of_zero(folder):
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [0, 2**40, 2**40])
    return save(model([helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], inputs=[value]), folder)


@attack
def doubling_constants(folder):
    nodes = [helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(40)]
    nodes += [helper.make_node("ReduceSum", ["c40"], ["s"], keepdims=0), helper.make_node("Add", ["x", "s"], ["y"])]
    return save(model(nodes, initializers=[constant("c0", [1.0], np.float32)]), folder)


def _text(text: str, folder: Path) -> Path:
    return save(onnx.parser.parse_model(text), folder)


@laborious
def long_vector_in_a_body(folder):
    """Propagates the contents of what a body says it is given: 2^31 lengths, though the value given has 4."""
    path = _text(
        """<ir_version: 9, opset_import: ["" : 17]>
        carries (float[4] x) => (float[4] y) <int64 three = {3}, bool true = {1}> {
            y = Loop (three, true, x) <
                body = step (int64 i, bool going, float[2147483648] carried) => (bool on, float[4] next) {
                    on = Identity (going)
                    index = Cast <to = 1> (i)
                    next = Add (carried, index)
                }
            >
        }""",
        folder,
    )
    proto = onnx.load(path)
    body = proto.graph.node[0].attribute[0].g
    body.input[0].type.Clear()
    body.input[0].type.sparse_tensor_type.SetInParent()
    return save(proto, folder)


@laborious
def long_vector_that_might_be_a_shape(folder):
    return _text(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (int64[1000000000] s) => (float y) {
            twice = Add (s, s)
            z = ConstantOfShape (twice)
            y = ReduceSum <keepdims = 0> (z)
        }""",
        folder,
    )


@laborious
def long_range_that_might_be_a_shape(folder):
    return _text(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (float[1] x) => (float y) <int64 zero = {0}, int64 many = {1000000000}, int64 one = {1}> {
            r = Range (zero, many, one)
            s = Add (r, r)
            z = Expand (x, s)
            y = ReduceSum <keepdims = 0> (z)
        }""",
        folder,
    )


@laborious
def long_vector_in_a_function_of_an_old_operator_set(folder):
    """Expanded on the way in, by a converter of ONNX's."""
    return _text(
        """<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
        g (int64[1000000000] s) => (float y) { y = local.f (s) }
        <domain: "local", opset_import: ["" : 12]>
        f (s) => (y) { t = Add (s, s) z = ConstantOfShape (t) y = ReduceSum <keepdims = 0> (z) }""",
        folder,
    )


@laborious
def doubling_lengths_in_a_body(folder):
    """Every length is told by the one before it, and contents are propagated as they double."""
    lines = "\n".join(f"c{i + 1} = Concat <axis = 0> (c{i}, c{i})" for i in range(29))
    return _text(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        g (int64[1] c0, bool c) => (float y) {{
            y = If (c) <
                then_branch = big () => (float t) {{
                    {lines}
                    z = ConstantOfShape (c29)
                    t = ReduceSum <keepdims = 0> (z)
                }},
                else_branch = small () => (float e) {{ e = Cast <to = 1> (c0) }}
            >
        }}""",
        folder,
    )


@laborious
def many_vectors_that_might_be_shapes(folder):
    """None is too long for a shape, but there are a thousand."""
    nodes = [helper.make_node("Add", [f"v{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(1000)]
    inputs = [helper.make_tensor_value_info("v0", TensorProto.INT64, [2**17])]
    outputs = [helper.make_tensor_value_info("v1000", TensorProto.INT64, None)]
    return save(model(nodes, inputs=inputs, outputs=outputs), folder)


@laborious
def vectors_of_vectors_of_an_old_operator_set(folder):
    return _text(
        """<ir_version: 9, opset_import: ["" : 10]>
        g (int64[1000000000] s) => (int64[n] z) { t = Add (s, s) z = Add (t, t) }""",
        folder,
    )


@attack
def huge_value_in_a_body(folder):
    return _text(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (bool c) => (float y) {
            y = If (c) <
                then_branch = big () => (float t) {
                    s = Constant <value = int64[1] {1099511627776}> ()
                    z = ConstantOfShape (s)
                    t = ReduceSum <keepdims = 0> (z)
                },
                else_branch = small () => (float e) { e = Constant <value_float = 1.0> () }
            >
        }""",
        folder,
    )
