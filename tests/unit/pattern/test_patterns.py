"""What each form of the language means, on small graphs; scenarios of the Relax proposal and of other systems."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from collage._errors import PatternError
from collage.pattern import (
    MatchBudgetExceeded,
    NonLeafExternUse,
    PdomSeq,
    Seq,
    absent,
    any_op,
    attr_eq,
    dominates,
    dup,
    fork_to,
    is_const,
    is_injective,
    is_input,
    is_op,
    is_out_fusible,
    is_reduce,
    make,
    maybe,
    repeat,
    together,
    wildcard,
)

from .graphs import graph, names, sets

DIAMOND = "c = Conv(x, w)\nr = Relu(c)\ns = Sigmoid(c)\ny = Add(r, s)"
CBR = "c = Conv{kernel_shape=[1 1]}(x, w)\nb = Add(c, w)\ny = Relu(b)"


def diamond(outputs: str = "y") -> ir.Graph:
    return graph(DIAMOND, outputs=outputs, initializers="w")


def cbr(outputs: str = "y") -> ir.Graph:
    return graph(CBR, outputs=outputs, initializers="w")


# ---------------------------------------------------------------------- operands and leaves


def test_operands_match_in_order_unless_the_operator_commutes() -> None:
    g = graph("a = Relu(x)\nb = Sub(a, x)\ny = Add(b, x)")
    assert is_op("Sub")(is_op("Relu")(wildcard()), wildcard()).find_all(g)
    assert not is_op("Sub")(wildcard(), is_op("Relu")(wildcard())).find_all(g)
    assert is_op("Add")(wildcard(), is_op("Sub")).find_all(g)
    assert not is_op("Add", commutative=False)(wildcard(), is_op("Sub")).find_all(g)
    assert is_op("Sub", commutative=True)(wildcard(), is_op("Relu")).find_all(g)


def test_commuted_operands_are_retried_after_a_later_failure() -> None:
    g = graph("a = Relu(x)\nb = Relu(z)\ny = Add(a, b)", inputs="x z")
    left, right = wildcard(), wildcard()
    pattern = is_op("Add")(is_op("Relu")(left), is_op("Relu")(right))
    tied = together(pattern, left ^ is_op("Relu"))
    assert tied.find_all(g) == [] or all(len(m.nodes) >= 3 for m in tied.find_all(g))
    x = is_input("first").where(lambda v: v.name == "z", "called z")
    assert names(is_op("Add")(is_op("Relu")(x), is_op("Relu")).match(g.node(2))) == ["a", "b", "y"]


def test_variadic_operands_permute_and_leave_gaps() -> None:
    g = graph("a = Relu(x)\nb = Tanh(x)\nc = Sigmoid(x)\ny = Max(a, b, c)")
    assert is_op("Max")(is_op("Sigmoid"), is_op("Relu"), is_op("Tanh")).find_all(g)
    assert is_op("Max")(is_op("Sigmoid"), ...).find_all(g)
    assert not is_op("Max")(is_op("Sigmoid"), is_op("Relu")).find_all(g)
    h = graph("a = Relu(x)\nb = Tanh(x)\nc = Sigmoid(x)\ny = Concat{axis=0}(a, b, c)")
    for operands in [
        (..., is_op("Sigmoid")),
        (is_op("Relu"), ...),
        (..., is_op("Tanh"), ...),
        (..., is_op("Tanh"), is_op("Sigmoid")),
    ]:
        assert is_op("Concat")(*operands).find_all(h), operands
    assert not is_op("Concat")(..., is_op("Relu"), is_op("Sigmoid"), ...).find_all(h)
    assert not is_op("Concat")(is_op("Tanh"), ...).find_all(h)


def test_absent_operands() -> None:
    g = graph("a = Clip(x, , w)\nb = Clip(a, w)\ny = Clip(b)", initializers="w")
    assert sets(is_op("Clip")(wildcard(), None, wildcard()).find_all(g)) == [["a"]]
    assert sets(is_op("Clip")(wildcard(), wildcard()).find_all(g)) == [["b"]]
    assert sets(is_op("Clip")(wildcard()).find_all(g)) == [["y"]]
    assert sets(is_op("Clip")(wildcard(), absent()).find_all(g)) == [["y"]]
    assert sets(is_op("Clip")(wildcard(), maybe(is_const()), maybe(is_const())).find_all(g)) == [["a"], ["b"], ["y"]]


def test_constants_and_inputs() -> None:
    g = graph("c = Constant{value_float=2.0}()\na = Mul(x, w)\nb = Mul(a, c)\ny = Mul(b, x)", initializers="w")
    assert sets(is_op("Mul")(wildcard(), is_const()).find_all(g)) == [["a"], ["b"]]
    assert sets((wildcard() * 0.5).find_all(g)) == [["a"]]
    assert sets((2.0 * wildcard()).find_all(g)) == [["b"]]
    assert sets((wildcard() * is_input()).find_all(g)) == [["a"], ["y"]]
    overridable = graph("y = Mul(x, w)", inputs="x w")
    overridable.inputs[1].const_value = ir.tensor([0.5])
    overridable.register_initializer(overridable.inputs[1])
    assert not (wildcard() * is_const()).find_all(overridable)


def test_one_wildcard_is_one_value_and_two_may_coincide() -> None:
    g = graph("a = MatMul(x, x)\ny = MatMul(a, x)")
    same = wildcard()
    assert sets(is_op("MatMul")(same, same).find_all(g)) == [["a"]]
    assert sets(is_op("MatMul")(wildcard(), wildcard()).find_all(g)) == [["a"], ["y"]]
    one, two = wildcard(), wildcard()
    one.distinct(two)
    assert sets(is_op("MatMul")(one, two).find_all(g)) == [["y"]]


def test_distinct_patterns_match_distinct_nodes() -> None:
    parallel = is_op("Conv") + is_op("Conv")
    shared = is_op("Conv")
    folded = graph("c = Conv(x, w)\ny = Add(c, c)", initializers="w")
    apart = graph("c = Conv(x, w)\nd = Conv(x, w)\ny = Add(c, d)", initializers="w")
    assert not parallel.find_all(folded)
    assert len(parallel.find_all(apart)) == 2  # either convolution may be the first operand: two assignments
    assert len(parallel.find_all(apart, "maximal")) == 1
    assert (shared + shared).find_all(folded)
    assert not (shared + shared).find_all(apart)


def test_two_users_need_two_nodes() -> None:
    c = is_op("Conv")
    _ = c > is_op("Add")
    pattern = c > is_op("Add")
    one = graph("c = Conv(x, w)\ny = Add(c, w)", initializers="w")
    two = graph("c = Conv(x, w)\na = Add(c, w)\nb = Add(c, w)", outputs="a b", initializers="w")
    assert not pattern.find_all(one)
    assert len(pattern.find_all(two, "maximal")) == 1


# ---------------------------------------------------------------------- attributes, shapes, types


def test_attributes_are_a_subset_with_defaults_applied() -> None:
    g = cbr()
    assert is_op("Conv").with_attr("kernel_shape", (1, 1)).find_all(g)
    assert is_op("Conv").has_attr({"group": 1}).find_all(g)  # the schema's default
    assert not is_op("Conv").has_attr(group=2).find_all(g)
    assert not is_op("Conv").has_attr(no_such=1).find_all(g)
    assert is_op("Conv").has_attr({}).find_all(g)
    assert is_op("LeakyRelu").has_attr(alpha=0.01).find_all(graph("y = LeakyRelu(x)"))
    assert is_op("Conv").has_attr(auto_pad="NOTSET").find_all(g)


def test_bodies_take_defaults_from_the_opset_around_them() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 12]>
        g (float[2, 3, 4] x, bool c) => (float[2, 3, 4] y) {
            y = If (c) <then_branch = t () => (float[2, 3, 4] a) { a = Softmax (x) },
                        else_branch = e () => (float[2, 3, 4] b) { b = Relu (x) }>
        }""")
    model = ir.from_proto(proto)  # from opset 13 on, the default axis is -1
    assert is_op("Softmax").has_attr(axis=1).find_all(model)
    assert not is_op("Softmax").has_attr(axis=-1).find_all(model)


def test_shapes_and_types() -> None:
    g = cbr()
    value = g.node(0).outputs[0]
    assert not is_op("Conv").has_shape([None, 3]).find_all(g)
    value.shape, value.dtype = ir.Shape(["n", 3]), ir.DataType.FLOAT16
    assert is_op("Conv").has_shape([None, 3]).find_all(g)
    assert is_op("Conv").has_shape(["n", 3]).has_rank(2).has_dtype("float16").find_all(g)
    assert not is_op("Conv").has_shape([1, 3]).find_all(g)
    assert not is_op("Conv").has_dtype(ir.DataType.FLOAT).find_all(g)
    with pytest.raises(PatternError, match="unknown element type"):
        is_op("Conv").has_dtype("float13")


def test_same_shape_needs_known_equal_shapes() -> None:
    g = cbr()
    conv, add = is_op("Conv"), is_op("Add")
    pattern = (conv ^ add).first.same_shape(add)
    assert not pattern.find_all(g)
    for node in list(g)[:2]:
        node.outputs[0].shape = ir.Shape(["n", 3])
    assert pattern.find_all(g)
    g.node(1).outputs[0].shape = ir.Shape(["m", 3])
    assert not pattern.find_all(g)


# ---------------------------------------------------------------------- alternatives and their kin


def test_a_failed_alternative_is_retried() -> None:
    g = graph("a = Relu(x)\nb = Tanh(a)\ny = Add(b, a)")
    inner = is_op("Tanh")(wildcard()) | is_op("Tanh")(is_op("Relu"))
    for choice in (inner, is_op("Tanh")(is_op("Relu")) | is_op("Tanh")(wildcard())):
        assert ["a", "b", "y"] in sets((choice + wildcard()).find_all(g))
    shared = is_op("Relu")(wildcard())
    assert sets(((shared | is_op("Tanh")(shared)) + shared).find_all(g)) == [["a", "b", "y"]]


def test_constraints_hold_only_where_their_alternative_is_chosen() -> None:
    g = diamond()
    alone = (is_op("Conv") >> is_op("Relu")).last
    assert not alone.find_all(g)
    assert sets((alone | is_op("Sigmoid")).find_all(g)) == [["s"]]


def test_optional_parts() -> None:
    g = cbr()
    conv = is_op("Conv")
    pattern = conv.optional(lambda c: is_op("Add")(c, is_const())).optional(lambda a: is_op("Relu")(a))
    assert sets(pattern.find_all(g, "maximal")) == [["c", "b", "y"]]
    assert names(pattern.match(g.node(1))) == ["c", "b"]
    assert names(pattern.match(g.node(0))) == ["c"]


def test_conjunction_and_negation() -> None:
    g = cbr()
    both = is_op("Conv", "Relu") & any_op().has_attr(group=1)
    assert sets(both.find_all(g)) == [["c"]]
    assert sets(is_op("Relu")(~is_op("Conv")).find_all(g)) == [["y"]]
    assert not is_op("Relu")(~is_op("Add")).find_all(g)
    assert not is_op("Add")(~is_op("Conv"), ~is_op("Conv")).find_all(g)


def test_a_negation_may_refer_to_the_rest_of_the_match() -> None:
    g = graph("a = Relu(x)\nb = Add(a, x)\ny = Add(a, a)\n", outputs="b y")
    a = wildcard()
    assert sets(is_op("Add", commutative=False)(a, ~(wildcard() & a)).find_all(g)) == [["b"]]


def test_outputs_of_a_node_with_several() -> None:
    g = graph("a, b = Split{axis=0}(x)\nc = Relu(b)\ny = Add(a, c)")
    split = is_op("Split")
    assert is_op("Relu")(split[1]).find_all(g)
    assert not is_op("Relu")(split[0]).find_all(g)
    assert not is_op("Relu")(is_op("Split")).find_all(g)  # without an index: the first output
    other = is_op("Split")
    match = is_op("Add")(other[0], is_op("Relu")(other[1])).match(g.node(2))
    assert match.node(other) is g.node(0) and names(match) == ["a", "c", "y"]
    assert (is_op("Split") ^ is_op("Relu")).find_all(g)  # any output counts as a use
    assert not (is_op("Split") >> is_op("Relu")).find_all(g)


def test_repetition() -> None:
    g = graph("a = Relu(x)\nb = Relu(a)\nc = Relu(b)\ny = Tanh(c)")
    source = wildcard("source")
    assert [len(m.nodes) for m in is_op("Tanh")(repeat(is_op("Relu"), source, 1, 2)).find_all(g)] == [2, 3]
    match = is_op("Tanh")(repeat(is_op("Relu"), wildcard("source"), 3, 5)).match(g.node(3))
    assert match["source"].name == "x"
    assert not is_op("Tanh")(repeat(is_op("Relu"), wildcard(), 4, 5)).find_all(g)


# ---------------------------------------------------------------------- use and def


@pytest.mark.parametrize("outputs", ["y", "y c"])
def test_only_used_by_counts_graph_outputs(outputs: str) -> None:
    assert bool((is_op("Conv") >> is_op("Add")).find_all(cbr(outputs))) == (outputs == "y")
    assert (is_op("Conv") ^ is_op("Add")).find_all(cbr(outputs))


def test_only_used_by_counts_captured_values() -> None:
    g = cbr()
    conv = g.node(0).outputs[0]
    inner = ir.Node("", "Neg", [conv], name="inner")
    inner.outputs[0].name = "inner_out"
    body = ir.Graph([], [inner.outputs[0]], nodes=[inner], name="body")
    owner = ir.Node("", "If", [g.inputs[0]], [ir.AttrGraph("then_branch", body)], name="if")
    owner.outputs[0].name = "if_out"
    g.append(owner)
    g.outputs.append(owner.outputs[0])
    assert not (is_op("Conv") >> is_op("Add")).find_all(g)
    assert sets((is_op("Conv") ^ is_op("If")).find_all(g)) == [["c", "if_out"]]
    assert not (is_op("Conv") ^ is_op("Neg")).find_all(g)  # a match does not cross into a body
    assert sets(is_op("Neg")(wildcard()).find_all(ir.Model(g, ir_version=10))) == [["inner_out"]]


def test_sequences() -> None:
    g = cbr()
    for pattern in (
        is_op("Conv") >> is_op("Add") >> is_op("Relu"),
        is_op("Conv") >> (is_op("Add") >> is_op("Relu")),
        PdomSeq(is_op("Conv"), is_op("Add"), is_op("Relu")),
        Seq(is_op("Conv"), is_op("Add"), is_op("Relu")),
        (is_op("Conv") > is_op("Add")) > is_op("Relu"),
        is_op("Conv") ^ is_op("Add") ^ is_op("Relu"),
        is_op("Conv") >> is_op("Add") > is_op("Relu"),
    ):
        assert sets(pattern.find_all(g)) == [["c", "b", "y"]]
    conv = is_op("Conv")
    assert conv.oub(is_op("Add").oub(is_op("Relu"))) is conv
    assert sets(conv.find_all(g)) == [["c", "b", "y"]]


def test_a_chained_comparison_is_explained() -> None:
    with pytest.raises(PatternError, match=r"a > b.*and.*Seq\(a, b, c\)"):
        _ = is_op("A") > is_op("B") > is_op("C")
    with pytest.raises(PatternError, match="~p"):
        _ = not is_op("A")


def test_operand_index_of_a_use() -> None:
    g = graph("a = Relu(x)\ny = Sub(x, a)")
    relu, sub = is_op("Relu"), is_op("Sub")
    relu.used_by(sub, 1)
    assert relu.find_all(g)
    relu, sub = is_op("Relu"), is_op("Sub")
    relu.used_by(sub, 0)
    assert not relu.find_all(g)


def test_the_counter_example_of_the_relax_proposal() -> None:
    pattern = is_op("Conv") >> is_op("Relu") >> is_op("Add")
    assert not pattern.find_all(diamond())
    separate = graph("c = Conv(x, w)\nr = Relu(c)\nt = Softmax(x)\ny = Add(t, r)", initializers="w")
    assert pattern.find_all(separate)
    tapped = graph("c = Conv(x, w)\nr = Relu(c)\nt = Softmax(r)\ny = Add(x, r)", outputs="y t", initializers="w")
    assert not pattern.find_all(tapped)
    assert (is_op("Conv") >> is_op("Relu") > is_op("Add")).find_all(tapped)


def test_exclusion_existential_and_universal() -> None:
    g = diamond()
    assert (is_op("Conv") > ~is_op("Sigmoid")).find_all(g)  # Relu is a user that is no Sigmoid
    assert not is_op("Conv").no_consumer(is_op("Sigmoid")).find_all(g)
    assert is_op("Conv").no_consumer(is_op("Cast")).find_all(g)
    only = graph("r = Relu(x)\ny = Cast{to=10}(r)")
    assert not (is_op("Relu") > ~is_op("Cast")).find_all(only)


def test_external_use_in_three_modes() -> None:
    a = graph("c = Conv(x, w)\nb = Add(c, w)\nr = Relu(b)\nt = Tanh(b)", outputs="r t", initializers="w")
    b = graph("c = Conv(x, w)\nb = Add(c, w)\nr = Relu(b)", outputs="r", initializers="w")
    for must, in_a, in_b in [(True, True, False), (False, False, True), (None, True, True)]:
        pattern = is_op("Conv") >> is_op("Add").extern_use(must) > is_op("Relu")
        assert bool(pattern.find_all(a)) == in_a
        assert bool(pattern.find_all(b)) == in_b
        whole = is_op("Conv") > is_op("Add")
        whole = whole > is_op("Relu")
        whole.add_graph_constraint(NonLeafExternUse(must))
        assert bool(whole.find_all(b)) == (must is not True)
    both = is_op("Conv") >> is_op("Add").extern_use(None) > is_op("Relu")
    both.add_graph_constraint(NonLeafExternUse(False))
    assert both.find_all(a)  # what a pattern says of itself goes before what is said of all


def test_the_user_of_an_output_is_the_user_of_a_unique_node() -> None:
    both = graph("a, b = Split{axis=0}(x)\ny = Sub(a, b)")
    two = graph("a, b = Split{axis=0}(x)\nr = Relu(b)\ny = Sub(a, r)")
    for is_first in (True, False):
        split = is_op("Split")
        if is_first:
            split.uniq()
        pattern = is_op("Sub")(split[0], split[1])
        if not is_first:
            split.uniq()
        assert sets(pattern.find_all(both)) == sets(dup(pattern).find_all(both)) == [["a", "y"]]
    split = is_op("Split")
    pattern = split[0] ^ is_op("Sub")
    split.uniq()
    assert pattern.find_all(both) and not pattern.find_all(two)
    with pytest.raises(PatternError, match=r"uniq.*second user"):
        split[1].used_by(is_op("Relu"))


def test_uniq() -> None:
    q, k = is_op("Relu"), is_op("Tanh")
    product = q.uniq() * k.uniq()
    good = graph("a = Relu(x)\nb = Tanh(x)\ny = Mul(b, a)")
    tapped = graph("a = Relu(x)\nb = Tanh(x)\ny = Mul(b, a)", outputs="y a")
    assert product.find_all(good) and not product.find_all(tapped)
    with pytest.raises(PatternError, match=r"uniq.*second user"):
        _ = q + wildcard()
    alone = is_op("Relu").uniq()
    assert sets(alone.find_all(graph("a = Relu(x)\nb = Relu(a)\ny = Mul(b, b)"))) == [["a"], ["b"]]
    twice = is_op("Relu")
    _ = twice + 1.0, twice + 2.0
    with pytest.raises(PatternError, match="second user"):
        twice.uniq()


def test_fork_dup_and_attr_eq() -> None:
    text = "\n".join(
        f"c{i} = Conv{{kernel_shape=[{k} {k}]}}(x, w)\nb{i} = Add(c{i}, w)\nr{i} = Relu(b{i})"
        for i, k in enumerate((1, 1, 3, 1))
    )
    g = graph(text + "\ny = Concat{axis=1}(r0, r1, r2, r3)", initializers="w")
    cbr0 = is_op("Conv") >> is_op("Add") >> is_op("Relu")
    cbr1, cbr2 = dup(cbr0), dup(cbr0)
    fork = fork_to(cbr0, cbr1, cbr2)
    assert len(fork.find_all(g)) == 2 * 24  # x and w both fork; 4 * 3 * 2 assignments each
    assert len(fork.find_all(g, "maximal")) == 4
    cbr0.attr_eq(cbr1).attr_eq(cbr2)
    (match,) = fork.find_all(g, "maximal")
    assert match.root.name == "x"
    assert names(match) == ["c0", "b0", "r0", "c1", "b1", "r1", "c3", "b3", "r3"]
    made = fork_to(attr_eq(make(3, is_op("Conv") >> (is_op("Add") >> is_op("Relu")))))
    assert sets(made.find_all(g, "maximal")) == [names(match)]
    with pytest.raises(PatternError, match="lengths"):
        attr_eq(is_op("A") >> is_op("B"), is_op("A"))


def test_a_copy_matches_what_its_original_matches() -> None:
    g = cbr()
    shared = wildcard()
    original = is_op("Conv").has_attr(group=1)(shared, is_const()) ^ is_op("Add")(..., is_const()) >> is_op("Relu")
    original.add_graph_constraint(NonLeafExternUse(False))
    copy = dup(original)
    assert type(copy) is type(original)
    assert sets(copy.find_all(g)) == sets(original.find_all(g)) == [["c", "b", "y"]]
    tapped = cbr("y b")
    assert sets(copy.find_all(tapped)) == sets(original.find_all(tapped)) == []
    x = wildcard()
    one = is_op("Relu")(x)
    two = dup(one, share=[x])
    g2 = graph("a = Relu(x)\nb = Relu(z)\ny = Add(a, b)", inputs="x z")
    assert not is_op("Add")(one, two).find_all(g2)


def test_self_attention_of_the_relax_proposal() -> None:
    text = "\n".join(f"f{i} = MatMul(x, w)\nt{i} = Transpose(f{i})" for i in "qkv")
    text += "\nm = Mul(tq, tk)\ns = Div(m, w)\np = Softmax(s)\ny = Mul(p, tv)"
    qt = is_op("MatMul") >> is_op("Transpose")
    kt, vt = dup(qt), dup(qt)
    kq = qt.uniq() * kt.uniq()
    softmax = kq >> is_op("Div") >> is_op("Softmax")
    out = vt.uniq() * softmax.uniq()
    fork_to(qt, kt, vt)
    (match,) = out.find_all(graph(text, initializers="w"), "maximal")
    assert len(match.nodes) == 10
    assert not out.find_all(graph(text, outputs="y tv", initializers="w"))


def test_dominators() -> None:
    pattern = dominates(is_op("Conv"), is_op("Relu", "Sigmoid"), is_op("Add"))
    assert sets(pattern.find_all(diamond())) == [["c", "r", "s", "y"]]
    assert not dominates(is_op("Conv"), is_op("Relu"), is_op("Add")).find_all(diamond())
    assert not pattern.find_all(diamond("y r"))
    bypass = graph("c = Conv(x, w)\nr = Relu(c)\ns = Sigmoid(x)\ny = Add(r, s)", initializers="w")
    assert not pattern.find_all(bypass)  # the way through Sigmoid leads to no convolution
    biased = graph("c = Conv(x, w)\nb = Add(c, w)\nr = Relu(b)\ny = Add(r, w)", initializers="w")
    through = dominates(is_op("Conv"), is_op("Relu", "Add"), is_op("Add"))
    assert sets(through.find_all(biased, "maximal")) == [["c", "b", "r", "y"]]  # constants on the way do not matter
    escaped = graph("c = Conv(x, w)\nr = Relu(c)\ny = Add(r, w)\nt = Tanh(c)", outputs="y t", initializers="w")
    assert not pattern.find_all(escaped)


def test_operator_kinds_make_the_three_fusion_rules_three_lines() -> None:
    g = graph("c = Conv(x, w)\nr = Relu(c)\nt = Transpose(r)\ny = ReduceSum(t)", initializers="w")
    assert sets((is_out_fusible() >> is_injective()).find_all(g)) == [["c", "r"]]
    assert sets((is_injective() >> is_injective()).find_all(g)) == [["r", "t"]]
    assert sets((is_injective() >> is_reduce()).find_all(g)) == [["t", "y"]]


# ---------------------------------------------------------------------- fuzzy matching


def test_fuzzy_operators_are_skipped() -> None:
    gemm_add = is_op("Gemm") >> is_op("Add")
    plain = graph("g = Gemm(x, w)\ny = Add(g, w)", initializers="w")
    cast = graph("g = Gemm(x, w)\nc = Cast{to=10}(g)\ne = Expand(c, w)\ny = Add(e, w)", initializers="w")
    assert gemm_add.find_all(plain) and not gemm_add.find_all(cast)
    (match,) = gemm_add.find_all(cast, fuzzy_ops=["Cast", "Expand"])
    assert names(match) == ["g", "c", "e", "y"] and [n.op_type for n in match.skipped] == ["Cast", "Expand"]
    assert sets(gemm_add.find_all(plain, fuzzy_ops=["Cast"])) == [["g", "y"]]
    assert is_op("Add")(is_op("Gemm"), wildcard()).match(cast.node(3), fuzzy_ops=["Cast", "Expand"])
    tapped = graph("g = Gemm(x, w)\nc = Cast{to=10}(g)\ny = Add(c, w)", outputs="y c", initializers="w")
    assert not gemm_add.find_all(tapped, fuzzy_ops=["Cast"])


# ---------------------------------------------------------------------- results, budget, building


def test_modes() -> None:
    g = graph("a = Relu(x)\nb = Relu(a)\nc = Relu(b)\ny = Tanh(c)")
    pair = is_op("Relu")(is_op("Relu"))
    assert sets(pair.find_all(g)) == [["a", "b"], ["b", "c"]]
    assert sets(pair.find_all(g, "disjoint")) == [["a", "b"]]
    assert sets(pair.find_all(g, "maximal")) == [["a", "b"], ["b", "c"]]
    with pytest.raises(PatternError, match="unknown mode"):
        pair.find_all(g, "some")


def test_names_and_list_order_do_not_change_what_is_found() -> None:
    nodes = list(diamond())
    g = diamond()
    for node in reversed(list(g)):
        g.remove(node)
        g.append(node)
    assert [n.op_type for n in g] != [n.op_type for n in nodes]
    pattern = is_op("Conv") ^ is_op("Relu") ^ is_op("Add")
    assert sets(pattern.find_all(g)) == sets(pattern.find_all(diamond())) == [["c", "r", "y"]]


def test_captures() -> None:
    pattern = is_op("Conv")(wildcard("x"), is_const(name="w")).named("conv")
    match = pattern.match(cbr().node(0))
    assert {name: value.name for name, value in match.captures.items()} == {"x": "x", "w": "w", "conv": "c"}
    assert match[pattern].name == "c" and pattern in match and "y" not in match
    with pytest.raises(PatternError, match="both named 'x'"):
        is_op("Add")(wildcard("x"), wildcard("x")).find_all(cbr())


def test_a_budget_stops_an_explosion() -> None:
    g = graph("\n".join(f"r{i} = Relu(x)" for i in range(40)), outputs=" ".join(f"r{i}" for i in range(40)))
    with pytest.raises(MatchBudgetExceeded, match="connect them") as caught:
        together(*(is_op("Relu") for _ in range(6))).find_all(g, budget=20_000)
    assert caught.value.found and len(caught.value.found[0].nodes) == 6


def test_long_patterns_do_not_exhaust_the_stack() -> None:
    count = 1500
    g = graph("r0 = Relu(x)\n" + "\n".join(f"r{i} = Relu(r{i - 1})" for i in range(1, count)), outputs=f"r{count - 1}")
    tree = is_op("Relu")
    for _ in range(count - 1):
        tree = is_op("Relu")(tree)
    assert len(tree.match(g.node(count - 1)).nodes) == count


def test_misuse_is_explained() -> None:
    related = is_op("Conv")
    _ = related ^ is_op("Relu")
    with pytest.raises(PatternError, match="already related"):
        related.has_attr(group=1)
    with pytest.raises(PatternError, match="operands already"):
        is_op("Conv")(wildcard())(wildcard())
    with pytest.raises(PatternError, match="is not a pattern"):
        is_op("Conv")("x")
    with pytest.raises(PatternError, match="not a sequence"):
        _a, _b = is_op("Split")
    with pytest.raises(PatternError, match="contradict"):
        pattern = is_op("Conv").add_graph_constraint(NonLeafExternUse(True))
        pattern.add_graph_constraint(NonLeafExternUse(False)).find_all(cbr())


@pytest.mark.parametrize(
    ("misuse", "words"),
    [
        (lambda m, g: m["sourse"], "no capture of this match is called 'sourse'; did you mean 'source'"),
        (lambda m, g: m["q"], "no capture of this match is called 'q'; there are 'source'"),
        (lambda m, g: m[is_op("Tanh")], "<Tanh> is not a part of <match of Relu"),
        (lambda m, g: m.node(is_op("Tanh")), "<Tanh> is not a part of <match of Relu"),
        (lambda m, g: m.node("source"), "node\\(\\) takes a pattern"),
        (lambda m, g: is_op(("Relu", "Mul")), "write is_op\\('Relu', 'Mul'\\)"),
        (lambda m, g: is_op("Relu", 3), "write is_op\\('Conv'\\)"),
        (lambda m, g: is_const("abc"), "is_const\\(name='abc'\\) names a capture"),
        (lambda m, g: is_const([[1], [2, 3]]), "give equally long lists"),
        (lambda m, g: dup("x"), "'x' is not a pattern to copy"),
        (lambda m, g: make(2, "x"), "'x' is not a pattern to copy"),
        (lambda m, g: is_op("Relu").find_all(g, fuzzy_ops=[is_op("Cast")]), "operator types such as 'Cast'"),
        (lambda m, g: is_op("Relu").has_shape(3), "takes a list of dimensions"),
        (lambda m, g: is_op("Relu").where("positive", "it is"), "takes a function"),
        (lambda m, g: is_op("Split")["x"], "outputs are counted from 0"),
    ],
)
def test_misuse_of_a_part_is_explained(misuse, words) -> None:
    g = graph("y = Relu(x)")
    (match,) = is_op("Relu")(wildcard("source")).find_all(g)
    with pytest.raises(PatternError, match=words):
        misuse(match, g)


def test_a_sequence_says_that_its_elements_are_refined() -> None:
    with pytest.raises(AttributeError, match="no 'has_attr'; refine its elements"):
        (is_op("Conv") ^ is_op("Relu")).has_attr(group=1)


def test_what_is_not_in_a_match_is_a_key_error_too() -> None:
    (match,) = is_op("Relu").find_all(graph("y = Relu(x)"))
    with pytest.raises(KeyError, match="no capture"):
        match["x"]


def test_one_fuzzy_operator_may_be_given_as_text() -> None:
    g = graph("a = Relu(x)\nb = Cast{to=1}(a)\ny = Neg(b)")
    (match,) = (is_op("Relu") ^ is_op("Neg")).find_all(g, fuzzy_ops="Cast")
    assert len(match.nodes) == 3
