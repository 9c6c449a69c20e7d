"""Small models for scenarios of device planning, and what to ask of them when they are planned."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from tests.unit.device.simulation import copies_of, parse, simulate

from collage.device import (
    PlanDevices,
    copy_scopes,
    on_device,
    planned_value_scope,
)
from collage.transform import InferType

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


CALLS = """g (float[2] a, float[2] b) => (float[2] y, float[2] z) {
    s = Neg(a)
    y = f.both(s, b)
    t = Abs(b)
    z = f.both(t, a)
}
<domain: "f", opset_import: ["" : 20]>
both (p, q) => (r) { m = Add(p, q) n = Exp(m) r = Relu(n) }"""

BRANCHES = """g (bool c, float[2] x, float[2] z) => (float[2] y) {
    s = Neg(x)
    h = If (c) <
        then_branch = t () => (float[2] p) { p = Add(s, z) },
        else_branch = e () => (float[2] q) { o = Abs(s) q = Exp(o) }
    >
    y = Neg(h)
}"""

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

SHAPES = """g (float[2,N] x, float[2,3] w) => (float[N,2] y) {
    d = Neg(x)
    s = Shape(d)
    i = Constant <value_ints = [1, 0]> ()
    t = Gather(s, i)
    y = Reshape(d, t)
}"""
