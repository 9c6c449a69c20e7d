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
from collage.compiler.precision_session import with_data
from collage.compiler.problem import Part
from collage.compiler.specialised import _lengths, add_plan, compile_specialised, is_specialised
from collage.frontend import fix_lengths, read_model
from collage.options import CompileOptions
from collage.report import KernelRow, Occasion, Ratio, Report, Row, SearchFacts
from collage.runtime import Executable, Port
from collage.status import Status
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


def _compiled(path: Path, options: CompileOptions, report: Report) -> Executable:
    executable = executable_of(fix_lengths(read_model(path), options.fixed), "onnxruntime")
    executable.recipe = replace(executable.recipe, report=report)
    executable.report = report
    return executable


def _beside(low: float) -> Report:
    """Return the report of a plan that is 1.5 times as fast as its rival, with this lower end of the interval."""
    rows = Row("llvm", "single", Status.RETURNED, time_us=8.0), Row("baseline", "baseline", Status.BASELINE)
    return Report(winner="llvm", rows=(rows[0], replace(rows[1], ratio=Ratio(1.5, low, 2.0))))


def test_each_set_of_lengths_is_compared_with_the_plan_for_all_and_may_fail(tmp_path: Path) -> None:
    path, asked, parts, said = tmp_path / "m.onnx", list[CompileOptions](), list[Part](), list[str]()
    onnx.save(MODELS["convolution"][0], path)
    occasions = tuple(Occasion(0.25, {"x": (batch, 3, 24, 24)}) for batch in (1, 2, 3, 4))

    def compile_one(options: CompileOptions, part: Part) -> Executable:
        asked.append(options)
        parts.append(part)
        assert part.rival is None or part.rival.artefact.exists()
        match options.fixed.get("b"):
            case None:
                return _compiled(path, options, Report(occasions=occasions, command="the user's"))
            case 1:
                return _compiled(path, options, _beside(1.01))
            case 2:
                return _compiled(path, options, _beside(0.99))
            case 3:
                return _compiled(path, options, Report(kernels=(KernelRow("k", "llvm", nodes=("conv",)),)))
        raise NothingCanRun("no kernel\nfits")

    options = CompileOptions(specialise=True, time_budget_s=90.0, inputs={"x": np.ones((1, 3, 24, 24), np.float32)})
    executable = compile_specialised(compile_one, options, said.append)
    assert [each.fixed for each in asked] == [{}, *({"b": b, "h": 24, "w_": 24} for b in (4, 3, 2, 1))]
    assert [set(each.inputs) for each in asked] == [{"x"}, set(), set(), set(), {"x"}]
    assert not any(each.fixed and each.dims for each in asked)
    # The user's own options, as reports and warnings state them; a part has a share of the limits.
    assert all(each.time_budget_s == 90.0 for each in asked)
    # The first set searches for all others, and all shares are one.
    assert [(part.budget, part.search) for part in parts] == [(0.5, 1.0), (0.2, 1.0), *[(0.1, 0.2)] * 3]
    assert parts[0].rival is None and len({part.rival for part in parts[1:]}) == 1
    assert [None if part.plan is None else part.plan.targets for part in parts] == [None] * 3 + [("llvm",)] * 2
    kept, slower, unknown, failed = executable.report.specialised
    assert kept.is_kept and kept.ratio == Ratio(1.5, 1.01, 2.0) and kept.time_us == 8.0 and kept.general_us == 12.0
    assert slower.ratio == Ratio(1.5, 0.99, 2.0) and slower.reason == "it is not faster beyond doubt"
    assert unknown.ratio is None and "could not be compared" in str(unknown.reason)
    assert failed.reason == "no kernel fits" and failed.ratio is None
    assert len(executable.specialised) == 1
    assert executable.recipe.report == executable.report and executable.report.command == "the user's"
    assert "a plan for b=1, h=24, w_=24" in said


def test_targets_that_miss_the_limits_are_not_tried_again_for_each_set_of_lengths(tmp_path: Path) -> None:
    path, parts = tmp_path / "m.onnx", list[Part]()
    onnx.save(MODELS["convolution"][0], path)
    missed = {f"llvm -compiler={name} -precision=int8": "too large an error" for name in ("openvino", "onnxruntime")}

    def compile_one(options: CompileOptions, part: Part) -> Executable:
        parts.append(part)
        occasions = (Occasion(1.0, {"x": (1, 3, 24, 24)}),)
        found = _compiled(path, options, Report(occasions=occasions, precision={"refused": missed}))
        kernels = [replace(kernel, target="llvm -compiler=openvino -precision=int8") for kernel in found.recipe.kernels]
        found.recipe = replace(found.recipe, kernels=tuple(kernels))
        return found

    compile_specialised(compile_one, CompileOptions(dims={"b": 1}), lambda _: None)
    # A kernel of the plan for all lengths is in 8 bits on OpenVINO, so that other lengths may have one, too.
    assert [part.refused for part in parts] == [frozenset(), {"llvm -compiler=onnxruntime -precision=int8"}]


@pytest.mark.parametrize(
    ("batches", "dims", "expected"),
    [
        ((1, 2, 1), {}, {"b": {1: 2, 2: 1}}),
        ((1, 2, 1), {"b": 3}, {"b": 3}),
        ((1, 1), {}, {}),
        ((1, 2, 3, 4, 5), {}, {}),
    ],
    ids=str,
)
def test_lengths_of_samples_are_those_that_are_timed(
    batches: tuple[int, ...], dims: dict[str, int], expected: Any, tmp_path: Path
) -> None:
    samples = [{"x": np.ones((batch, 3, 24, 24), np.float32)} for batch in batches]
    model = read_model(MODELS["convolution"][0])
    options = with_data(CompileOptions(data=samples, dims=dims), model, tmp_path)
    assert options.dims == expected and set(options.inputs) == {"x"}


def test_budgets_hold_for_all_plans_together(tmp_path: Path) -> None:
    path, asked = tmp_path / "m.onnx", list[Part]()
    onnx.save(MODELS["convolution"][0], path)

    def compile_one(options: CompileOptions, part: Part) -> Executable:
        asked.append(part)
        return _compiled(path, options, Report(occasions=(Occasion(1.0, {"x": (1, 3, 24, 24)}),)))

    options = CompileOptions(dims={"b": 1}, time_budget_s=1e-3)
    (row,) = compile_specialised(compile_one, options, lambda _: None).report.specialised
    assert row.reason == "the time budget left no time for it" and not row.is_kept
    assert asked == [Part(0.5)]


def test_an_interrupt_keeps_the_plan_for_all_lengths(tmp_path: Path) -> None:
    path, said = tmp_path / "m.onnx", list[str]()
    onnx.save(MODELS["convolution"][0], path)

    def compile_one(options: CompileOptions, part: Part) -> Executable:
        if options.fixed:
            raise KeyboardInterrupt
        return _compiled(path, options, Report(occasions=(Occasion(1.0, {"x": (1, 3, 24, 24)}),)))

    executable = compile_specialised(compile_one, CompileOptions(dims={"b": 1}), said.append)
    assert executable.report.specialised == () and executable.specialised == ()
    assert said[-1].startswith("interrupted")


@pytest.mark.parametrize("at", [0, 1])
def test_an_interrupt_within_one_plan_ends_all_that_follow(at: int, tmp_path: Path) -> None:
    path, asked = tmp_path / "m.onnx", list[CompileOptions]()
    onnx.save(MODELS["convolution"][0], path)

    def compile_one(options: CompileOptions, part: Part) -> Executable:
        asked.append(options)
        occasions = tuple(Occasion(0.5, {"x": (batch, 3, 24, 24)}) for batch in (1, 2))
        search = SearchFacts(stopped_by="should_stop" if len(asked) > at else "finished")
        return _compiled(path, options, Report(occasions=occasions, search=search))

    compile_specialised(compile_one, CompileOptions(dims={"b": {1: 1.0, 2: 1.0}}), lambda _: None)
    assert len(asked) == at + 1


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


@pytest.mark.parametrize("low", [1.01, 0.99])
def test_a_plan_that_is_added_later_is_kept_if_it_is_faster_than_all_before(tmp_path: Path, low: float) -> None:
    path, parts = tmp_path / "m.onnx", list[Part]()
    onnx.save(MODELS["convolution"][0], path)

    def compile_one(options: CompileOptions, part: Part) -> Executable:
        parts.append(part)
        if options.fixed["b"] == 9:
            raise NothingCanRun("no kernel fits")
        return _compiled(path, options, _beside(low))

    general = _compiled(path, CompileOptions(), Report())
    general.recipe = replace(general.recipe, model={"sha256": "5" * 64})
    shapes = {batch: {"x": (batch, 3, 24, 24)} for batch in (1, 9)}
    one, nine = (add_plan(compile_one, general, each, CompileOptions(dims={"b": 4})) for each in shapes.values())
    assert general.report.specialised == (one, nine)
    assert one.is_kept == (low > 1) and not nine.is_kept and nine.reason == "no kernel fits"
    assert len(general.specialised) == (low > 1)
    assert all(part.rival is not None and part.budget == part.search == 1 for part in parts)
    x = np.random.default_rng(0).random((1, 3, 24, 24), np.float32)
    assert (general.plan_for([x]) is general) == (low < 1)
    assert general.plan_for([np.concatenate([x, x])]) is general
    general.save(tmp_path / "both.collage")
    np.testing.assert_array_equal(collage.load(tmp_path / "both.collage").run([x])["y"], general.run([x])["y"])
