"""A toolchain may do anything: it costs its own candidates, never the run, and nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

import collage
from collage import tuning
from collage.cost.workshop import Limits
from collage.testing import FakeToolchain
from collage.toolchains import Registry

FLOAT = TensorProto.FLOAT


@pytest.fixture
def model() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, FLOAT, [4]) for name in "xy")
    nodes = [helper.make_node("Neg", ["x"], ["n"], name="neg"), helper.make_node("Relu", ["n"], ["y"], name="relu")]
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.fixture(autouse=True)
def in_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_FAKE_IN_PARENT", str(os.getpid()))


CASES = [
    ("import:segfault", "unsupported", "SIGSEGV"),
    pytest.param("import:raise", "unsupported", "told to fail", marks=pytest.mark.slow),
    pytest.param("import:exit", "unsupported", "code 3", marks=pytest.mark.slow),
    pytest.param("compile:raise", "unsupported", "told to fail", marks=pytest.mark.slow),
    ("compile:refuse", "unsupported", "told to refuse"),
    pytest.param("compile:segfault", "unsupported", "SIGSEGV", marks=pytest.mark.slow),
    ("compile:abort", "unsupported", "SIGABRT"),
    pytest.param("compile:close", "unsupported", "worker", marks=pytest.mark.slow),
    ("compile:memory", "unsupported", "memory"),
    pytest.param("run:raise", "unsupported", "told to fail", marks=pytest.mark.slow),
    ("run:segfault", "unsupported", "SIGSEGV"),
    pytest.param("run:exit", "unsupported", "code 3", marks=pytest.mark.slow),
    ("run:nan", "wrong", "NaN"),
    pytest.param("run:shape", "wrong", "shape", marks=pytest.mark.slow),
    ("run:wrong", "wrong", "differs"),
    pytest.param("compile:flood", "ok", "", marks=pytest.mark.slow),
    pytest.param("run:slow", "ok", "", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("misbehaviour", "status", "said"), CASES, ids=str)
def test_the_others_go_on(
    model: onnx.ModelProto, misbehaviour: str, status: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "LIMITS", Limits(memory_bytes=6 << 30))
    before = {process.pid for process in psutil.process_iter()}
    toolchains = Registry()
    toolchains.add(FakeToolchain(misbehaviour))
    options = collage.CompileOptions(db=str(tmp_path / "t.sqlite"))
    executable = collage.compile(model, ["fake", "onnxruntime"], options=options, toolchains=toolchains)
    np.testing.assert_array_equal(executable.run({"x": np.float32([-1, 0, 1, 2])})["y"], [1, 0, 0, 0])
    assert [kernel.compiled.toolchain for kernel in executable.recipe.kernels] == ["onnxruntime"]
    row = next(row for row in executable.report["singles"] if row["target"] == "llvm -compiler=fake")
    assert row["status"] == status
    assert said in (row["reason"] or "")
    left = [p for p in psutil.process_iter(["cmdline"]) if p.pid not in before and "python" in str(p.info["cmdline"])]
    assert [p for p in left if p.ppid() in (os.getpid(), 1)] == []


def test_a_kernel_that_is_right_once_and_wrong_later_is_caught_by_the_finals(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    toolchains = Registry()
    toolchains.add(FakeToolchain("run:later"))
    options = collage.CompileOptions(db=str(tmp_path / "t.sqlite"))
    executable = collage.compile(model, ["fake", "onnxruntime"], options=options, toolchains=toolchains)
    assert [kernel.compiled.toolchain for kernel in executable.recipe.kernels] == ["onnxruntime"]


def test_a_toolchain_that_hangs_costs_its_time_out(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "LIMITS", Limits(compile_s=3.0))
    toolchains = Registry()
    toolchains.add(FakeToolchain("compile:children"))
    options = collage.CompileOptions(db=str(tmp_path / "t.sqlite"))
    executable = collage.compile(model, ["fake", "onnxruntime"], options=options, toolchains=toolchains)
    row = next(row for row in executable.report["singles"] if row["target"] == "llvm -compiler=fake")
    assert "more than 3 s" in row["reason"]


def test_alone_on_the_menu_a_bad_toolchain_leaves_the_host(model: onnx.ModelProto, tmp_path: Path) -> None:
    toolchains = Registry()
    toolchains.add(FakeToolchain("compile:segfault"))
    options = collage.CompileOptions(db=str(tmp_path / "t.sqlite"))
    executable = collage.compile(model, ["fake"], options=options, toolchains=toolchains)
    assert [kernel.compiled.toolchain for kernel in executable.recipe.kernels] == ["host"]
