"""Plans for sets of lengths: the options that exclude them, the lengths that are fixed, and a whole compilation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.unit.runtime.test_symbolic_lengths import MODELS

import collage
from collage._errors import NothingCanRun, UsageError
from collage.compiler.specialised import _lengths, compile_specialised, is_specialised
from collage.frontend import fix_lengths, model_digest, read_model
from collage.options import CompileOptions
from collage.report import Occasion, Report
from collage.runtime import Executable, Port
from collage.testing import executable_of


@pytest.mark.parametrize("fields", [{"plan_out": "p.json"}, {"objective": "memory"}, {"finals": False}], ids=str)
def test_options_that_exclude_several_plans(fields: dict[str, Any], tmp_path: Path) -> None:
    onnx.save(MODELS["attention"][0], tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="specialise"):
        collage.compile(tmp_path / "m.onnx", specialise=True, db=str(tmp_path / "db"), **fields)


@pytest.mark.parametrize(
    ("fields", "is_wanted"),
    [
        ({}, False),
        ({"specialise": True}, True),
        ({"dims": {"seq": 8}}, True),
        ({"inputs": {"x": np.ones((1, 8, 16), np.float32)}}, True),
        ({"inputs": {"x": np.ones((1, 8, 16), np.float32)}, "fixed": {"b": 1, "s": 8}}, False),
        ({"dims": {"s": 8}, "specialise": False}, False),
        ({"dims": {"s": 8}, "objective": "throughput"}, False),
        ({"dims": {"s": 8}, "plan_out": "plan.json"}, False),
        ({"dims": {"s": 8}, "finals": False}, False),
    ],
    ids=str,
)
def test_who_names_lengths_gets_plans_for_them(fields: dict[str, Any], is_wanted: bool) -> None:
    assert is_specialised(CompileOptions(**fields), MODELS["attention"][0]) == is_wanted


def test_lengths_are_fixed_by_the_names_that_users_give() -> None:
    inputs = (
        Port("x", "float32", ("batch", 3, None, "p2o.Dimension.1")),
        Port("past", "float32", ("batch", "2*seq + 1")),
        Port("scalar", "float32", ()),
    )
    shapes = {"x": [2, 3, 48, 320], "past": [2, 9], "scalar": []}
    assert _lengths(inputs, shapes) == {"batch": 2, "x[2]": 48, "p2o.Dimension.1": 320}


def test_each_set_of_lengths_is_raced_and_may_fail(tmp_path: Path) -> None:
    path, asked, shares, said = tmp_path / "m.onnx", list[CompileOptions](), list[float](), list[str]()
    onnx.save(MODELS["convolution"][0], path)
    occasions = tuple(Occasion(0.5, {"x": (batch, 3, 24, 24)}) for batch in (1, 2))

    def compile_one(options: CompileOptions, search_share: float) -> Executable:
        asked.append(options)
        shares.append(search_share)
        if options.fixed.get("b") == 2:
            raise NothingCanRun("no kernel\nfits")
        executable = executable_of(fix_lengths(read_model(path), options.fixed), "onnxruntime")
        digest, report = model_digest(read_model(path)), Report(occasions=occasions)
        executable.recipe = replace(executable.recipe, model={"path": str(path), "sha256": digest}, report=report)
        executable.report = report
        return executable

    options = CompileOptions(specialise=True, time_budget_s=90.0, inputs={"x": np.ones((1, 3, 24, 24), np.float32)})
    executable = compile_specialised(compile_one, options, path, ["onnxruntime"], said.append)
    assert [each.fixed for each in asked] == [{}, {"b": 1, "h": 24, "w_": 24}, {"b": 2, "h": 24, "w_": 24}]
    assert [set(each.inputs) for each in asked] == [{"x"}, {"x"}, set()]
    assert not any(each.fixed and each.dims for each in asked)
    # The same at each time, so that the same command finds what an earlier one has found.
    assert [each.time_budget_s for each in asked] == [45.0, 22.5, 22.5]
    assert shares == [1.0, 0.5, 0.5]
    assert executable.report.command == (
        "collage compile m.onnx -o model.collage -t onnxruntime --specialise --time-budget 90"
    )
    raced, failed = executable.report.specialised
    assert raced.ratio is not None and raced.time_us and raced.is_kept == (raced.ratio.low > 1.0)
    assert failed.reason == "no kernel fits" and failed.ratio is None
    assert len(executable.specialised) == raced.is_kept
    assert executable.recipe.report == executable.report
    assert "a plan for b=1, h=24, w_=24" in said


def test_budgets_hold_for_all_plans_together(tmp_path: Path) -> None:
    path, asked = tmp_path / "m.onnx", list[CompileOptions]()
    onnx.save(MODELS["convolution"][0], path)

    def compile_one(options: CompileOptions, search_share: float) -> Executable:
        asked.append(options)
        executable = executable_of(fix_lengths(read_model(path), options.fixed), "onnxruntime")
        executable.report = Report(occasions=(Occasion(1.0, {"x": (1, 3, 24, 24)}),))
        return executable

    options = CompileOptions(dims={"b": 1}, time_budget_s=1e-3, measure_budget=9)
    (row,) = compile_specialised(compile_one, options, path, [], lambda _: None).report.specialised
    assert row.reason == "the time budget left no time for it" and not row.is_kept
    assert [(each.time_budget_s, each.measure_budget) for each in asked] == [(5e-4, 4)]


def test_an_interrupt_keeps_the_plan_for_all_lengths(tmp_path: Path) -> None:
    path, said = tmp_path / "m.onnx", list[str]()
    onnx.save(MODELS["convolution"][0], path)

    def compile_one(options: CompileOptions, search_share: float) -> Executable:
        if options.fixed:
            raise KeyboardInterrupt
        executable = executable_of(read_model(path), "onnxruntime")
        executable.report = Report(occasions=(Occasion(1.0, {"x": (1, 3, 24, 24)}),))
        return executable

    executable = compile_specialised(compile_one, CompileOptions(dims={"b": 1}), path, [], said.append)
    assert executable.report.specialised == () and executable.specialised == ()
    assert said[-1].startswith("interrupted")


@pytest.mark.slow
def test_each_set_of_lengths_is_compiled_and_raced(tmp_path: Path) -> None:
    onnx.save(MODELS["convolution"][0], tmp_path / "m.onnx")
    executable = collage.compile(
        tmp_path / "m.onnx",
        ["onnxruntime", "llvm"],
        specialise=True,
        dims={"b": {1: 3, 2: 1}, "h": 24, "w_": 24},
        db=str(tmp_path / "db"),
        measure_budget=0,
    )
    rows = executable.report.specialised
    assert [row.lengths for row in rows] == [{"b": 1, "h": 24, "w_": 24}, {"b": 2, "h": 24, "w_": 24}]
    assert len(executable.specialised) == sum(row.is_kept for row in rows)
    for row in rows:
        assert row.ratio is not None and row.is_kept == (row.ratio.low > 1.0)
    loaded = collage.load(executable.save(tmp_path / "m.collage"))
    assert loaded.report.specialised == rows
    for shape in ((1, 3, 24, 24), (2, 3, 24, 24), (3, 3, 9, 7)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(loaded(x), executable(x), rtol=1e-4, atol=1e-5)
