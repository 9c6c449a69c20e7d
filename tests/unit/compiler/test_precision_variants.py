"""Variants of 8-bit targets that compute what is exempt in bf16."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from collage.compiler.precision_sensitivity import with_rough_floats
from collage.compiler.problem import Problem
from collage.options import CompileOptions
from collage.target import Target
from collage.toolchains import registry

INT8 = Target.parse("llvm -compiler=openvino -precision=int8")
VARIANT = INT8.with_options(exempt="3")


def problem(*menu: Target) -> Problem:
    model = ir.Model(ir.Graph((), (), nodes=(), opset_imports={"": 20}), ir_version=10)
    return Problem.of(model, menu, registry(), CompileOptions())


def test_a_toolchain_with_bf16_on_the_menu_gets_one() -> None:
    pytest.importorskip("openvino")
    found = with_rough_floats(problem(INT8, INT8.with_options(precision="bf16")), INT8, VARIANT)
    assert found == VARIANT.with_options(floats="bf16")


def test_where_bf16_is_no_faster_there_is_none() -> None:
    pytest.importorskip("openvino")
    assert with_rough_floats(problem(INT8), INT8, VARIANT) is None


def test_a_toolchain_without_the_option_gets_none() -> None:
    target = Target.parse("llvm -compiler=onnxruntime -precision=int8")
    menu = problem(target, target.with_options(precision="bf16"))
    assert with_rough_floats(menu, target, target.with_options(exempt="3")) is None
