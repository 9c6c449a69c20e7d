"""Cases in which other matchers explode stay within a few thousand search steps."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from collage.pattern import (
    NonLeafExternUse,
    PatternLike,
    attr_eq,
    fork_to,
    is_const,
    is_op,
    library,
    make,
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
