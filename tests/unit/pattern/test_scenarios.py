"""What other pattern languages promise, get wrong, crash on or hang at, restated as ONNX graphs.

Each scenario is a pattern, a graph, and the matches by the names of their nodes' outputs (``maximal``).
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from collage._errors import PatternError
from collage.pattern import (
    Seq,
    any_op,
    attr_eq,
    dominates,
    dup,
    explain,
    fork_to,
    is_const,
    is_elementwise,
    is_input,
    is_op,
    make,
    maybe,
    repeat,
    together,
    wildcard,
)

from .graphs import graph, names, sets

# ---------------------------------------------------------------------- trees


def unary():
    return is_elementwise()(wildcard())


def diamond_tree():
    conv = is_op("Conv")(wildcard(), wildcard())
    return is_op("Add")(is_op("Relu")(conv), is_op("LeakyRelu")(conv))


def batch_norm():
    x, var, mean, beta, gamma = (wildcard() for _ in range(5))
    return gamma * (x - mean) / is_op("Sqrt")(var + is_const()) + beta


def nested_adds():
    a, b = wildcard(), wildcard()
    n0 = is_op("Add")(a, b)
    return is_op("Add")(n0, is_op("Add")(n0, a))


def conv_dominated_by_add(path=None):
    conv = is_op("Conv")(wildcard(), wildcard())
    return dominates(conv, unary() if path is None else path, is_op("Add")(wildcard(), wildcard()))


DIAMOND = "c = Conv(x, w)\nr = Relu(c)\nl = LeakyRelu(c)\ny = Add(r, l)"
FAKE = "c = Conv(x, w)\nd = Conv(x, w)\nr = Relu(c)\nl = LeakyRelu(d)\ny = Add(r, l)"
DEEP = "c = Conv(x, w)\nr = Relu(c)\ns = Relu(r)\nt = Tanh(s)\nl = LeakyRelu(c)\ny = Add(t, l)"
BATCH_NORM = "s = Sub(x, m)\ng = Mul(s, w)\nv = Add(m, w)\nq = Sqrt(v)\nd = Div(g, q)\n"
TWO_PARENTS = "a = Conv(x, w)\nb = Tanh(a)\nc = Conv(b, w)\nd = Relu(c)\ne = Relu(a)\ny = Add(d, e)"

TREES = {
    "an operator": (lambda: is_op("Add"), "y = Add(x, x)", [["y"]]),
    "another operator": (lambda: is_op("Add"), "y = Sub(x, x)", []),
    "one of two operators": (lambda: is_op("Add") | is_op("Sub"), "y = Sub(x, x)", [["y"]]),
    "commuted": (lambda: is_op("Add")(is_op("Relu"), is_input()), "r = Relu(x)\ny = Add(x, r)", [["r", "y"]]),
    "not commuted": (lambda: is_op("Sub")(is_op("Relu"), is_input()), "r = Relu(x)\ny = Sub(x, r)", []),
    "division is not commuted": (lambda: is_op("Div")(is_op("Relu"), is_input()), "r = Relu(x)\ny = Div(x, r)", []),
    "any operator on operands": (lambda: any_op()(is_op("Relu")), "r = Relu(x)\ny = Tanh(r)", [["r", "y"]]),
    "any operands": (lambda: is_op("Concat")(...), "r = Relu(x)\ny = Concat{axis=0}(r, x, x)", [["y"]]),
    "an optional part that is there": (
        lambda: is_op("Conv").optional(lambda c: is_op("Relu")(c)),
        "c = Conv(x, w)\ny = Relu(c)",
        [["c", "y"]],
    ),
    "an optional part that is not": (lambda: is_op("Conv").optional(is_op("Relu")), "y = Conv(x, w)", [["y"]]),
    "optional parts in order": (
        lambda: is_op("Conv").optional(is_op("Relu")).optional(is_op("Tanh")),
        "c = Conv(x, w)\nt = Tanh(c)\ny = Relu(t)",
        [["c", "t"]],
    ),
    "an optional part inside": (
        lambda: is_op("Relu")(is_op("Conv").optional(lambda c: is_op("Add")(c, wildcard()))),
        "c = Conv(x, w)\nb = Add(c, w)\ny = Relu(b)",
        [["c", "b", "y"]],
    ),
    "a diamond": (diamond_tree, DIAMOND, [["c", "r", "l", "y"]]),
    "a fake diamond": (diamond_tree, FAKE, []),
    "a diamond with more behind it": (diamond_tree, DIAMOND.replace("y =", "d =") + "\ny = Add(d, c)", None),
    "batch normalisation": (batch_norm, BATCH_NORM + "y = Add(d, m)", [["s", "g", "v", "q", "d", "y"]]),
    "batch normalisation, commuted": (batch_norm, BATCH_NORM + "y = Add(m, d)", [["s", "g", "v", "q", "d", "y"]]),
    "no batch normalisation": (batch_norm, BATCH_NORM + "y = Sub(d, m)", []),
    "shared operands, all commuted": (
        nested_adds,
        "b = Add(x, x)\nn = Add(x, b)\nm = Add(x, n)\ny = Add(m, n)",
        [["n", "m", "y"]],
    ),
    "one value twice": (lambda: is_op("MatMul")(wildcard(), wildcard()), "y = MatMul(x, x)", [["y"]]),
    "a constant is no input": (lambda: is_op("Conv")(wildcard(), is_input()), "y = Conv(x, w)", []),
    "an input is no constant": (lambda: is_op("Mul")(is_const(), is_const()), "y = Mul(x, w)", []),
    "of one constant and one input": (
        lambda: is_op("Mul")(is_input() | is_const(), is_const()),
        "y = Mul(x, w)",
        [["y"]],
    ),
    "a number": (lambda: wildcard() * 0.5, "y = Mul(x, w)", [["y"]]),
    "another number": (lambda: wildcard() * 0.50001, "y = Mul(x, w)", []),
    "an array": (lambda: wildcard() * np.array([0.5]), "y = Mul(x, w)", [["y"]]),
    "an array of another shape": (lambda: wildcard() * np.array([[0.5]]), "y = Mul(x, w)", []),
    "an operand too many": (lambda: is_op("Max")(wildcard(), wildcard()), "y = Max(x, x, w)", []),
    "an operand too few": (lambda: is_op("Max")(wildcard(), wildcard(), wildcard()), "y = Max(x, w)", []),
    "alternatives of one operator": (
        lambda: is_op("Add")(is_op("Tanh"), ...) | is_op("Add")(is_op("Relu"), ...),
        "r = Relu(x)\ny = Add(r, x)",
        [["r", "y"]],
    ),
    "an alternative that fails later": (
        lambda: (lambda r: is_op("Mul")(is_op("Add")(is_op("Relu"), wildcard()) | is_op("Add")(wildcard(), r), r))(
            is_op("Tanh")
        ),
        "r = Relu(x)\nt = Tanh(x)\na = Add(r, t)\ny = Mul(a, t)",
        [["r", "t", "a", "y"]],  # in the first alternative Tanh is a wildcard's value: the root uses it all the same
    ),
    "repetition takes the longest": (
        lambda: is_op("Tanh")(repeat(is_op("Relu"), wildcard(), 1, 5)),
        "a = Relu(x)\nb = Relu(a)\ny = Tanh(b)",
        [["a", "b", "y"]],
    ),
    "a domination": (conv_dominated_by_add, DIAMOND, [["c", "r", "l", "y"]]),
    "a domination over a longer branch": (conv_dominated_by_add, DEEP, [["c", "r", "s", "t", "l", "y"]]),
    "a domination by two ways of different length": (
        conv_dominated_by_add,
        "c = Conv(x, w)\nr = Relu(c)\ns = Relu(r)\nt = Tanh(s)\ny = Add(s, t)",
        [["c", "r", "s", "t", "y"]],
    ),
    "a domination with a diamond on the path": (
        lambda: conv_dominated_by_add(unary() | is_op("Add")),
        "c = Conv(x, w)\nr = Relu(c)\ns = Add(r, r)\nt = Tanh(s)\nl = LeakyRelu(c)\ny = Add(t, l)",
        [["c", "r", "s", "t", "l", "y"]],
    ),
    "no domination: two convolutions": (conv_dominated_by_add, FAKE, []),
    "no domination: the path may not add": (
        conv_dominated_by_add,
        "c = Conv(x, w)\nr = Relu(c)\ns = Add(r, r)\nl = LeakyRelu(c)\ny = Add(s, l)",
        [],
    ),
    "no domination: a branch from the input": (
        conv_dominated_by_add,
        "c = Conv(x, w)\nr = Relu(x)\nl = LeakyRelu(c)\ny = Add(r, l)",
        [],
    ),
    "no domination: no convolution": (
        conv_dominated_by_add,
        "a = Relu(x)\nb = Relu(a)\nt = Tanh(b)\ny = Add(b, t)",
        [],
    ),
    "no domination: two candidates for the parent": (conv_dominated_by_add, TWO_PARENTS, []),
}


@pytest.mark.parametrize("name", TREES)
def test_trees(name: str) -> None:
    build, text, expected = TREES[name]
    g = graph(text, inputs="x m" if "m)" in text.split("y =")[0] else "x", initializers="w")
    if expected is None:
        assert build().match(g.node(4)) is None and build().match(g.node(3)) is not None
    else:
        assert sets(build().find_all(g, "maximal")) == expected


def test_typed_domination() -> None:
    g = graph(DIAMOND, initializers="w")
    for node in g:
        node.outputs[0].dtype, node.outputs[0].shape = ir.DataType.FLOAT, ir.Shape([1, 3, 10, 10])

    def typed(dtype: str, shape: list[int]):
        child = is_op("Add")(wildcard(), wildcard()).has_shape(shape)
        return dominates(is_op("Conv"), unary().has_dtype(dtype), child)

    assert typed("float32", [1, 3, 10, 10]).find_all(g)
    assert typed("float", [1, 3, 10, 10]).find_all(g)
    assert not typed("float", [1, 1, 10, 10]).find_all(g)
    assert not typed("float16", [1, 3, 10, 10]).find_all(g)


@pytest.mark.parametrize(("outputs", "found"), [("y", True), ("y s", False)])
def test_domination_as_the_thread_writes_it(outputs: str, found: bool) -> None:
    conv = is_op("Conv")
    relu = is_op("Relu")(conv)
    add = is_op("Add")(relu, wildcard())
    assert add.dominates(conv, relu) is add
    relu.dominates(conv)
    alone = graph("c = Conv(x, w)\nr = Relu(c)\ny = Add(x, r)", initializers="w")
    shared = graph("c = Conv(x, w)\nr = Relu(c)\ns = Sigmoid(c)\ny = Add(r, s)", outputs=outputs, initializers="w")
    assert sets(add.find_all(alone)) == [["c", "r", "y"]]
    assert not add.find_all(shared)


# ---------------------------------------------------------------------- graphs

CHAIN = "a = Relu(x)\nb = Sigmoid(a)\ny = Neg(b)"
INNER_DIAMONDS = (
    "m = MatMul(x, w)\nn = MatMul(x, w)\ns = Sigmoid(m)\nt = Sigmoid(n)\na = Add(m, n)\n"
    "b = Add(s, a)\nc = Add(t, a)\ny = Add(b, c)"
)


def test_use_of_an_input() -> None:
    source, user = is_input(), wildcard()
    _ = source ^ user
    (match,) = user.find_all(graph("y = Relu(x)"))
    assert match[source].name == "x" and match[user].name == "y"


def test_a_diamond_and_a_fork() -> None:
    g = graph("m = MatMul(x, w)\nr = Relu(m)\ns = Sigmoid(m)\ny = Add(r, s)", initializers="w")
    relu, sigmoid, add = is_op("Relu"), is_op("Sigmoid"), is_op("Add")
    is_op("MatMul").fork_to(relu, sigmoid)
    _ = relu >> add, sigmoid >> add
    assert sets(add.find_all(g)) == [["m", "r", "s", "y"]]
    product, relu, sigmoid = is_op("MatMul"), is_op("Relu"), is_op("Sigmoid")
    _ = product >> relu, product >> sigmoid  # used by each alone: cannot be
    assert not product.find_all(g)


def test_two_operands_from_one_node_and_from_two() -> None:
    one = graph("r = Relu(x)\ny = Add(r, r)")
    two = graph("a = Relu(x)\nb = Relu(x)\ny = Add(a, b)")
    fork, join = is_op("Relu"), is_op("Add")
    fork.only_used_by(join, 0)
    fork.only_used_by(join, index=1)
    assert join.find_all(one) and not join.find_all(two)
    join = is_op("Add")
    _ = is_op("Relu") >> join
    _ = is_op("Relu") >> join
    assert join.find_all(two) and not join.find_all(one)


def test_inner_diamonds() -> None:
    g = graph(INNER_DIAMONDS, initializers="w")

    def inner(last: str):
        sigmoid, add, join = is_op("Sigmoid"), is_op("Add"), is_op("Add")
        is_op("MatMul").fork_to(sigmoid, add)
        _ = sigmoid >> join
        _ = add ^ join if last == "^" else add >> join
        return join

    assert sets(inner("^").find_all(g)) == [["m", "s", "a", "b"], ["n", "t", "a", "c"]]
    assert not inner(">>").find_all(g)
    adds = [is_op("Add") for _ in range(4)]
    adds[0].fork_to(adds[1], adds[2])
    _ = adds[1] >> adds[3], adds[2] >> adds[3]
    assert sets(adds[3].find_all(g, "maximal")) == [["a", "b", "c", "y"]]


def test_a_relation_may_be_added_later() -> None:
    relu, sigmoid, neg = is_op("Relu"), is_op("Sigmoid"), is_op("Neg")
    _ = relu >> sigmoid
    assert sets(sigmoid.find_all(graph(CHAIN))) == [["a", "b"]]
    _ = sigmoid >> neg
    assert sets(sigmoid.find_all(graph(CHAIN))) == [["a", "b", "y"]]
    assert not sigmoid.find_all(graph("b = Sigmoid(x)\ny = Neg(b)"))


def test_an_operator_longer_chain_than_the_graph() -> None:
    g = graph("a = MatMul(x, w)\ny = MatMul(a, w)", initializers="w")
    assert (is_op("MatMul") >> is_op("MatMul")).find_all(g)
    assert not (is_op("MatMul") >> is_op("MatMul") >> is_op("MatMul")).find_all(g)


def test_outputs_of_one_node_meet_again() -> None:
    g = graph("m = Concat{axis=0}(x, x)\nn = MatMul(m, w)\na, b = Split{axis=0}(n)\ny = Add(b, a)", initializers="w")
    chain = is_op("Concat") >> is_op("MatMul") >> is_op("Split")
    assert sets(is_op("Add")(chain[2][0], chain[2][1]).find_all(g)) == [["m", "n", "a", "y"]]
    split = is_op("Split")
    assert not is_op("Sub")(split[0], split[1]).find_all(g)
    assert not is_op("Add")(split[0], split[0]).find_all(g)


def test_a_copy_of_a_copy() -> None:
    g = graph("a = Relu(x)\nb = Tanh(a)\nc = Relu(x)\nd = Tanh(c)\ny = Add(b, d)")
    chain = is_op("Relu").has_attr({}) ^ is_op("Tanh")
    again = dup(dup(chain))
    assert isinstance(again, Seq) and len(again) == 2 and again[0] is not chain[0]
    assert len(fork_to(chain, again).find_all(g, "maximal")) == 1
    assert not (dup(is_op("Relu") >> is_op("Tanh"))).find_all(graph("a = Relu(x)\nb = Tanh(a)\ny = Add(a, b)"))


def test_two_products_share_input_and_weight() -> None:
    x, v, w = wildcard(), wildcard(), wildcard()
    pair = together(is_op("MatMul")(x, v), is_op("MatMul")(x, w))
    g = graph("a = MatMul(x, w)\nb = MatMul(x, w)", outputs="a b", initializers="w")
    assert len(pair.find_all(g, "maximal")) == 1
    v.distinct(w)
    assert not pair.find_all(g)


def test_a_pattern_of_one_loose_node_matches() -> None:
    assert together(is_op("Relu")).find_all(graph("y = Relu(x)"))


def test_two_outputs_are_two_nodes() -> None:
    assert not together(is_op("Relu"), is_op("Relu")).find_all(graph("y = Relu(x)"))


def test_attributes_of_sequences_are_compared_element_by_element() -> None:
    g = graph(
        "a = LeakyRelu{alpha=0.1}(x)\nb = Elu{alpha=0.5}(a)\nc = LeakyRelu{alpha=0.1}(x)\nd = Elu{alpha=0.5}(c)\n"
        "e = LeakyRelu{alpha=0.1}(x)\nf = Elu{alpha=0.6}(e)\ny = Sum(b, d, f)"
    )
    one = is_op("LeakyRelu") >> is_op("Elu")
    pair = (one, dup(one))
    assert sets(fork_to(attr_eq(*pair)).find_all(g, "maximal")) == [["a", "b", "c", "d"]]
    assert len(fork_to(is_op("LeakyRelu"), is_op("LeakyRelu")).find_all(g, "maximal")) == 3
    explained = explain(fork_to(attr_eq(make(3, is_op("LeakyRelu") >> is_op("Elu")))), g)
    assert not explained.matched and "alpha must be equal" in explained.message


# ---------------------------------------------------------------------- ONNX itself


def test_a_node_with_absent_and_trailing_operands() -> None:
    g = graph("a = Resize(x, , w)\nb = Clip(a, , )\ny = Clip(b, , w)", initializers="w")
    assert sets(is_op("Resize")(wildcard(), None, is_const()).find_all(g)) == [["a"]]
    assert sets(is_op("Clip")(wildcard()).find_all(g)) == [["b"]]
    assert sets(is_op("Clip")(wildcard(), maybe(is_const()), maybe(is_const())).find_all(g)) == [["b"], ["y"]]


def test_defaults_count_on_both_sides_of_attr_eq() -> None:
    g = graph("a = Gemm{alpha=1.0;transB=0}(x, w)\nb = Gemm(x, w)\ny = Add(a, b)", initializers="w")
    assert together(attr_eq(is_op("Gemm"), is_op("Gemm"))).find_all(g)


def test_domains_are_kept_apart() -> None:
    g = graph("y = Relu(x)")
    g.node(0).domain = "ai.onnx"
    assert is_op("Relu").find_all(g) and is_op("Relu", domain="ai.onnx").find_all(g)
    g.node(0).domain = "mine"
    assert not is_op("Relu").find_all(g) and is_op("Relu", domain="mine").find_all(g)


def test_integers_are_compared_exactly_and_halves_to_their_digits() -> None:
    g = graph("a = Reshape(x, s)\ny = Mul(a, h)", initializers="s h")
    g.initializers["s"].const_value = ir.tensor(np.array([1, 1_000_001]))
    g.initializers["h"].const_value = ir.tensor(np.array(0.1, np.float16))
    assert is_op("Reshape")(wildcard(), [1, 1_000_001]).find_all(g)
    assert not is_op("Reshape")(wildcard(), [1, 1_000_000]).find_all(g)
    assert not is_op("Reshape")(wildcard(), 1).find_all(g)
    assert (wildcard() * 0.1).find_all(g) and not (wildcard() * 0.101).find_all(g)


def test_small_numbers_differ() -> None:
    g = graph("y = Add(x, e)", initializers="e")
    g.initializers["e"].const_value = ir.tensor(np.array(1e-12, np.float32))
    assert (wildcard() + 1e-12).find_all(g) and not (wildcard() + 1e-9).find_all(g) and not (wildcard() + 0).find_all(g)


def test_functions_are_searched_each_for_itself() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20, "f" : 1]>
        g (float[2] x) => (float[2] y) { a = Relu (x) y = f.h (a) }
        <domain: "f", opset_import: ["" : 20]> h (a) => (b) { t = Neg (a) b = Relu (t) }""")
    )
    assert sets(is_op("Relu").find_all(model)) == [["a"], ["b"]]
    assert not (is_op("Relu") ^ is_op("Neg")).find_all(model)  # a match does not cross a call
    assert sets((is_op("Relu") ^ is_op("h", domain="f")).find_all(model)) == [["a", "y"]]


def test_fuzzy_operators_of_other_domains_and_commuting_ones() -> None:
    g = graph("a = Relu(x)\nb = Cast(a)\nc = Mul(w, b)\ny = Tanh(c)", initializers="w")
    pattern = is_op("Relu") >> is_op("Tanh")
    assert not pattern.find_all(g, fuzzy_ops=["Cast"])
    (match,) = pattern.find_all(g, fuzzy_ops=["Cast", "Mul"])
    assert names(match) == ["a", "b", "c", "y"]
    g.node(1).domain = "mine"
    assert not pattern.find_all(g, fuzzy_ops=["Cast", "Mul"])
    assert pattern.find_all(g, fuzzy_ops=["mine::Cast", "Mul"])


def test_fuzzy_ways_that_part_and_meet() -> None:
    g = graph("a = Relu(x)\nb = Cast(a)\nc = Cast(a)\ny = Add(b, c)")
    (match,) = (is_op("Relu") >> is_op("Add")).find_all(g, fuzzy_ops=["Cast"])
    assert names(match) == ["a", "b", "c", "y"]
    left = graph("a = Relu(x)\nb = Cast(a)\nc = Cast(a)\ny = Add(b, x)", outputs="y c")
    assert not (is_op("Relu") >> is_op("Add")).find_all(left, fuzzy_ops=["Cast"])
    assert (is_op("Relu") ^ is_op("Add")).find_all(left, fuzzy_ops=["Cast"])


# ---------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("misuse", "words"),
    [
        (lambda: wildcard()(wildcard()), "takes no operands"),
        (lambda: (is_op("A") >> is_op("B"))(wildcard()), "takes no operands"),
        (lambda: is_op("Relu").match(graph("y = Relu(x)")), r"find_all\(\) searches a graph"),
        (lambda: is_op("Relu").find_all(graph("y = Relu(x)").node(0)), "not in a Node"),
        (lambda: is_op("Relu").find_all(onnx.ModelProto()), r"not in a ModelProto; ir.from_proto\(\)"),
        (lambda: is_op("Relu").extern_use("yes"), "external use is True"),
        (lambda: is_op("Relu").add_graph_constraint("no"), "not a graph constraint"),
        (lambda: is_op(), "needs an operator type"),
        (lambda: is_op("Split")[-1], "counted from 0"),
        (lambda: repeat(is_op("Relu"), wildcard(), 3, 2), "makes no sense"),
    ],
)
def test_misuse(misuse, words) -> None:
    with pytest.raises(PatternError, match=words):
        misuse()


# ---------------------------------------------------------------------- determinism

PROGRAM = """
from tests.unit.pattern.graphs import graph, sets
from collage.pattern import *
text = "\\n".join(f"r{i} = Relu(x)\\nt{i} = Tanh(r{i})\\nc{i} = Cast(t{i})" for i in range(6))
g = graph(text + "\\ny = Sum(c0, c1, c2, c3, c4, c5)")
pair = fork_to(make(2, is_op("Relu") >> is_op("Tanh")))
for mode in ("all", "maximal", "disjoint"):
    print(sets(pair.find_all(g, mode)))
print(sets((is_op("Tanh") >> is_op("Sum")).find_all(g, fuzzy_ops=["Cast", "Neg", "Relu"])))
print(explain(pair.fork_to(is_op("Neg")), g))
print(closest(library.patterns(), g))
"""


def test_hashes_do_not_matter() -> None:
    printed = set()
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        printed.add(run.stdout)
    assert len(printed) == 1 and printed.pop().count("\n") > 5
