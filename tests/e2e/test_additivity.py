"""Plans whose kernels do not add up: the comparison end to end decides, and the report states the error."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.toolchains import Registry
from tests.e2e.conftest import LENT, model_of
from tests.e2e.fake_interfering_toolchains import TaxedToolchain
from tests.figures import figures


@pytest.fixture
def model(tmp_path: Path) -> Path:
    operators = ["Relu", "Relu", "Tanh", "Relu", "Tanh", "Tanh"]
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, op in enumerate(operators)]
    ports = {"v0": (TensorProto.FLOAT, [1, 8])}, {"v6": (TensorProto.FLOAT, [1, 8])}
    path = tmp_path / "alternating.onnx"
    onnx.save(model_of(nodes, *ports, {}), path)
    return path


def test_a_chain_that_costs_more_than_its_kernels_loses_to_the_best_single(model: Path) -> None:
    # By their sums: four kernels 6 ms, two 11 ms, second alone 21 ms. With 4 ms for each that follows another: 22, 19, 21.
    toolchains = Registry()
    toolchains.add(TaxedToolchain("first", {"Relu": 1.0, "Tanh": 40.0}))
    toolchains.add(TaxedToolchain("second", {"Relu": 6.0, "Tanh": 1.0}))
    options = collage.CompileOptions(baseline="none")
    report = collage.compile(model, ["first", "second"], options=options, toolchains=toolchains, workers=LENT).report
    rows = {row.name: row for row in report.rows}
    assert rows[report.winner].kernels in (1, 2)
    assert figures(report)["speedup_vs_best_single"] >= 1.0
    many = [row for row in report.rows if (row.kernels or 0) >= 4]
    assert many and all(row.verdict != "returned" for row in many), "they cost 22 ms and more, not 6"

    again = collage.compile(model, ["first", "second"], options=options, toolchains=toolchains, workers=LENT).report
    assert again.winner == report.winner
    assert again["search"]["measured"] == 0
    assert not again["search"]["raced"]
    assert again["additive_error"] == report["additive_error"]


def test_a_time_budget_leaves_the_search_what_the_finals_do_not_need(model: Path, tmp_path: Path) -> None:
    toolchains = Registry()
    toolchains.add(TaxedToolchain("fifth", {"Relu": 1.0, "Tanh": 40.0}))
    toolchains.add(TaxedToolchain("sixth", {"Relu": 6.0, "Tanh": 1.0}))
    options = collage.CompileOptions(db=str(tmp_path / "t.sqlite"), time_budget_s=1.0, baseline="none")
    report = collage.compile(model, ["fifth", "sixth"], options=options, toolchains=toolchains, workers=LENT).report
    assert report["search"]["stopped_by"] == "deadline"
    assert report["winner"] == "llvm -compiler=sixth"
