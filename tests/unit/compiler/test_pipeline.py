"""The time that a comparison gets of a time budget."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from collage.compiler.pipeline import _hurried
from collage.compiler.problem import Problem
from collage.measure.comparison import ComparisonPlan
from collage.options import CompileOptions
from collage.toolchains import Registry


@pytest.mark.parametrize(("left_s", "phase_s"), [(None, 60.0), (1000.0, 60.0), (30.0, 10.0), (0.0, 0.0)])
def test_a_comparison_fits_what_is_left(left_s: float | None, phase_s: float) -> None:
    model = ir.Model(ir.Graph((), (), nodes=(), opset_imports={"": 20}), ir_version=10)
    problem = Problem.of(model, (), Registry(), CompileOptions())
    hurried = _hurried(problem, left_s)
    assert hurried.comparison_plan.phase_s == phase_s
    assert hurried.comparison_plan.rounds == ComparisonPlan().rounds
