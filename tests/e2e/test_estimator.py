"""Costs from an estimator of one's own decide, in any unit; what comes of it is built and checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import collage
from collage._errors import UsageError, WrongAnswer
from collage.byoc import partition_for
from collage.graph import kernels_of
from collage.measure import CustomCostEstimator
from collage.testing import FakeToolchain
from collage.toolchains import Registry
from collage.transform import CollageFuseOps, PassContext
from tests.e2e.conftest import LENT
from tests.e2e.test_one_path import chain, two_halves


class Asked:
    """Every kernel costs 3, and 1 for each operator that its target likes, 5 for each other one."""

    def __init__(self) -> None:
        self.kernels: list[tuple[int, str]] = []

    def estimate(self, module: ir.Model, target: collage.Target) -> collage.cost.Cost:
        operators = [node.op_type for node in module.graph]
        self.kernels.append((len(operators), target.toolchain))
        liked = {"left": "Relu", "right": "Neg"}[target.toolchain]
        return collage.cost.Cost(seconds=3 + sum(1 if op == liked else 5 for op in operators))


def test_an_estimator_drives_an_artefact(tmp_path: Path) -> None:
    executable = collage.compile(
        chain(["Relu"] * 4 + ["Neg"] * 4),
        ["left", "right"],
        estimator=Asked(),
        toolchains=two_halves(),
        workers=LENT,
        options=collage.CompileOptions(db=str(tmp_path / "db")),
    )
    report = executable.report
    assert [(k["target"], len(k["nodes"])) for k in report["kernels"]] == [
        ("llvm -compiler=left", 4),
        ("llvm -compiler=right", 4),
    ]
    assert report["search"]["algorithm"] == "estimator"
    assert report["numerics"]["ok"]
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    (y,) = executable.run({"v0": x}).values()
    np.testing.assert_allclose(y, np.maximum(x, 0))
    executable.save(tmp_path / "made")
    model = ir.load(tmp_path / "made" / "model.onnx")
    assert {call.metadata["cost"] for call in kernels_of(model)} == {"7"}


def test_kernels_that_fail_are_replaced(tmp_path: Path) -> None:
    toolchains = two_halves()
    toolchains.add(FakeToolchain("compile:raise", name="broken"))

    def cheap_where_broken(module: ir.Model, target: collage.Target) -> float:
        return 1.0 if target.toolchain == "broken" else 2.0

    executable = collage.compile(
        chain(["Relu"] * 3),
        ["broken", "left"],
        estimator=CustomCostEstimator(cheap_where_broken),
        toolchains=toolchains,
        workers=LENT,
        options=collage.CompileOptions(db=str(tmp_path / "db")),
    )
    assert {kernel["target"] for kernel in executable.report["kernels"]} == {"llvm -compiler=left"}


def test_options_of_timing_are_refused() -> None:
    with pytest.raises(UsageError, match="time_budget_s"):
        collage.compile(
            chain(["Relu"]),
            ["left"],
            estimator=Asked(),
            toolchains=two_halves(),
            options=collage.CompileOptions(time_budget_s=5.0),
        )


def fused(model: ir.Model, estimator: object, **options: object) -> ir.Model:
    wanted = collage.CompileOptions(**options)  # type: ignore[arg-type]
    with PassContext(config={"collage.enable_collage": True}):
        return CollageFuseOps(["left", "right"], estimator, options=wanted, toolchains=two_halves())(model)


def test_equal_kernels_are_asked_about_once_and_only_if_they_may_matter() -> None:
    class Flat(Asked):
        def estimate(self, module: ir.Model, target: collage.Target) -> collage.cost.Cost:
            super().estimate(module, target)
            return collage.cost.Cost(seconds=1.0)

    model, estimator = ir.from_proto(chain(["Relu"] * 13)), Flat()
    assert [len(call.function) for call in kernels_of(fused(model, estimator))] == [13]
    assert len(estimator.kernels) == len(set(estimator.kernels)), "equal kernels once"
    assert len(estimator.kernels) <= 2 * 13, "of 91 sub-graphs for each of two targets"


def test_it_is_never_worse_than_the_greedy_partitioning() -> None:
    """A thing that only pays in kernels larger than any that is enumerated."""

    def pays_when_large(module: ir.Model, target: collage.Target) -> float:
        operators = len(module.graph)
        return operators * 1.0 if operators < 30 else 1.0

    model = ir.from_proto(chain(["Relu", "Neg"] * 20))
    estimator = CustomCostEstimator(pays_when_large)
    greedy = partition_for(model, "llvm -compiler=left", two_halves())
    assert len(list(kernels_of(greedy))) == 1
    from collage.fusion import FusionOptions

    for options in ({}, {"fusion": FusionOptions(max_cuts=1)}):
        assert len(list(kernels_of(fused(model, estimator, **options)))) == 1


def test_a_plan_that_is_wrong_is_not_returned(tmp_path: Path) -> None:
    toolchains = Registry()
    toolchains.add(FakeToolchain("run:wrong", name="liar"))
    with pytest.raises((WrongAnswer, collage.CollageError)):
        collage.compile(
            chain(["Relu"] * 3),
            ["liar"],
            estimator=CustomCostEstimator(lambda module, target: 1.0),
            toolchains=toolchains,
            workers=LENT,
            options=collage.CompileOptions(db=str(tmp_path / "db")),
        )
