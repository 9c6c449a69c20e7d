"""The accuracy budget: coarser types where, and only where, the whole model's measured error allows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.system.machine import this_machine
from collage.toolchains import Registry
from tests.e2e.conftest import LENT, model_of
from tests.e2e.fake_rough_toolchain import RoughToolchain
from tests.figures import figures


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    operators = ["Relu", "Neg", "Tanh", "Abs", "Relu"]
    nodes = [
        helper.make_node(operator, [f"v{i}"], [f"v{i + 1}"], name=f"{operator.lower()}_{i}")
        for i, operator in enumerate(operators)
    ]
    ports = {"v0": (TensorProto.FLOAT, [1, 64])}, {f"v{len(operators)}": (TensorProto.FLOAT, [1, 64])}
    path = tmp_path_factory.mktemp("rough") / "chain.onnx"
    onnx.save(model_of(nodes, *ports, {}), path)
    return path


@pytest.fixture
def toolchains() -> Registry:
    found = Registry()
    found.add(RoughToolchain())
    return found


def compile_within(budget: float | None, chain: Path, toolchains: Registry, menu: Any = "rough") -> dict[str, Any]:
    options = collage.CompileOptions(accuracy_budget=budget, finals=budget is not None)
    return collage.compile(chain, menu, options=options, toolchains=toolchains, workers=LENT).report


def reduced_nodes(report: dict[str, Any]) -> set[str]:
    return {n for kernel in report["kernels"] if "bf16" in kernel["target"] for n in kernel["nodes"]}


def test_without_a_budget_nothing_is_rough(chain: Path, toolchains: Registry) -> None:
    report = compile_within(None, chain, toolchains)
    assert report["menu"] == ["llvm -compiler=rough"]
    assert not reduced_nodes(report)


@pytest.mark.slow
def test_a_large_budget_takes_the_whole_model(chain: Path, toolchains: Registry) -> None:
    report = compile_within(0.1, chain, toolchains)
    assert len(reduced_nodes(report)) == 5
    assert 0.01 < report["numerics"]["max_rel_error"] <= 0.1 == report["numerics"]["tolerance"]


@pytest.mark.slow
def test_a_small_budget_keeps_the_rough_operator_exact(chain: Path, toolchains: Registry) -> None:
    report = compile_within(1e-3, chain, toolchains)
    assert reduced_nodes(report) == {"relu_0", "neg_1", "abs_3", "relu_4"}
    assert report["numerics"]["ok"]
    assert 0 < report["numerics"]["max_rel_error"] <= 1e-3
    rough = next(row for row in figures(report)["singles"] if "bf16" in row["target"])
    assert rough["status"] == "wrong"
    assert "accuracy budget" in rough["reason"]
    assert figures(report)["speedup_vs_best_single"] > 1.5


@pytest.mark.slow
def test_a_budget_below_every_error_is_kept(chain: Path, toolchains: Registry) -> None:
    assert not reduced_nodes(compile_within(1e-5, chain, toolchains))


@pytest.mark.slow
def test_naming_a_rough_target_grants_no_budget(chain: Path, toolchains: Registry) -> None:
    report = compile_within(None, chain, toolchains, ["rough", "rough -precision=bf16"])
    assert not reduced_nodes(report)


@pytest.mark.skipif("avx512_bf16" not in this_machine().flags, reason="this processor does not compute in bf16")
@pytest.mark.slow
def test_a_real_toolchain_is_within_the_budget(mixed_model: Path) -> None:
    options = collage.CompileOptions(accuracy_budget=2e-2)
    executable = collage.compile(mixed_model, ["openvino"], options=options, workers=LENT)
    report = executable.report
    assert "llvm -compiler=openvino -precision=bf16" in report["menu"]
    assert report["numerics"]["max_rel_error"] <= 2e-2
    x = np.random.default_rng(1).standard_normal((1, 8, 50)).astype(np.float32)
    exact = collage.compile(mixed_model, ["onnxruntime"], workers=LENT).run({"x": x})
    for name, value in executable.run({"x": x}).items():
        assert np.abs(value - exact[name]).max() <= 2e-2 * np.abs(exact[name]).max()
