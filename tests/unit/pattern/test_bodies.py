"""Patterns in bodies of control-flow nodes: uses outside count, and the opset is that of the graph around."""

from __future__ import annotations

import random

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage._errors import PatternError
from collage.graph import bodies
from collage.pattern import any_op, explain, is_op, wildcard

TEXT = """
    <ir_version: 8, opset_import: ["" : 11]>
    g (float[2, 3, 4] x, bool c) => (float[2, 3, 4] y, float[2, 3, 4] z) {
      v = Relu (x)
      y = If (c) <
        then_branch = t () => (float[2, 3, 4] a) { a = Softmax (v) },
        else_branch = e () => (float[2, 3, 4] b) { q = Neg (v) b = Abs (q) }
      >
      z = Mul (v, x)
    }"""


def parts_of(text: str = TEXT) -> tuple[ir.Model, ir.Graph, ir.Graph]:
    model = ir.from_proto(onnx.parser.parse_model(text))
    owner = next(node for node in model.graph if node.op_type == "If")
    return model, owner.attributes["then_branch"].as_graph(), owner.attributes["else_branch"].as_graph()


def test_users_around_a_body_count() -> None:
    model, _, body = parts_of()
    assert (wildcard() >> is_op("Neg")).find_all(body) == (wildcard() >> is_op("Neg")).find_all(model) == []
    assert (wildcard().uniq() ^ is_op("Neg")).find_all(body) == []
    assert len((wildcard().extern_use(True) ^ is_op("Neg")).find_all(body)) == 1
    assert (wildcard().extern_use(False) ^ is_op("Neg")).find_all(body) == []
    for around in ("Mul", "Softmax"):  # in the graph around, and in the body beside
        assert (wildcard().no_consumer(is_op(around)) ^ is_op("Neg")).find_all(body) == []
    assert len((wildcard().no_consumer(is_op("Abs")) ^ is_op("Neg")).find_all(body)) == 1
    assert "used by Neg 'q', Softmax 'a', Mul 'z'" in explain(wildcard() >> is_op("Neg"), body).message


def test_a_value_that_only_one_body_uses_is_only_used_there() -> None:
    text = TEXT.replace("Softmax (v)", "Softmax (x)").replace("Mul (v, x)", "Mul (x, x)")
    model, _, body = parts_of(text)
    for where in (body, model):
        for pattern in (wildcard("v") >> is_op("Neg"), wildcard("v").extern_use(False) ^ is_op("Neg")):
            assert [m["v"].name for m in pattern.find_all(where)] == ["v"]


def test_what_another_graph_gives_as_an_output_is_used_outside() -> None:
    text = TEXT.replace("a = Softmax (v)", "a = Identity (x)").replace("Mul (v, x)", "Mul (x, x)")
    model, other, body = parts_of(text)
    assert len((wildcard() >> is_op("Neg")).find_all(body)) == 1
    captured = next(node.outputs[0] for node in model.graph if node.op_type == "Relu")
    other.outputs[0] = captured
    assert (wildcard() >> is_op("Neg")).find_all(body) == []


def test_the_opset_is_that_of_the_graph_around() -> None:
    model, body, _ = parts_of()
    node = body.node(0)
    for axis, count in ((1, 1), (-1, 0)):
        pattern = is_op("Softmax").has_attr(axis=axis)
        assert len(pattern.find_all(model)) == len(pattern.find_all(body)) == count
        assert (pattern.match(node) is not None) == bool(count)


def test_a_body_that_captures_nothing_is_looked_up_within_the_model() -> None:
    text = TEXT.replace("a = Softmax (v)", "k = Constant <value = float[2, 3, 4] {0.0}> () a = Softmax (k)")
    model, body, other = parts_of(text)
    pattern = is_op("Softmax").has_attr(axis=1)
    assert pattern.match(body.node(1), within=model) and pattern.find_all(body, within=model.graph)
    with pytest.raises(PatternError, match=r"the default of 'axis' of Softmax depends on the opset.*within"):
        pattern.match(body.node(1))
    assert is_op("Softmax")(is_op("Constant")).match(body.node(1))  # asks for no default
    with pytest.raises(PatternError, match="'t' is not a graph, body or function of the model that is given"):
        pattern.match(body.node(1), within=other)


class Nest:
    """A random model whose bodies capture values, and the definition of use, told graph by graph."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.count = 0
        self.owners: dict[ir.Graph, ir.Node | None] = {}
        inputs = [self.value(), self.value()]
        self.top = self.graph(inputs, [], depth=0)
        self.model = ir.Model(self.top, ir_version=10)
        self.owners[self.top] = None
        for graph in self.graphs():
            for node in graph:
                self.owners.update(dict.fromkeys(bodies(node), node))

    def graphs(self) -> list[ir.Graph]:
        return [self.top, *self.top.subgraphs()]

    def value(self) -> ir.Value:
        self.count += 1
        return ir.Value(name=f"v{self.count}")

    def graph(self, inputs: list[ir.Value], around: list[ir.Value], depth: int) -> ir.Graph:
        rng, nodes = self.rng, []
        values = [*around, *inputs]
        for _ in range(rng.randint(1, 4)):
            kind = rng.choice(["Relu", "Neg", "Add", "If", "Loop"] if depth < 2 else ["Relu", "Neg", "Add"])
            made, attributes = self.value(), []
            used = [rng.choice(values[-6:]) for _ in range({"Add": 2, "Loop": 1}.get(kind, 1))]
            if kind == "If":
                branches = [self.graph([], values, depth + 1) for _ in range(2)]
                attributes = [ir.AttrGraph(f"branch{i}", branch) for i, branch in enumerate(branches)]
            elif kind == "Loop":
                attributes = [ir.AttrGraph("body", self.graph([self.value()], values, depth + 1))]
            nodes.append(ir.Node("", kind, used, attributes, outputs=[made], name=f"n{made.name}"))
            values.append(made)
        unused = [node.outputs[0] for node in nodes if not node.outputs[0].uses()]
        more = [v for v in rng.sample(values, rng.randint(0, 1)) if v.producer() and not v.is_graph_output()]
        outputs = dict.fromkeys([*(v for v in unused if not v.is_graph_output()), *more])
        opset = {"": 20} if depth == 0 else {}
        return ir.Graph(inputs, list(outputs), nodes=nodes, name=f"g{self.count}", opset_imports=opset)

    def place(self, graph: ir.Graph, inside: ir.Graph) -> ir.Node | None:
        """The node of one graph that holds another; None if none does."""
        owner = self.owners[inside]
        while owner is not None and owner.graph is not graph:
            owner = self.owners[owner.graph]
        return owner

    def visible(self, graph: ir.Graph) -> set[ir.Value]:
        found = {*graph.inputs, *(value for node in graph for value in node.outputs)}
        owner = self.owners[graph]
        return found if owner is None else found | self.visible(owner.graph)

    def users(self, value: ir.Value, graph: ir.Graph) -> set[ir.Node | str]:
        found: set[ir.Node | str] = set()
        for other in self.graphs():
            if value in other.outputs:
                found.add(("output" if other is graph else None) or self.place(graph, other) or "output")
            for node in other:
                if value in node.inputs:
                    found.add(node if other is graph else self.place(graph, other) or node)
        return found

    def holds(self, relation: str, value: ir.Value, user: ir.Node, graph: ir.Graph) -> bool:
        users = self.users(value, graph)
        others = users - {user}
        if user not in users:
            return False
        match relation:
            case "used":
                return True
            case "only used" | "uniq" | "not outside":
                return not others
            case "outside":
                return bool(others)
            case _:
                return not any(isinstance(other, ir.Node) and other.op_type == "Neg" for other in users)


RELATIONS = ["used", "only used", "uniq", "outside", "not outside", "no Neg"]


@settings(max_examples=300, deadline=None)
@given(st.integers(min_value=0, max_value=2**32), st.sampled_from(RELATIONS), st.sampled_from(["Relu", "Neg", "If"]))
def test_uses_of_captured_values_equal_brute_force(seed: int, relation: str, kind: str) -> None:
    nest = Nest(random.Random(seed))
    value, user = wildcard("v"), is_op(kind) if kind != "If" else any_op()
    match relation:
        case "only used":
            pattern = value >> user
        case "uniq":
            pattern = value.uniq() ^ user
        case "outside" | "not outside":
            pattern = value.extern_use(relation == "outside") ^ user
        case "no Neg":
            pattern = value.no_consumer(is_op("Neg")) ^ user
        case _:
            pattern = value ^ user
    everywhere = {(m.scope, m["v"], m.node(user)) for m in pattern.find_all(nest.model)}
    for graph in nest.graphs():
        nodes = [node for node in graph if kind == "If" or node.op_type == kind]
        expected = {(v, n) for v in nest.visible(graph) for n in nodes if nest.holds(relation, v, n, graph)}
        users = {n for _, n in expected}
        assert {n for g, _, n in everywhere if g is graph} == users
        assert {m.node(user) for m in pattern.find_all(graph)} == users
        assert {node for node in nodes if pattern.match(node)} == users
        for g, v, n in everywhere:
            assert g is not graph or (v, n) in expected
