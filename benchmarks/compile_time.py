"""Measure what three rooms cost at compile time: passes, patterns and device planning.

::

    python -m benchmarks.compile_time --of passes [--models resnet50,bert]
    python -m benchmarks.compile_time --of patterns
    python -m benchmarks.compile_time --of devices

``passes`` prints milliseconds of empty passes on a chain of 3,000 nodes, best of twenty runs, then seconds of processor time and
rounds of the preparation of each model. ``patterns`` and ``devices`` print one line per case: median of five runs in
milliseconds of processor time. The bar of device planning is 500 ms for 3,000 nodes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from benchmarks._arguments import chosen_models, make_parser

from collage.device import CompilationConfig, DevicePlan, PartitionBySEScope, PlanDevices, on_device
from collage.frontend import read_model
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
from collage.transform import (
    PassContext,
    PassInstrument,
    Repeat,
    Sequential,
    create_function_pass,
    create_module_pass,
    default_passes,
)

NODES = 3000
IN_SEQUENCE = 100
DEVICES = ("cpu:0", "cpu:1", "cuda:0")


def report(text: str, run: Callable[[], object]) -> None:
    """Print the median processor time of five runs, and a number that the last one returned."""
    times = []
    for _ in range(5):
        start = time.process_time()
        result = run()
        times.append(time.process_time() - start)
    found = f": {result}" if isinstance(result, int | str) else ""
    print(f"{statistics.median(times) * 1e3:9.1f} ms  {text}{found}", flush=True)


def best_ms(run: Callable[[], object]) -> float:
    times = []
    for _ in range(20):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


def passes(options: argparse.Namespace) -> None:
    """Run empty passes, and the default preparation of the chosen models."""
    model = relu_chain(NODES)
    empty = create_module_pass("empty", 0, lambda mod, ctx: mod)
    empty_function = create_function_pass("empty_function", 0, lambda function, mod, ctx: function)
    looking = create_function_pass("looking", 0, lambda function, mod, ctx: (list(function), function)[1])
    sequence = Sequential([empty] * IN_SEQUENCE)
    print(f"empty module pass, {NODES} nodes:               {best_ms(lambda: empty(model)):8.4f} ms")
    print(
        f"the same, per pass of {IN_SEQUENCE} in a sequence:       {best_ms(lambda: sequence(model)) / IN_SEQUENCE:8.4f} ms"
    )
    with PassContext(instruments=[PassInstrument()] * 3, trace=lambda mod, info, is_before: None):
        print(f"the same, with three instruments and a trace: {best_ms(lambda: empty(model)):8.4f} ms")
    print(f"empty function pass:                          {best_ms(lambda: empty_function(model)):8.4f} ms")
    print(f"one that looks at the nodes, of a copy:       {best_ms(lambda: looking(model)):8.4f} ms")
    for chosen in chosen_models(options):
        print_preparation(chosen.name, read_model(chosen.path))


def print_preparation(name: str, model: ir.Model) -> None:
    preparation = default_passes()
    started = time.process_time()
    prepared = preparation(model)
    seconds = time.process_time() - started
    (repeat,) = [member for member in preparation.passes if isinstance(member, Repeat)]
    state = f"{repeat.rounds} rounds" if repeat.converged else f"no end: {', '.join(repeat.changing)}"
    print(f"prepare {name:20} {len(model.graph):5} -> {len(prepared.graph):5} nodes, {seconds:6.2f} s, {state}")


def relu_chain(nodes: int) -> ir.Model:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4]))
    made, value = [], x
    for index in range(nodes):
        made.append(ir.node("Relu", [value], name=f"n{index}"))
        value = made[-1].outputs[0]
        value.name = f"v{index}"
    return ir.Model(ir.Graph([x], [value], nodes=made, opset_imports={"": 18}, name="chain"), ir_version=10)


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
    _name_outputs(nodes)
    return ir.Graph([x], outputs, nodes=nodes, initializers=[weight], opset_imports={"": 20}, name="copies")


def attention_layers(layers: int) -> ir.Graph:
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
    _name_outputs(nodes)
    return ir.Graph([x], [value], nodes=nodes, initializers=weights, opset_imports={"": 20}, name="transformer")


def fans(groups: int, size: int) -> ir.Graph:
    """``groups`` times Tanh, each used by ``size`` Relu."""
    x = ir.Value(name="x")
    sources = [ir.Node("", "Tanh", [x]) for _ in range(groups)]
    users = [ir.Node("", "Relu", [source.outputs[0]]) for source in sources for _ in range(size)]
    _name_outputs([*sources, *users])
    outputs = [node.outputs[0] for node in users]
    return ir.Graph([x], outputs, nodes=[*sources, *users], opset_imports={"": 20}, name="fans")


def _name_outputs(nodes: list[ir.Node]) -> None:
    for index, node in enumerate(nodes):
        node.outputs[0].name = f"v{index}"


def convolution_chain(last: str) -> object:
    return is_op("Conv")(wildcard(), is_const()) >> is_op("Add") >> is_op(last)


def patterns() -> None:
    """Match patterns in the cases in which other matchers explode."""
    forty, wide = copies(40), copies(160)
    independent = together(*(convolution_chain("Relu") for _ in range(4)), convolution_chain("Tanh"))
    report("5 independent roots, one of an absent type, 40 copies", lambda: len(independent.find_all(forty)))
    unconnected = together(
        *(convolution_chain("Relu") for _ in range(4)), convolution_chain("Relu").last ^ is_op("Add")
    )
    report("5 independent roots, one with an absent edge, 40 copies", lambda: len(unconnected.find_all(forty)))
    shapeless = together(*(convolution_chain("Relu") for _ in range(5)))
    shapeless.members[0].same_shape(*shapeless.members[1:])
    report("5 independent roots of equal, but unknown, shapes, 40 copies", lambda: len(shapeless.find_all(forty)))
    tapped = together(*(convolution_chain("Relu") for _ in range(5)))
    tapped.members[4].add_graph_constraint(NonLeafExternUse(True))
    report(
        "5 independent roots, inner nodes of which must be used elsewhere, 40 copies",
        lambda: len(tapped.find_all(forty)),
    )
    for index, node in enumerate(forty):
        node.attributes.add(ir.AttrInt64("k", index))
    alike = together(attr_eq(*(convolution_chain("Relu") for _ in range(5))))
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
    model = attention_layers(3000 // 26)
    shipped = library.patterns()
    report(
        f"all {len(shipped)} library patterns, {len(model)} nodes",
        lambda: sum(len(pattern.find_all(model, "maximal")) for pattern in shipped.values()),
    )
    endless = together(*(is_op("Relu") for _ in range(6)))
    report("6 unconnected patterns on 160 nodes, stopped", lambda: _counted(endless, wide, 100_000))


def _counted(pattern: object, graph: ir.Graph, budget: int | None = None) -> str:
    try:
        return str(len(pattern.find_all(graph, budget=budget)))
    except MatchBudgetExceeded as error:
        return f"stopped by the budget with {len(error.found)} matches"


def _counted(pattern: object, graph: ir.Graph, budget: int | None = None) -> str:
    try:
        return str(len(pattern.find_all(graph, budget=budget)))
    except MatchBudgetExceeded as error:
        return f"stopped by the budget with {len(error.found)} matches"


def transformer(nodes: int) -> ir.Model:
    """Layers of 25 nodes with weights, residuals, and shape computations."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 64, 64]))
    weights = [ir.Value(name=f"w{i}", const_value=ir.tensor(np.ones((64, 64), np.float32))) for i in range(4)]
    index = ir.Value(name="i", const_value=ir.tensor(np.array([0, 1, 2])))
    made: list[ir.Node] = []

    def op(op_type: str, *inputs: ir.Value) -> ir.Value:
        made.append(ir.Node("", op_type, inputs, name=f"n{len(made)}"))
        made[-1].outputs[0].name = f"v{len(made)}"
        return made[-1].outputs[0]

    value = x
    while len(made) < nodes:
        start = value
        shape = op("Concat", op("Gather", op("Shape", start), index))
        q, k, v = (op("Reshape", op("Add", op("MatMul", start, w), w), shape) for w in weights[:3])
        mixed = op("MatMul", op("Softmax", op("MatMul", q, op("Transpose", k))), v)
        value = op("Add", op("Reshape", op("MatMul", mixed, weights[3]), shape), start)
        hidden = op("Erf", op("Add", op("MatMul", value, weights[0]), weights[1]))
        value = op("Add", op("Mul", hidden, value), value)
    graph = ir.Graph(
        [x], [value], nodes=made, initializers=[*weights, index], opset_imports={"": 20}, name="transformer"
    )
    return ir.Model(graph, ir_version=10)


def scattered(nodes: int, share: float) -> ir.Model:
    """The same, with a share of the nodes annotated at random."""
    model, random = transformer(nodes), np.random.default_rng(0)
    for node in model.graph:
        if random.random() < share:
            on_device(node, str(random.choice(DEVICES)))
    return model


def devices() -> None:
    """Plan devices of large models. The bar is 500 ms for 3,000 nodes."""
    config = CompilationConfig.of(DEVICES)
    for text, model in (
        ("nothing annotated", transformer(3000)),
        ("1 node in 100 annotated", scattered(3000, 0.01)),
        ("half of the nodes annotated", scattered(3000, 0.5)),
    ):
        count = len(model.graph)
        report(f"plan (DevicePlan), {count} nodes, {text}", lambda m=model: DevicePlan(m, config).copies())
        report(f"plan, copy the model, insert copies (PlanDevices), {text}", lambda m=model: PlanDevices(config)(m))
        planned = PlanDevices(config)(model)
        report(f"again on the planned model of {len(planned.graph)} nodes", lambda m=planned: PlanDevices(config)(m))
        report("partition the planned model", lambda m=planned: PartitionBySEScope()(m))
        lowered = PartitionBySEScope()(planned)
        report(
            f"again on the {len(lowered.graph)} regions and copies of that", lambda m=lowered: PlanDevices(config)(m)
        )


def main() -> None:
    """Run the script."""
    parser = make_parser(__doc__, models="")
    parser.add_argument("--of", choices=("passes", "patterns", "devices"), required=True)
    options = parser.parse_args()
    if options.of == "passes":
        passes(options)
    elif options.of == "patterns":
        patterns()
    else:
        devices()


if __name__ == "__main__":
    main()
