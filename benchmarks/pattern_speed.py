"""Seconds of one rewrite of a large model: a rule of Collage's against the same rule of onnxscript's, in turns.

The model has blocks of attention of fifteen operators each. Both rules make one operator of six, wherever they match. onnxscript
changes the model that it is given. Collage copies it first, and is timed without the copy too.

::

    python -m benchmarks.pattern_speed [--blocks N] [--rounds N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import pattern as theirs
from onnxscript.rewriter import rewrite as rewrite_by_theirs

from collage.graph import copy_model
from collage.pattern import is_op, rewrite, rule

WIDTH = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=400, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    given = parser.parse_args()
    model = blocks(given.blocks)
    ways = {"collage": by_collage(), "in place": by_collage(in_place=True), "onnxscript": by_onnxscript()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.rounds):
        for name, way in ways.items():
            copy = copy_model(model)
            began = time.perf_counter()
            result = way(copy)
            taken[name].append(time.perf_counter() - began)
            found = sum(node.op_type == "MyAttention" for node in result.graph)
            assert found == given.blocks, f"{name} rewrote {found} of {given.blocks}"
    for name, seconds in taken.items():
        print(
            f"{name:<10} {np.median(seconds):.3f} s on {len(model.graph)} nodes ({min(seconds):.3f} to {max(seconds):.3f})"
        )
    for name in ("collage", "in place"):
        ratio = np.median(np.array(taken[name]) / np.array(taken["onnxscript"]))
        print(f"{name:<10} takes {ratio:.2f} times as long as onnxscript")
    return 0


def blocks(count: int) -> ir.Model:
    """Return a chain of attentions, each with projections and biases before it and a residual after it."""
    kind, shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([1, WIDTH, WIDTH])
    x = ir.Value(name="x", type=kind, shape=shape)
    arrays = {"w": np.eye(WIDTH, dtype=np.float32), "b": np.ones(WIDTH, np.float32), "scale": np.float32(0.5)}
    arrays["mask"] = np.zeros((1, WIDTH, WIDTH), np.float32)
    tensors = {name: ir.tensor(array, name=name) for name, array in arrays.items()}
    constants = {n: ir.Value(name=n, type=kind, shape=t.shape, const_value=t) for n, t in tensors.items()}
    nodes: list[ir.Node] = []

    def add(op_type: str, *inputs: ir.Value, **attributes: object) -> ir.Value:
        node = ir.node(op_type, inputs, attributes or None)
        node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = f"v{len(nodes)}", kind, shape
        nodes.append(node)
        return node.outputs[0]

    value = x
    for _ in range(count):
        q, k, v = (add("Add", add("MatMul", value, constants["w"]), constants["b"]) for _ in range(3))
        scores = add("Mul", add("MatMul", q, add("Transpose", k, perm=[0, 2, 1])), constants["scale"])
        weights = add("Softmax", add("Add", scores, constants["mask"]), axis=-1)
        mixed = add("MatMul", weights, v)
        value = add("Relu", add("Add", add("MatMul", mixed, constants["w"]), value))
    graph = ir.Graph([x], [value], nodes=nodes, initializers=list(constants.values()), opset_imports={"": 20, "my": 1})
    return ir.Model(graph, ir_version=10)


def by_collage(*, in_place: bool = False) -> Callable[[ir.Model], ir.Model]:
    """Return the rewrite by a rule of Collage's."""

    def attention(q, k, v, scale, mask):  # type: ignore[no-untyped-def]
        scores = is_op("Mul")(is_op("MatMul")(q, is_op("Transpose")(k)), scale)
        return is_op("MatMul")(is_op("Softmax")(is_op("Add")(scores, mask)), v)

    made = rule(attention, lambda op, q, k, v, scale, mask: op.node("MyAttention", q, k, v, scale, mask, domain="my"))
    return lambda model: rewrite(model, made, in_place=in_place).model


def by_onnxscript() -> Callable[[ir.Model], ir.Model]:
    """Return the rewrite by a rule of onnxscript's."""

    def attention(op, q, k, v, scale, mask):  # type: ignore[no-untyped-def]
        scores = op.Mul(op.MatMul(q, op.Transpose(k)), scale)
        return op.MatMul(op.Softmax(op.Add(scores, mask)), v)

    def replacement(op, q, k, v, scale, mask):  # type: ignore[no-untyped-def]
        return op.MyAttention(q, k, v, scale, mask, _domain="my")

    made = theirs.RewriteRule(attention, replacement)
    return lambda model: rewrite_by_theirs(model, [made])


if __name__ == "__main__":
    raise SystemExit(main())
