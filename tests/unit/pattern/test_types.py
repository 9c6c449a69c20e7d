"""A replacement that would make a model invalid is refused, and numbers take the type of what stands beside them."""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from collage.graph import constant_tensor
from collage.pattern import RewriteResult, RewriteRule, any_op, is_const, is_op, rewrite, wildcard


class Replace(RewriteRule):
    """A rule from a pattern and a function."""

    def __init__(self, pattern, build, **options) -> None:
        self.pattern, self.build = pattern, build
        for name, value in options.items():
            setattr(self, name, value)

    def callback(self, match, op):
        return self.build(match, op)


def model_of(text: str, opset: int = 20) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}, "my" : 1]>\n{text}')
    return ir.from_proto(proto)


def text_of(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString(deterministic=True)


def check(model: ir.Model) -> None:
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def swapped(model: ir.Model, op_type: str, build, **options) -> RewriteResult:
    """Replaces operators of one type, once; ``build`` gets the node's inputs."""
    old = is_op(op_type)
    rule = Replace(old, lambda match, op: {old: build(op, *match.node(old).inputs)}, **options)
    result = rewrite(model, rule, iterative=False)
    check(result.model)
    if not result.applied:
        assert text_of(result.model) == text_of(model)
    return result


FLOAT = "g (float[2, 3] x) => (float[2, 3] y) { a = Relu (x) y = Neg (a) }"


@pytest.mark.parametrize("op_type", ["Relu", "Neg"])
@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda op, x: op.Transpose(x, perm=[1, 0]), "has shape [2,3], its replacement [3,2]"),
        (lambda op, x: op.Cast(x, to=int(ir.DataType.INT64)), "is FLOAT, its replacement INT64"),
        (lambda op, x: op.ReduceSum(x), "has shape [2,3], its replacement [1,1]"),
        (lambda op, x: op.ReduceSum(x, keepdims=0), "has shape [2,3], its replacement []"),
        (lambda op, x: op.Not(x), "the new nodes are not valid"),
        (lambda op, x: op.MatMul(x, x), "the new nodes are not valid"),
        (lambda op, x: op.Add(x, op.constant(np.float64(2.0))), "the new nodes are not valid"),
        (lambda op, x: op.constant(2.0), "has shape [2,3], its replacement []"),
        (lambda op, x: op.SequenceConstruct(x), "is FLOAT, its replacement Sequence"),
        (lambda op, x: op.Relu(x, alpha="a"), "no attribute 'alpha'"),
        (lambda op, x: op.LeakyRelu(x, alpha="a"), "is of type FLOAT, not STRING"),
        (lambda op, x: op.Add(None, x), "operand 0 of Add of opset 20, A, may not be absent"),
        (lambda op, x: op.Upsample(x, op.constant([1.0, 1.0])), "has no operator Upsample"),
    ],
)
def test_wrong_replacements_are_refused(op_type: str, build, words: str) -> None:
    """Both at the graph's output, and inside, where the file says nothing of types."""
    result = swapped(model_of(FLOAT), op_type, build)
    assert not result.applied and words in result.refused[0].reason


def test_a_value_in_place_of_another_has_its_type() -> None:
    model = model_of("g (float[2, 3] x) => (float[2, 3] y) { a = Cast <to = 7> (x) b = Cast <to = 1> (a) y = Neg (b) }")
    for attribute, words in ((1, ""), (7, "is INT64, its replacement FLOAT")):
        cast = is_op("Cast").has_attr(to=attribute)
        source = wildcard() if attribute == 7 else is_op("Cast")(wildcard("x"))
        old = cast(source.named("x") if attribute == 7 else source)
        result = Replace(old, lambda match, op, old=old: {old: match["x"]}).apply(model)
        check(result.model)
        assert bool(result.applied) != bool(words)
        assert not words or words in result.refused[0].reason


def test_new_values_have_the_type_that_follows() -> None:
    model = model_of("g (float16[N, 3] x) => (float16[N, 3] y) { a = Relu (x) y = Neg (a) }")
    result = swapped(model, "Relu", lambda op, x: op.Transpose(op.Transpose(x), perm=[1, 0]))
    first, second, _ = result.model.graph
    assert first.outputs[0].dtype == ir.DataType.FLOAT16 and str(first.outputs[0].shape) == "[3,N]"
    assert second.outputs[0].dtype == ir.DataType.FLOAT16 and str(second.outputs[0].shape) == "[N,3]"


def test_foreign_operators_give_what_they_replace() -> None:
    """Nothing follows of them, and ONNX takes no model that leaves the type open of what its operators read."""
    for model in (model_of(FLOAT), ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model_of(FLOAT))))):
        for op_type in ("Relu", "Neg"):
            result = swapped(model, op_type, lambda op, x: op.node("F", x, domain="my"))
            value = next(node.outputs[0] for node in result.model.graph if node.op_type == "F")
            assert value.dtype == ir.DataType.FLOAT and str(value.shape) == "[2,3]"


def test_what_a_rule_says_of_a_foreign_operator_is_compared() -> None:
    def build(op, x):
        new = op.node("F", x, domain="my")
        new.type = ir.TensorType(ir.DataType.INT64)
        return new

    assert "is FLOAT, its replacement INT64" in swapped(model_of(FLOAT), "Relu", build).refused[0].reason


def test_what_was_unknown_stays_unknown_where_nothing_follows() -> None:
    model = model_of("g (float[2, 3] x) => (float[2, 3] y) { a = my.F (x) b = Abs (a) y = my.F (b) }")
    old = is_op("Abs")
    result = rewrite(model, Replace(old, lambda match, op: {old: op.Neg(match.node(old).inputs[0])}), iterative=False)
    (value,) = result.model.graph.node(1).outputs
    assert len(result.applied) == 1 and value.type is None and value.shape is None
    assert result.model.graph.outputs[0].dtype == ir.DataType.FLOAT


def test_what_replaces_the_unknown_must_suit_its_users() -> None:
    """Of ``b`` the type is known, but not the shape."""
    model = model_of("g (float[2, 3] x) => (float[2, 3] y) <float a> { a = my.F (x) b = Abs (a) y = Add (b, x) }")
    for value in (value for node in model.graph for value in node.outputs if value.name == "a"):
        value.shape = None
    assert len(swapped(model, "Abs", lambda op, a: op.Neg(a)).applied) == 1
    assert len(swapped(model, "Abs", lambda op, a: op.constant(np.zeros((2, 3), np.float32))).applied) == 1
    result = swapped(model, "Abs", lambda op, a: op.constant(np.zeros((7, 7), np.float32)))
    assert not result.applied and "a user of 'b' does not accept the replacement" in result.refused[0].reason


def test_what_replaces_what_has_no_type_must_suit_its_users() -> None:
    """ONNX's full check takes no such model, but it may come along."""
    model = model_of("g (float[2, 3] x) => (float[2, 3] y) { a = my.F (x) b = Abs (a) y = Add (b, x) }")
    old = is_op("Abs")
    for dtype, is_right in ((ir.DataType.FLOAT, True), (ir.DataType.INT64, False)):
        rule = Replace(old, lambda match, op, to=dtype: {old: op.Cast(match.node(old).inputs[0], to=int(to))})
        assert bool(rewrite(model, rule, iterative=False).applied) == is_right


@pytest.mark.parametrize("branch", ["Exp", "Log"])
def test_bodies_are_checked(branch: str) -> None:
    model = model_of("""
        g (float[2, 3] x, bool c) => (float[2, 3] y) {
          v = Relu (x)
          y = If (c) <
            then_branch = t () => (a) { p = Exp (v) a = Neg (p) },
            else_branch = e () => (b) { b = Log (v) }
          >
        }""")
    assert not swapped(model, branch, lambda op, v: op.Cast(v, to=int(ir.DataType.INT64))).applied
    assert not swapped(model, branch, lambda op, v: op.ReduceSum(v)).applied
    assert len(swapped(model, branch, lambda op, v: op.Mul(v, 2.0)).applied) == 1


CALLS = """
    g (float[2, 3] x, double[4] z) => (float[2, 3] y, double[4] w) {
      y = my.h <k = 1> (x)
      w = my.outer (z)
    }
    <domain: "my", opset_import: ["" : 20, "my" : 1]>
    h <k> (a) => (b) { t = Relu (a) u = Cast <to = @k> (t) v = Cast <to : int = @k> (u) b = CastLike (v, a) }
    <domain: "my", opset_import: ["" : 20, "my" : 1]>
    outer (a) => (b) { b = my.h <k = 11> (a) }"""


def test_functions_are_checked_for_each_of_their_calls() -> None:
    model = model_of(CALLS.replace("<to = @k>", "<to : int = @k>"))
    check(model)
    assert len(swapped(model, "Relu", lambda op, a: op.Abs(a)).applied) == 1
    for build in (
        lambda op, a: op.Transpose(a, perm=[1, 0]),
        lambda op, a: op.Reshape(a, [2, 3]),
        lambda op, a: op.Cast(a, to=int(ir.DataType.FLOAT)),
        lambda op, a: op.Add(a, np.float32(1)),
    ):
        assert not swapped(model, "Relu", build).applied


def test_weights_that_nothing_reads_any_more_go() -> None:
    model = model_of("""
        g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] v = {3, 4}, float[2] s = {5, 6}> {
          k = Constant <value = float[2] {7, 8}> ()
          a = Add (x, w) b = Add (a, s) c = Add (b, k) d = Mul (c, v) y = Sub (d, s)
        }""")
    x, w, s, k = wildcard("x"), is_const(), is_const(), is_const()
    chain = ((x + w) + s) + k

    def fold(match, op):
        return {chain: op.Add(match["x"], sum(constant_tensor(match[p]).numpy() for p in (w, s, k)))}

    result = Replace(chain, fold).apply(model)
    check(result.model)
    assert len(result.applied) == 1
    assert [node.op_type for node in result.model.graph] == ["Add", "Mul", "Sub"]
    assert set(result.model.graph.initializers) == {"v", "s", "Replace_constant"}


def test_a_weight_that_is_an_input_or_output_stays() -> None:
    model = model_of("""
        g (float[2] x, float[2] w) => (float[2] y, float[2] v) <float[2] w = {1, 2}, float[2] v = {3, 4}> {
          a = Add (x, w) y = Mul (a, v)
        }""")
    result = rewrite(
        model, [Replace(p := is_op(t), lambda m, op, p=p: {p: m.node(p).inputs[0]}) for t in ("Add", "Mul")]
    )
    assert len(result.applied) == 2
    assert set(result.model.graph.initializers) == {"w", "v"}


def test_a_weight_of_the_graph_around_goes_with_its_last_reader() -> None:
    model = model_of("""
        g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
          y = If (c) < then_branch = t () => (a) { a = Add (x, w) }, else_branch = e () => (b) { b = Neg (x) } >
        }""")
    assert not swapped(model, "Add", lambda op, x, w: op.Abs(x)).model.graph.initializers


@pytest.mark.parametrize("opset", [3, 6])
def test_old_models_have_no_new_initializers(opset: int) -> None:
    proto = onnx.parser.parse_model(FLOAT.join((f'<ir_version: 3, opset_import: ["" : {opset + 4}]>', "")))
    result = swapped(ir.from_proto(proto), "Relu", lambda op, x: op.Max(x, op.constant(0.0)))
    assert [node.op_type for node in result.model.graph] == ["Constant", "Max", "Neg"]


def test_the_model_that_is_given_keeps_its_tensors() -> None:
    proto = ir.to_proto(
        model_of("""
        g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}, int64[1] s = {2}> {
          r = Reshape (x, s)
          y = If (c) <
            then_branch = t () => (a) <float[2] v = {1, 2}> { p = Add (r, w) a = Add (p, v) },
            else_branch = e () => (b) { b = Neg (x) }
          >
        }""")
    )
    before = proto.SerializeToString(deterministic=True)
    for op_type in ("Reshape", "Add", "Neg", "If"):
        swapped(ir.from_proto(proto), op_type, lambda op, x, *_: op.Abs(op.Identity(x)))
        assert proto.SerializeToString(deterministic=True) == before


# ---------------------------------------------------------------------- numbers


DTYPES = ["float", "double", "float16", "bfloat16", "int64", "int32", "uint8"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "build",
    [
        lambda op, x: op.Mul(x, 2),
        lambda op, x: op.Mul(2.0, x),
        lambda op, x: op.Mul(x, op.constant(2)),
        lambda op, x: op.Add(op.Mul(x, 2.0), op.constant([1.0, 2.0, 3.0])),
        lambda op, x: op.Where(op.Greater(x, 1), x, 3.0),
        lambda op, x: op.Cast(op.Mul(op.Cast(x, to=int(ir.DataType.DOUBLE)), 2.5), to=int(x.dtype)),
        lambda op, x: op.Reshape(op.Reshape(x, [3, 2]), op.constant([2.0, 3.0])),
        lambda op, x: op.Slice(op.Concat(x, x, axis=0), [0], [2], [0]),
        lambda op, x: op.Expand(op.ReduceMax(op.Max(x, 1), [0]), [2, 3]),
        lambda op, x: op.Clip(x, 1, 6.0),
        lambda op, x: op.Mul(op.constant(2), op.Add(op.constant(1), x)),
    ],
)
def test_numbers_take_the_type_of_what_stands_beside_them(dtype: str, build) -> None:
    model = model_of(f"g ({dtype}[2, 3] x) => ({dtype}[2, 3] y) {{ a = Identity (x) y = Abs (a) }}")
    result = swapped(model, "Identity", build)
    assert len(result.applied) == 1, result.to_text()


def test_one_constant_may_have_two_types() -> None:
    model = model_of("g (float[2] x) => (double[2] y) { y = Cast <to = 11> (x) }")

    def build(op, x):
        two = op.constant(2.0)
        return op.Mul(op.Cast(op.Mul(x, two), to=11), two)

    result = swapped(model, "Cast", build)
    assert len(result.applied) == 1
    assert {v.dtype for v in result.model.graph.initializers.values()} == {ir.DataType.FLOAT, ir.DataType.DOUBLE}


def test_a_number_may_replace_a_value() -> None:
    model = model_of("g (float16[2] x) => (float16 y) { a = ReduceSum <keepdims = 0> (x) y = Neg (a) }")
    result = swapped(model, "ReduceSum", lambda op, x: op.constant(2.0))
    assert result.model.graph.node(0).inputs[0].dtype == ir.DataType.FLOAT16


@pytest.mark.parametrize(
    ("dtype", "number", "words"),
    [
        ("int64", 2.5, "2.5 is not a number of type INT64"),
        ("uint8", -1, "-1 is not a number of type UINT8"),
        ("uint8", 256, "256 is not a number of type UINT8"),
        ("float16", 1e9, "is not a number of type FLOAT16"),
        ("string", 1.0, "is given, but a STRING is needed"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(dtype: str, number: float, words: str) -> None:
    model = model_of(f"g ({dtype}[2, 3] x) => ({dtype}[2, 3] y) {{ a = Identity (x) y = Identity (a) }}")
    result = swapped(model, "Identity", lambda op, x: op.Concat(x, number, axis=0))
    assert not result.applied and words in result.refused[0].reason


# ---------------------------------------------------------------------- random replacements


TYPES = [ir.DataType[name] for name in ("FLOAT", "DOUBLE", "FLOAT16", "INT64", "INT32", "UINT8", "BOOL")]
UNARY = [
    "Relu",
    "Neg",
    "Abs",
    "Not",
    "Identity",
    "Sqrt",
    "Transpose",
    "ReduceSum",
    "Shape",
    "Flatten",
    "Cast",
    "Softmax",
]
BINARY = ["Add", "Mul", "Concat", "MatMul", "Greater", "And", "Equal", "Pow", "Gather"]


def attributes_of(rng: random.Random, op_type: str) -> dict[str, object]:
    match op_type:
        case "Cast":
            return {"to": int(rng.choice(TYPES))}
        case "Concat":
            return {"axis": rng.choice([0, -1])}
        case "ReduceSum":
            return {"keepdims": rng.randint(0, 1)}
        case "Transpose":
            return {"perm": rng.choice([[0, 1], [1, 0]])}
    return {}


class Sample:
    """A random valid model: a chain of nodes, some in branches, some of a domain of which nothing is known."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        shapes = [["N", 3], [2, 3], [3, 3], [3], []]
        given_ = [helper.make_tensor_value_info(f"x{i}", int(rng.choice(TYPES)), rng.choice(shapes)) for i in range(2)]
        self.inputs = [*given_, helper.make_tensor_value_info("flag", int(ir.DataType.BOOL), [])]
        self.types = {value.name: value.type for value in given_}
        self.nodes: list[onnx.NodeProto] = []
        while len(self.nodes) < 5:
            self.extend(f"v{len(self.nodes)}")
        used = {name for node in self.nodes for name in node.input}
        used |= {"v0", "v1"} if rng.random() < 0.5 else set()
        outputs = [
            helper.make_value_info(n.output[0], self.types[n.output[0]]) for n in self.nodes if n.output[0] not in used
        ]
        proto = self.proto(self.nodes, outputs or [helper.make_value_info("v4", self.types["v4"])])
        if rng.random() < 0.5:  # what a file need not say
            proto = onnx.shape_inference.infer_shapes(proto)
        self.model = ir.from_proto(proto)

    def proto(self, nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
        imports = [helper.make_opsetid("", 20), helper.make_opsetid("my", 1)]
        return helper.make_model(
            helper.make_graph(nodes, "g", self.inputs, outputs), opset_imports=imports, ir_version=10
        )

    def extend(self, name: str) -> None:
        rng, known = self.rng, list(self.types)
        if rng.random() < 0.1:
            node = helper.make_node("F", [rng.choice(known)], [name], domain="my", name=f"n{name}")
            self.nodes.append(node)
            self.types[name] = self.types[node.input[0]]
            return
        op_type = rng.choice(UNARY + BINARY)
        used = [rng.choice(known) for _ in range(2 if op_type in BINARY else 1)]
        node = helper.make_node(op_type, used, [name], name=f"n{name}", **attributes_of(rng, op_type))
        if rng.random() < 0.2:
            branches = [
                helper.make_graph([self.renamed(node, f"{name}_{k}")], k, [], [onnx.ValueInfoProto(name=f"{name}_{k}")])
                for k in "te"
            ]
            node = helper.make_node(
                "If", ["flag"], [name], f"n{name}", then_branch=branches[0], else_branch=branches[1]
            )
        try:
            proto = self.proto([*self.nodes, node], [])
            for known_name, kind in self.types.items():
                proto.graph.value_info.add(name=known_name).type.CopyFrom(kind)
            inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
            (self.types[name],) = (value.type for value in inferred.graph.value_info if value.name == name)
            self.nodes.append(node)
        except (onnx.shape_inference.InferenceError, ValueError):
            pass  # the operator does not take these

    def renamed(self, node: onnx.NodeProto, name: str) -> onnx.NodeProto:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name, copy.output[0] = f"n{name}", name
        return copy


def builds(rng: random.Random, op, values: list[ir.Value]) -> ir.Value:
    """One or two random nodes on values that are there; the second may be of a domain of which nothing is known."""
    values = list(values)
    for index in range(rng.randint(1, 2)):
        op_type = rng.choice([*UNARY, *BINARY, *["F"] * index])
        count = 2 if op_type in BINARY else 1
        used = [rng.choice(values) for _ in range(count)]
        if count == 2 and rng.random() < 0.3:
            used[rng.randrange(2)] = rng.choice([1, 2.0, [1, 2, 3], 2.5])
        domain = "my" if op_type == "F" else ""
        values.append(op.node(op_type, *used, domain=domain, **attributes_of(rng, op_type)))
    return values[-1]


@settings(max_examples=400, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_no_replacement_makes_a_model_invalid(seed: int) -> None:
    rng = random.Random(seed)
    model = Sample(rng).model
    check(model)
    anything = any_op()

    def build(match, op):
        node = match.node(anything)
        seen = [value for value in node.inputs if value is not None and value.name != "flag"]
        return {anything: builds(rng, op, seen)} if seen else None

    result = rewrite(model, Replace(anything, build), iterative=False)
    check(result.model)
    assert [v.name for v in result.model.graph.outputs] == [v.name for v in model.graph.outputs]
    if not result.applied:
        assert text_of(result.model) == text_of(model)


@settings(max_examples=200, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_equal_replacements_are_accepted(seed: int) -> None:
    model = Sample(random.Random(seed)).model
    anything = any_op()

    def build(match, op):
        node = match.node(anything)
        again = op.node(node.op_type, *node.inputs, domain=node.domain, like=node)
        return {anything: op.Identity(again)}

    nodes = [node.op_type for node in model.graph.all_nodes() if node.op_type != "If"]
    rule = Replace(is_op("Identity", *set(nodes) - {"F"}) | is_op("F", domain="my"), build)
    anything = rule.pattern
    result = rewrite(model, rule, iterative=False)
    assert len(result.applied) == len(nodes) and not result.refused
    check(result.model)
