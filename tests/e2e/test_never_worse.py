"""Collage costs at most what classic partitioning does: ``partition_for`` one target, and ``FuseOps`` for the rest."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from collage.byoc import FuseOps, partition_for
from collage.frontend import read_model
from collage.graph import kernel_model, kernels_of
from collage.measure import CustomCostEstimator
from collage.pattern import fork_to, is_op, make, wildcard
from collage.target import Target
from collage.toolchains import Availability, PatternEntry, Registry, Support, ToolchainBase
from collage.transform import CollageFuseOps, PassContext, prepare
from tests.e2e.conftest import model_of

ONE_INPUT = ("Relu", "Neg", "Tanh", "Softmax", "Transpose")
TWO_INPUTS = ("Add", "Mul", "MatMul", "Sub")


class Stated(ToolchainBase):
    """A toolchain that only states what it takes."""

    on_default_menu = False

    def __init__(self, name: str, target: str, takes: Sequence[str] | None, whole: bool, table: Sequence[Any]) -> None:
        self.name, self.targets = name, (target,)
        self._takes, self.optimises_whole_graphs, self._table = takes, whole, table

    def availability(self) -> Availability:  # type: ignore[override]
        return Availability(True, "1", "1")

    def supports(self, node: ir.Node, target: Target) -> Support:
        return Support(self._takes is None or node.op_type in self._takes, "not taken")

    def pattern_table(self) -> Sequence[PatternEntry]:
        return self._table


def random_model(rng: random.Random, most: int = 12) -> onnx.ModelProto:
    """A graph of square matrices, with several readers of many values, and up to three outputs."""
    values, nodes = ["x", "w"], []
    for i in range(rng.randint(3, most)):
        inputs = rng.sample(values[-5:], 2) if rng.random() < 0.5 else [rng.choice(values[-5:])]
        operator = rng.choice(TWO_INPUTS if len(inputs) == 2 else ONE_INPUT)
        nodes.append(helper.make_node(operator, inputs, [f"v{i}"], name=f"n{i}"))
        values.append(f"v{i}")
    read = {name for node in nodes for name in node.input}
    ends = [node.output[0] for node in nodes if node.output[0] not in read]
    square = (TensorProto.FLOAT, [4, 4])
    return model_of(nodes, {"x": square, "w": square}, dict.fromkeys(ends, square), {})


def random_menu(rng: random.Random) -> Registry:
    toolchains = Registry()
    toolchains.add(Stated("native", "llvm", None, rng.random() < 0.3, ()))
    table: list[PatternEntry] = []
    if rng.random() < 0.4:
        pair = fork_to(make(2, is_op(*rng.sample(ONE_INPUT, 3))(wildcard())))
        table = [
            PatternEntry("own.two", pair),
            PatternEntry("own.sum", is_op("Add", "Sub")(is_op(*ONE_INPUT)(wildcard()), wildcard())),
            PatternEntry("own.one", is_op(*rng.sample((*ONE_INPUT, *TWO_INPUTS), 4))),
        ]
    some = rng.sample((*ONE_INPUT, *TWO_INPUTS), rng.randint(3, 7))
    toolchains.add(Stated("own", "llvm -compiler=own", some, rng.random() < 0.4, table))
    return toolchains


def plain_costs(rng: random.Random) -> Callable[[ir.Model, Target], float]:
    """A launch, and a cost for each operator."""
    launch = {name: rng.uniform(0.1, 4.0) for name in ("native", "own")}
    each = {(name, op): rng.uniform(0.1, 2.0) for name in launch for op in (*ONE_INPUT, *TWO_INPUTS, "Identity")}
    return lambda module, target: (
        launch[name_of(target)] + sum(each[name_of(target), op] for op in operators_of(module))
    )


def hashed_costs(rng: random.Random) -> Callable[[ir.Model, Target], float]:
    """Costs that follow no rule: some kernels are free, some cannot run."""
    salt = rng.random()

    def cost_of(module: ir.Model, target: Target) -> float:
        text = f"{salt} {target} {sorted(operators_of(module))}"
        share = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 0xFFFFFFFF
        return float("inf") if share < 0.02 else len(operators_of(module)) * share * share

    return cost_of


def costs_of_large_kernels(rng: random.Random) -> Callable[[ir.Model, Target], float]:
    """Costs that fall with size on one toolchain, and rise with it on the other."""
    power = rng.uniform(0.2, 0.9)
    return lambda module, target: (
        len(operators_of(module)) ** (power if name_of(target) == "own" else 1.1) * (1 + len(module.graph.outputs) / 50)
    )


KINDS = (plain_costs, hashed_costs, costs_of_large_kernels)


def name_of(target: Target) -> str:
    return target.compiler or "native"


def operators_of(module: ir.Model) -> list[str]:
    """The operators of a kernel, those of labelled parts included."""
    inner = [node for function in module.functions.values() for node in function]
    return [node.op_type for node in (*module.graph, *inner) if node.domain == "" and node.op_type != "Constant"]


def cost_of_model(model: ir.Model, cost_of: Callable[[ir.Model, Target], float]) -> float:
    """The cost of a partitioned model by its kernels; every operator but views is in one."""
    calls = kernels_of(model)
    assert len(calls) == len([node for node in model.graph if node.op_type not in ("Constant", "Identity")])
    return sum(
        cost_of(kernel_model(model, call.node, "kernel"), Target.parse(call.metadata["target"])) for call in calls
    )


def classic(model: ir.Model, toolchains: Registry) -> ir.Model:
    return FuseOps()(partition_for(model, "llvm -compiler=own", toolchains))


def searched(model: ir.Model, toolchains: Registry, cost_of: Callable[[ir.Model, Target], float]) -> ir.Model:
    estimator = CustomCostEstimator(cost_of)
    with PassContext(config={"collage.enable_collage": True}):
        return CollageFuseOps(["llvm", "llvm -compiler=own"], estimator, toolchains=toolchains)(model)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 400), marks=pytest.mark.slow)])
def test_an_estimated_partitioning_costs_at_most_the_classic_one(kind: Any, seeds: range) -> None:
    better = 0
    for seed in seeds:
        rng = random.Random(seed)
        model, toolchains = prepare(read_model(random_model(rng))), random_menu(rng)
        cost_of = kind(rng)
        by_hand = cost_of_model(classic(model, toolchains), cost_of)
        found = cost_of_model(searched(model, toolchains, cost_of), cost_of)
        assert found <= by_hand * (1 + 1e-9), seed
        better += found < by_hand * (1 - 1e-9)
    assert better
