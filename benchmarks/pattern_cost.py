"""What matching costs in the cases in which other matchers explode.

Run: ``python benchmarks/pattern_cost.py``. Prints one line per case: median of five runs in milliseconds of processor time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import onnx_ir as ir

from collage.pattern import (
    MatchBudgetExceeded,
    NonLeafExternUse,
    attr_eq,
    fork_to,
    is_const,
    is_op,
    library,
    make,
    together,
    wildcard,
)


def copies(count: int) -> ir.Graph:
    """``count`` times Conv, Add, Relu, side by side on one input."""
    x = ir.Value(name="x")
    weight = ir.Value(name="w", const_value=ir.tensor([1.0], name="w"))
    nodes, outputs = [], []
    for index in range(count):
        conv = ir.Node("", "Conv", [x, weight], name=f"conv{index}")
        add = ir.Node("", "Add", [conv.outputs[0], weight], name=f"add{index}")
        relu = ir.Node("", "Relu", [add.outputs[0]], name=f"relu{index}")
        nodes += [conv, add, relu]
        outputs.append(relu.outputs[0])
    _name(nodes)
    return ir.Graph([x], outputs, nodes=nodes, initializers=[weight], opset_imports={"": 20}, name="copies")


def transformer(layers: int) -> ir.Graph:
    """A chain of attention-like layers of 30 nodes each."""
    x = ir.Value(name="x")
    weights = [ir.Value(name=f"w{i}", const_value=ir.tensor([0.5], name=f"w{i}")) for i in range(4)]
    nodes: list[ir.Node] = []

    def op(op_type: str, *inputs: ir.Value) -> ir.Value:
        nodes.append(ir.Node("", op_type, inputs, name=f"n{len(nodes)}"))
        return nodes[-1].outputs[0]

    value = x
    for _ in range(layers):
        start = value
        q, k, v = (op("Transpose", op("Reshape", op("Add", op("MatMul", start, w), w), w)) for w in weights[:3])
        scores = op("Softmax", op("Mul", op("MatMul", q, k), weights[0]))
        mixed = op("Reshape", op("Transpose", op("MatMul", scores, v)), weights[1])
        value = op("Add", op("MatMul", mixed, weights[3]), start)
        hidden = op("Add", op("MatMul", value, weights[0]), weights[0])
        gate = op("Add", op("Erf", op("Div", hidden, weights[1])), weights[2])
        gelu = op("Mul", op("Mul", hidden, gate), weights[3])
        value = op("Add", op("MatMul", gelu, weights[0]), value)
    _name(nodes)
    return ir.Graph([x], [value], nodes=nodes, initializers=weights, opset_imports={"": 20}, name="transformer")


def fans(groups: int, size: int) -> ir.Graph:
    """``groups`` times Tanh, each used by ``size`` Relu."""
    x = ir.Value(name="x")
    sources = [ir.Node("", "Tanh", [x]) for _ in range(groups)]
    users = [ir.Node("", "Relu", [source.outputs[0]]) for source in sources for _ in range(size)]
    _name([*sources, *users])
    outputs = [node.outputs[0] for node in users]
    return ir.Graph([x], outputs, nodes=[*sources, *users], opset_imports={"": 20}, name="fans")


def _name(nodes: list[ir.Node]) -> None:
    for index, node in enumerate(nodes):
        node.outputs[0].name = f"v{index}"


def chain(last: str) -> object:
    return is_op("Conv")(wildcard(), is_const()) >> is_op("Add") >> is_op(last)


def report(text: str, run: Callable[[], object]) -> None:
    times = []
    for _ in range(5):
        start = time.process_time()
        result = run()
        times.append(time.process_time() - start)
    print(f"{statistics.median(times) * 1e3:9.1f} ms  {text}: {result}")


def main() -> None:
    forty, wide = copies(40), copies(160)
    independent = together(*(chain("Relu") for _ in range(4)), chain("Tanh"))
    report("5 independent roots, one of an absent type, 40 copies", lambda: len(independent.find_all(forty)))
    unconnected = together(*(chain("Relu") for _ in range(4)), chain("Relu").last ^ is_op("Add"))
    report("5 independent roots, one with an absent edge, 40 copies", lambda: len(unconnected.find_all(forty)))
    shapeless = together(*(chain("Relu") for _ in range(5)))
    shapeless.members[0].same_shape(*shapeless.members[1:])
    report("5 independent roots of equal, but unknown, shapes, 40 copies", lambda: len(shapeless.find_all(forty)))
    tapped = together(*(chain("Relu") for _ in range(5)))
    tapped.members[4].add_graph_constraint(NonLeafExternUse(True))
    report(
        "5 independent roots, inner nodes of which must be used elsewhere, 40 copies",
        lambda: len(tapped.find_all(forty)),
    )
    for index, node in enumerate(forty):
        node.attributes.add(ir.AttrInt64("k", index))
    alike = together(attr_eq(*(chain("Relu") for _ in range(5))))
    report("5 independent roots of equal attributes, all different, 40 copies", lambda: len(alike.find_all(forty)))
    for text, tail in (("an absent type", "Tanh"), ("an absent edge", "Conv")):
        x = wildcard()
        heads = [is_op("Relu")(is_op("Add")(is_op("Conv")(x, is_const()), wildcard())) for _ in range(3)]
        last = is_op(tail)(is_op("Add")(is_op("Conv")(x, is_const()), wildcard()), ...)
        outputs = together(*heads, last)
        report(f"4 outputs on one input, one of {text}, 160 candidates", lambda p=outputs: len(p.find_all(wide)))
    x = wildcard()
    late = together(*(is_op("Relu")(is_op("Add")(is_op("Conv")(x, is_const()), is_const())) for _ in range(4)))
    late.members[3].extern_use(False)
    report("4 outputs, the fourth refused by its external use, 160 candidates", lambda: _counted(late, wide))
    groups, source = fans(40, 4), wildcard()
    found = together(*(is_op("Relu")(source) for _ in range(4)))
    report("4 outputs, 40 groups of 4 candidates, all assignments", lambda: len(found.find_all(groups)))
    report("4 outputs, 40 groups of 4 candidates, disjoint", lambda: len(found.find_all(groups, "disjoint")))
    heads = fork_to(make(9, is_op("Relu")))
    report("9 interchangeable heads, maximal", lambda: len(heads.find_all(fans(1, 9), "maximal")))
    model = transformer(3000 // 26)
    patterns = library.patterns()
    report(
        f"all {len(patterns)} library patterns, {len(model)} nodes",
        lambda: sum(len(pattern.find_all(model, "maximal")) for pattern in patterns.values()),
    )
    endless = together(*(is_op("Relu") for _ in range(6)))
    report("6 unconnected patterns on 160 nodes, stopped", lambda: _counted(endless, wide, 100_000))


def _counted(pattern: object, graph: ir.Graph, budget: int | None = None) -> str:
    try:
        return str(len(pattern.find_all(graph, budget=budget)))
    except MatchBudgetExceeded as error:
        return f"stopped by the budget with {len(error.found)} matches"


if __name__ == "__main__":
    main()
