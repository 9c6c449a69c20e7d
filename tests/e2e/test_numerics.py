"""Latency is shared by kernels of equal key; whether they are right is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.toolchains import Registry
from tests.e2e.conftest import LENT, model_of
from tests.e2e.fake_weight_dependent_toolchain import PickyToolchain
from tests.fixed_time_toolchain import DeclaredToolchain


@pytest.fixture
def toolchains() -> Registry:
    found = Registry()
    found.add(PickyToolchain())
    found.add(DeclaredToolchain(seconds={"Mul": 0.006, "Neg": 0.001}))
    return found


def two_layers(folder: Path, first: float, second: float) -> Path:
    """Multiplications by weights that are alike but for their values, each followed by a negation."""
    weights = {f"w{i}": np.full((64, 64), value, np.float32) for i, value in enumerate((first, second))}
    nodes = [
        helper.make_node("Mul", ["x", "w0"], ["a"], name="mul_0"),
        helper.make_node("Neg", ["a"], ["b"], name="neg_0"),
        helper.make_node("Mul", ["b", "w1"], ["c"], name="mul_1"),
        helper.make_node("Neg", ["c"], ["y"], name="neg_1"),
    ]
    ports = {"x": (TensorProto.FLOAT, [64, 64])}, {"y": (TensorProto.FLOAT, [64, 64])}
    path = folder / "two_layers.onnx"
    onnx.save(model_of(nodes, *ports, weights), path)
    return path


def by_picky(report: dict[str, Any]) -> set[str]:
    return {node for kernel in report["kernels"] if "picky" in kernel["target"] for node in kernel["nodes"]}


def test_a_kernel_that_is_wrong_where_its_equal_is_right_is_not_chosen(tmp_path: Path, toolchains: Registry) -> None:
    path, options = two_layers(tmp_path, 2.0, -3.0), collage.CompileOptions(baseline="none")
    exe = collage.compile(path, ["picky", "fake"], options=options, toolchains=toolchains, workers=LENT)
    assert by_picky(exe.report) == {"mul_0"}
    x = np.ones((64, 64), np.float32)
    np.testing.assert_allclose(exe.run({"x": x})["y"], -6 * x)


@pytest.mark.slow
def test_what_was_chosen_for_other_weights_does_not_count(tmp_path: Path, toolchains: Registry) -> None:
    options = collage.CompileOptions(db=str(tmp_path / "t.sqlite"))

    def compiled(first: float, second: float) -> collage.Executable:
        path = two_layers(tmp_path, first, second)
        return collage.compile(path, ["picky", "fake"], options=options, toolchains=toolchains, workers=LENT)

    assert by_picky(compiled(2.0, 3.0).report) == {"mul_0", "mul_1"}
    assert compiled(4.0, 3.0).report["search"]["raced"]
    assert not compiled(4.0, 3.0).report["search"]["raced"]
    trained = compiled(-2.0, -3.0)
    assert not by_picky(trained.report)
    x = np.ones((64, 64), np.float32)
    np.testing.assert_allclose(trained.run({"x": x})["y"], 6 * x)
