"""Cases in which other matchers explode stay within a few thousand search steps."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from collage.pattern import (
    NonLeafExternUse,
    NotApplicable,
    PatternLike,
    RewriteRule,
    attr_eq,
    fork_to,
    is_const,
    is_op,
    library,
    make,
    rewrite,
    together,
    wildcard,
)

from .graphs import graph


def copies(count: int) -> ir.Graph:
    text = "\n".join(f"c{i} = Conv{{k={i}}}(x, w)\na{i} = Add(c{i}, w)\nr{i} = Relu(a{i})" for i in range(count))
    return graph(text, outputs=" ".join(f"r{i}" for i in range(count)), initializers="w")


def chain(last: str = "Relu") -> PatternLike:
    return is_op("Conv")(wildcard(), is_const()) >> is_op("Add") >> is_op(last)


@pytest.mark.parametrize("last", ["Tanh", "Conv"])
def test_five_independent_roots_of_which_one_is_nowhere(last: str) -> None:
    pattern = together(*(chain() for _ in range(4)), chain(last))
    assert pattern.find_all(copies(40), budget=2000) == []


def test_five_independent_roots_that_clash_pairwise() -> None:
    assert together(attr_eq(*(chain() for _ in range(5)))).find_all(copies(40), budget=20_000) == []


@pytest.mark.parametrize("refused", ["middle must be used elsewhere", "all inner nodes must be used elsewhere"])
def test_five_independent_roots_that_external_uses_refuse(refused: str) -> None:
    parts = [chain() for _ in range(5)]
    if refused.startswith("all"):
        parts[0].add_graph_constraint(NonLeafExternUse(True))
    else:
        parts[4].elements[1].extern_use(True)
    assert together(parts).find_all(copies(40), budget=20_000) == []


@pytest.mark.parametrize("mode", ["maximal", "disjoint"])
def test_interchangeable_parts_are_tried_in_one_order(mode: str) -> None:
    heads = graph(
        "\n".join(f"r{i} = Relu(x)\nn{i} = Neg(r{i})" for i in range(9)),
        outputs=" ".join(f"n{i}" for i in range(9)),
    )
    fork = fork_to(make(9, is_op("Relu") >> is_op("Neg")))
    (match,) = fork.find_all(heads, mode, budget=20_000)
    assert len(match.nodes) == 18


def test_four_outputs_of_forty_groups() -> None:
    lines = [f"s{i} = Tanh(x)\n" + "\n".join(f"r{i}_{j} = Relu(s{i})" for j in range(4)) for i in range(40)]
    g = graph("\n".join(lines), outputs=" ".join(f"r{i}_{j}" for i in range(40) for j in range(4)))
    source = wildcard()
    assert len(together(*(is_op("Relu")(source) for _ in range(4))).find_all(g, budget=20_000)) == 40 * 24
    five = together(*(is_op("Relu")(source) for _ in range(5)))
    assert five.find_all(g, budget=50_000) == []


def test_four_outputs_of_which_one_is_refused_late() -> None:
    x = wildcard()
    heads = [is_op("Relu")(is_op("Add")(is_op("Conv")(x, is_const()), is_const())) for _ in range(4)]
    heads[3].extern_use(False)
    assert together(*heads).find_all(copies(160), budget=20_000) == []


def test_eight_commuted_operands() -> None:
    g = graph("\n".join(f"r{i} = Relu(x)" for i in range(8)) + f"\ny = Sum({', '.join(f'r{i}' for i in range(8))})")
    wanted = [is_op("Relu") for _ in range(7)] + [is_op("Tanh")]
    assert is_op("Sum")(*wanted).match(g.node(8), budget=1000) is None
    assert is_op("Sum")(*wanted[:7], ...).match(g.node(8)) is not None


def test_the_library_needs_few_steps_per_node() -> None:
    lines = ["v0 = Relu(x)"]
    for i in range(1, 400):
        lines.append(f"m{i} = MatMul(v{i - 1}, w)\na{i} = Add(m{i}, w)\nd{i} = Div(a{i}, w)\ne{i} = Erf(d{i})")
        lines.append(f"g{i} = Add(e{i}, w)\nh{i} = Mul(a{i}, g{i})\nv{i} = Mul(h{i}, w)")
    g = graph("\n".join(lines), outputs="v399", initializers="w")
    for name, pattern in library.patterns().items():
        found = pattern.find_all(g, "maximal", budget=60 * len(g))
        assert (
            len(found) == (399 if name in ("linear_gelu", "gelu", "gemm_activation") else 0) or name == "residual_add"
        )


@pytest.mark.parametrize("op", ["Sum", "Max", "Mean"])
def test_many_wildcards_of_one_operator(op: str) -> None:
    g = graph("y = " + op + "(" + ", ".join("xzuvwpqr") + ")", inputs=" ".join("xzuvwpqr"))
    pattern = is_op(op)(*(wildcard(name) for name in "abcdefgh"))
    (match,) = pattern.find_all(g, budget=100)
    assert [match[name].name for name in "abcdefgh"] == list("xzuvwpqr")
    shared = wildcard("s")  # a wildcard that stands elsewhere too is looked for
    both = is_op(op)(*(wildcard() for _ in range(7)), shared) ^ is_op("Neg")(shared)
    g = graph("y = " + op + "(" + ", ".join("xzuvwpqr") + ")\nn = Neg(v)", inputs=" ".join("xzuvwpqr"), outputs="y n")
    assert both.find_all(g) == []
    both = together(is_op(op)(*(wildcard() for _ in range(7)), shared), is_op("Neg")(shared))
    (match,) = both.find_all(g, budget=1000)
    assert match["s"].name == "v"


def test_a_balanced_sum() -> None:
    def tree(level: int, name: str) -> tuple[str, list[str]]:
        if level == 0:
            return f"x{name}", []
        (a, before), (b, more) = tree(level - 1, name + "l"), tree(level - 1, name + "r")
        return f"s{name}", [*before, *more, f"s{name} = Add({a}, {b})"]

    def pattern(level: int) -> PatternLike:
        return wildcard() if level == 0 else is_op("Add")(pattern(level - 1), pattern(level - 1))

    root, lines = tree(4, "")
    inputs = sorted({part for line in lines for part in line.split("(")[1].strip(")").split(", ") if part[0] == "x"})
    g = graph("\n".join(lines), inputs=" ".join(inputs), outputs=root)
    assert len(pattern(4).find_all(g)) == 2**7  # the two halves of each inner sum may change places
    assert len(pattern(4).find_all(g, "disjoint", budget=10_000)) == 1


class MergeParallel(RewriteRule):
    """The rule of the tutorial, for any number of branches."""

    def __init__(self, count: int) -> None:
        self.branches = make(count, is_op("MatMul")(wildcard(), is_const()) >> is_op("Relu"))
        self.pattern = fork_to(attr_eq(self.branches))

    def callback(self, match, op):
        weights = [match.node(m).inputs[1].const_value.numpy() for m, _ in self.branches]
        relu = op.Relu(op.MatMul(match.root, op.constant(np.concatenate(weights, axis=1))))
        parts = op.node("Split", relu, outputs=len(weights), axis=1, num_outputs=len(weights))
        return [(relu, part) for (_, relu), part in zip(self.branches, parts, strict=True)]


def forks(branches: int, hubs: int = 1) -> ir.Model:
    weights = " ".join(f"w{h}_{i}" for h in range(hubs) for i in range(branches))
    lines = []
    for h in range(hubs):
        lines.append(f"h{h} = Tanh(x)")
        lines += [f"m{h}_{i} = MatMul(h{h}, w{h}_{i})\nr{h}_{i} = Relu(m{h}_{i})" for i in range(branches)]
    outputs = " ".join(f"r{h}_{i}" for h in range(hubs) for i in range(branches))
    g = graph("\n".join(lines), outputs=outputs, initializers=weights)
    for value in (*g.inputs, *g.outputs):
        value.dtype, value.shape = ir.DataType.FLOAT, ir.Shape([2, 2])
    for value in g.initializers.values():
        value.const_value = ir.tensor(np.ones((2, 2), np.float32), name=value.name)
    return ir.Model(g, ir_version=10)


@pytest.mark.parametrize(("branches", "hubs"), [(4, 6), (16, 3), (32, 1)])
def test_parallel_branches_merge_whatever_their_number(branches: int, hubs: int) -> None:
    result = rewrite(forks(branches, hubs), MergeParallel(branches))
    assert [node.op_type for node in result.model.graph].count("MatMul") == len(result.applied) == hubs


def test_more_users_than_branches() -> None:
    result = rewrite(forks(20), MergeParallel(16), budget=20_000)
    assert len(result.applied) == 1


def test_a_spent_budget_is_an_entry_and_other_rules_go_on() -> None:
    hub = together(*(is_op("Relu") for _ in range(12)))

    class Hub(RewriteRule):
        pattern = hub

        def callback(self, match, op):
            raise NotApplicable("never")

    class Other(RewriteRule):
        pattern = is_op("Tanh")(wildcard("x"))

        def callback(self, match, op):
            return {self.pattern: op.Sin(match["x"])}

    result = rewrite(forks(30), [Hub(), Other()], budget=2000)
    assert [a.rule for a in result.applied] == ["Other"]
    stopped = [a for a in result.refused if not a.nodes]
    assert stopped and all(a.rule == "Hub" and "was stopped after 2000 steps" in a.reason for a in stopped)


def tree(leaves: list[PatternLike]) -> PatternLike:
    while len(leaves) > 1:
        leaves = [is_op("Add")(one, other) for one, other in zip(leaves[::2], leaves[1::2], strict=True)]
    return leaves[0]


def test_one_place_with_interchangeable_operands_is_matched_at_once() -> None:
    names = [f"r{i}" for i in range(8)]
    relus = "\n".join(f"{name} = Relu(x)" for name in names)
    total = list(graph(f"{relus}\ny = Sum({', '.join(names)})"))[-1]
    match = is_op("Sum")(*(is_op("Relu") for _ in names)).match(total, budget=2000)
    assert match is not None and len(match.nodes) == 9
    lines, level = [f"t{i} = Relu(x)" for i in range(16)], [f"t{i}" for i in range(16)]
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=True))
        level = [f"{one}{other}" for one, other in pairs]
        lines += [f"{name} = Add({one}, {other})" for name, (one, other) in zip(level, pairs, strict=True)]
    root = list(graph("\n".join(lines), outputs=level[0]))[-1]
    match = tree([is_op("Relu") for _ in range(16)]).match(root, budget=2000)
    assert match is not None and len(match.nodes) == 31
