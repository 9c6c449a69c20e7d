"""A simulated execution of planned models, and random models to run it on.

The simulator knows nothing of the planner. It follows every value from scope to scope by the meaning of the operators
alone, and checks each read against what the model says about where its nodes run.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import parser

from collage.device import (
    SEScope,
    copy_scopes,
    is_device_copy,
    planned_scope,
    planned_value_scope,
)

HEADER = '<ir_version: 10, opset_import: ["" : 20, "f" : 1]>\n'

_TWICE = """<domain: "f", opset_import: ["" : 20]>
twice (a, b) => (c, d) { s = Add(a, b) c = Relu(s) d = Mul(s, b) }"""

HOST_INPUTS = {"Reshape": {1}, "Expand": {1}, "If": {0}, "Loop": {0, 1}, "Split": {1}, "Slice": {1, 2, 3, 4}}
"""Of the operators that the random models use, what the standard calls shapes, axes, counts and conditions."""


def parse(text: str, header: str = HEADER) -> ir.Model:
    return ir.from_proto(parser.parse_model(header + text))


def run(model: ir.Model, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def nodes_of(model: ir.Model) -> list[ir.Node]:
    found = list(model.graph.all_nodes())
    for function in model.functions.values():
        if function.name != "device_copy":
            found += function.all_nodes()
    return found


def copies_of(model: ir.Model) -> list[ir.Node]:
    return [node for node in nodes_of(model) if is_device_copy(node)]


def simulate(model: ir.Model, host: str = "cpu:0") -> None:
    """Checks every read, the copies, and what is demanded of outputs."""
    _Simulator(model, SEScope.parse(host).storage).run()
    destinations = [(copy.inputs[0], copy_scopes(copy)[1].storage) for copy in copies_of(model)]
    assert len(set(destinations)) == len(destinations), "a value is copied twice to one scope"
    for copy in copies_of(model):
        assert copy.outputs[0].uses() or copy.outputs[0].is_graph_output(), "a copy that nobody reads"


class _Simulator:
    def __init__(self, model: ir.Model, host: SEScope) -> None:
        self.model, self.host = model, host
        self.where: dict[ir.Value, SEScope | None] = {}

    def run(self) -> None:
        graph = self.model.graph
        for value in graph.inputs:
            self.where[value] = planned_value_scope(value).storage
        self.body(graph)
        for value in graph.outputs:
            wanted = graph.metadata_props.get(f"on_device_output:{value.name}")
            if wanted is not None:
                assert SEScope.parse(wanted).join(self.where[value]) is not None, f"output {value.name}"

    def body(self, graph: ir.Graph | ir.Function, constants: bool = True) -> None:
        if constants and isinstance(graph, ir.Graph):
            for value in graph.initializers.values():
                scope = planned_value_scope(value)
                self.where[value] = scope.storage if scope else None
        for node in graph:
            self.node(node)

    def read(self, node: ir.Node, index: int, wanted: SEScope) -> None:
        value = node.inputs[index]
        if value is not None:
            assert self.where[value] == wanted, f"{node.op_type} {node.name} reads {value.name} of {self.where[value]}"

    def node(self, node: ir.Node) -> None:
        function = self.model.functions.get(node.op_identifier())
        if node.op_type == "Constant":
            self.where[node.outputs[0]] = planned_scope(node).storage
        elif is_device_copy(node):
            src, dst = (scope.storage for scope in copy_scopes(node))
            assert src != dst, "a copy to where its source is"
            self.read(node, 0, src)
            self.where[node.outputs[0]] = dst
        elif function is not None and not {"Primitive", "result_se_scope"} & set(function.metadata_props):
            for formal, actual in zip(function.inputs, node.inputs, strict=True):
                self.where[formal] = self.where[actual]
            self.body(function)
            for formal, actual in zip(function.outputs, node.outputs, strict=True):
                self.where[actual] = self.where[formal]
        elif node.op_type in ("If", "Loop", "Scan"):
            getattr(self, node.op_type.lower() + "_node")(node)
        else:
            scope = planned_scope(node).storage
            for index in range(len(node.inputs)):
                if node.op_type in ("Shape", "Size"):
                    continue
                self.read(node, index, self.host if index in HOST_INPUTS.get(node.op_type, ()) else scope)
            for value in node.outputs:
                self.where[value] = scope
        for value in node.outputs:
            planned = planned_value_scope(value)
            assert planned.storage == self.where[value], f"{value.name}: {planned} but {self.where[value]}"

    def if_node(self, node: ir.Node) -> None:
        self.read(node, 0, self.host)
        for name in ("then_branch", "else_branch"):
            body = node.attributes[name].as_graph()
            self.body(body)
            for inner, outer in zip(body.outputs, node.outputs, strict=True):
                assert self.where.setdefault(outer, self.where[inner]) == self.where[inner], "branches disagree"

    def loop_node(self, node: ir.Node) -> None:
        self.read(node, 0, self.host)
        self.read(node, 1, self.host)
        body = node.attributes["body"].as_graph()
        self.where[body.inputs[0]] = self.where[body.inputs[1]] = self.host
        for formal, actual in zip(body.inputs[2:], node.inputs[2:], strict=True):
            self.where[formal] = self.where[actual]
        self.outside_of_loop(node, body)
        self.body(body)
        assert self.where[body.outputs[0]] == self.host
        for formal, result in zip(body.inputs[2:], body.outputs[1:], strict=False):
            assert self.where[result] == self.where[formal], "a carried value moves from iteration to iteration"
        for inner, outer in zip(body.outputs[1:], node.outputs, strict=True):
            self.where[outer] = self.where[inner]

    def scan_node(self, node: ir.Node) -> None:
        body = node.attributes["body"].as_graph()
        for formal, actual in zip(body.inputs, node.inputs, strict=True):
            self.where[formal] = self.where[actual]
        self.outside_of_loop(node, body)
        self.body(body)
        states = len(body.inputs) - node.attributes["num_scan_inputs"].as_int()
        for formal, result in zip(body.inputs[:states], body.outputs[:states], strict=True):
            assert self.where[result] == self.where[formal]
        for inner, outer in zip(body.outputs, node.outputs, strict=True):
            self.where[outer] = self.where[inner]

    def outside_of_loop(self, node: ir.Node, body: ir.Graph) -> None:
        """Nothing that is the same in every iteration is copied in one."""
        inside = {body, *body.subgraphs()}
        for graph in inside:
            for copy in filter(is_device_copy, graph):
                assert copy.inputs[0].graph in inside, f"copy of {copy.inputs[0].name} inside a loop"


def random_model(seed: int, size: int = 14) -> ir.Model:
    """A model on float[2, 3] with islands of shapes, branches, loops, scans, calls and shared constants."""
    return parse(_Writer(np.random.default_rng(seed)).model(size))


def random_inputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.normal(size=(2, 3)).astype(np.float32) for name in ("x", "y")}


class _Writer:
    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def model(self, size: int) -> str:
        values = ["x", "y", "w"]
        lines = self.lines(values, size, 2)
        outputs = list(dict.fromkeys(self.random.choice(values[3:], 3)))
        outs = ", ".join(f"float[2,3] {name}" for name in outputs)
        head = f"g (float[2,3] x, float[2,3] y) => ({outs}) <float[2,3] w = {{1,2,3,4,5,6}}> {{"
        return "\n".join([head, *lines, "}", _TWICE])

    def lines(self, values: list[str], size: int, depth: int) -> list[str]:
        """Nodes that read from ``values`` and add to it."""
        kinds = ["unary", "binary", "binary", "split", "shape", "call", "constant"]
        kinds += ["branch", "loop", "scan"] if depth else []
        return [line for _ in range(size) for line in getattr(self, self.random.choice(kinds))(values, depth)]

    def pick(self, values: list[str]) -> str:
        return str(self.random.choice(values[-6:] if self.random.random() < 0.7 else values))

    def unary(self, values: list[str], depth: int) -> list[str]:
        out = self.fresh()
        line = f" {out} = {self.random.choice(['Relu', 'Neg', 'Sigmoid'])}({self.pick(values)})"
        values.append(out)
        return [line]

    def binary(self, values: list[str], depth: int) -> list[str]:
        out = self.fresh()
        line = f" {out} = {self.random.choice(['Add', 'Mul', 'Sub'])}({self.pick(values)}, {self.pick(values)})"
        values.append(out)
        return [line]

    def split(self, values: list[str], depth: int) -> list[str]:
        a, b, out = self.fresh(), self.fresh(), self.fresh()
        lines = [
            f" {a}, {b} = Split <axis = 0, num_outputs = 2> ({self.pick(values)})",
            f" {out} = Concat <axis = 0> ({b}, {a})",
        ]
        values.append(out)
        return lines

    def shape(self, values: list[str], depth: int) -> list[str]:
        s, i, g, f, t, r, out = (self.fresh() for _ in range(7))
        lines = [
            f" {s} = Shape({self.pick(values)})",
            f" {i} = Constant <value_ints = [1, 0]> ()",
            f" {g} = Gather({s}, {i})",
            f" {f} = Transpose({self.pick(values)})",
            f" {r} = Reshape({f}, {g})",
            f" {t} = Cast <to = 1> ({s})",
            f" {out} = Reshape({r}, {s})",
        ]
        values.append(out)
        return lines

    def constant(self, values: list[str], depth: int) -> list[str]:
        c, out = self.fresh(), self.fresh()
        lines = [f" {c} = Constant <value_float = 2.0> ()", f" {out} = Mul({self.pick(values)}, {c})"]
        values.append(out)
        return lines

    def call(self, values: list[str], depth: int) -> list[str]:
        a, b = self.fresh(), self.fresh()
        line = f" {a}, {b} = f.twice({self.pick(values)}, {self.pick(values)})"
        values += [a, b]
        return [line]

    def body(self, values: list[str], depth: int, formals: list[str] = ()) -> tuple[list[str], str]:
        inner = [*values, *formals]
        lines = self.lines(inner, int(self.random.integers(1, 4)), depth - 1)
        return lines, str(self.random.choice(inner[len(values) :]))

    def branch(self, values: list[str], depth: int) -> list[str]:
        m, c, out = self.fresh(), self.fresh(), self.fresh()
        z = self.fresh()
        head = [
            f" {m} = ReduceMax <keepdims = 0> ({self.pick(values)})",
            f" {z} = Constant <value_float = 0.5> ()",
            f" {c} = Greater({m}, {z})",
        ]
        bodies = []
        for name in ("then_branch", "else_branch"):
            lines, result = self.body(values, depth)
            bodies.append(f"{name} = {name}_{out} () => (float[2,3] {result}) {{\n" + "\n".join(lines) + "\n}")
        line = f" {out} = If ({c}) <{bodies[0]}, {bodies[1]}>"
        values.append(out)
        return [*head, line]

    def loop(self, values: list[str], depth: int) -> list[str]:
        n, k, j, i, c, s, t, d, out = (self.fresh() for _ in range(9))
        lines, result = self.body(values, depth, [s])
        final = self.fresh()
        lines = [*lines, f" {d} = Identity({c})", f" {final} = Neg({result})"]
        head = [
            f" {n} = Size({self.pick(values)})",
            f" {k} = Constant <value_int = 2> ()",
            f" {j} = Sub({n}, {k})",
            f" {t} = Constant <value = bool {{1}}> ()",
        ]
        body = f"body = loop_{out} (int64 {i}, bool {c}, float[2,3] {s}) => (bool {d}, float[2,3] {final}) {{\n"
        line = f" {out} = Loop ({j}, {t}, {self.pick(values)}) <{body}" + "\n".join(lines) + "\n}>"
        values.append(out)
        return [*head, line]

    def scan(self, values: list[str], depth: int) -> list[str]:
        s, e, r, q, out, rows = (self.fresh() for _ in range(6))
        lines, result = self.body(values, depth, [s])
        final = self.fresh()
        lines = [*lines, f" {q} = Add({result}, {e})", f" {final} = Neg({q})", f" {r} = Relu({e})"]
        body = f"body = scan_{out} (float[2,3] {s}, float[3] {e}) => (float[2,3] {final}, float[3] {r}) {{\n"
        operands = f"({self.pick(values)}, {self.pick(values)})"
        line = f" {out}, {rows} = Scan {operands} <{body}" + "\n".join(lines) + "\n}, num_scan_inputs = 1>"
        values += [out, rows]
        return [line]
