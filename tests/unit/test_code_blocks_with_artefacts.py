"""Code in the pages that needs an artefact, a compiled model or a module: run on tiny ones, made without a measurement.

Such a block has ``<!-- run with: an artefact -->`` above it. It runs in a folder with the files that the pages speak of, and
with the names that they use. Only ``compile`` measures, which takes minutes. So it is replaced by a function that demands
the arguments of the real one, and returns a model that is compiled already.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.unit.explain.records import full_record
from tests.unit.report.reports import sample
from tests.unit.test_code_blocks import ALL, Block, block_id

import collage
from collage import transform
from collage.explain import RECORD, write_record
from collage.options import CompileOptions
from collage.plan_file import PlanFile, PlanFileKernel
from collage.runtime import Executable
from collage.testing import executable_of
from collage.toolchains import registry

PYTHON = [block for block in ALL if block.language == "python"]
BLOCKS = [block for block in PYTHON if block.needs == "an artefact"]
WITH_WORKERS = [block for block in PYTHON if block.needs == "workers"]

# Pages whose model takes an image; that of the others takes x.
WITH_IMAGES = ("README.md", "tutorial.md")


def classifier(name: str) -> onnx.ModelProto:
    """A linear classifier of 8 x 8 pixels."""
    weight = np.random.default_rng(0).standard_normal((64, 10)).astype(np.float32)
    nodes = [
        helper.make_node("Reshape", [name, "shape"], ["r"], name="reshape"),
        helper.make_node("MatMul", ["r", "w"], ["m"], name="matmul"),
        helper.make_node("Relu", ["m"], ["logits"], name="relu"),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 8, 8])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])]
    weights = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array([1, 64]), "shape")]
    graph = helper.make_graph(nodes, "classifier", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Executable]]:
    """Folders with the files that pages speak of, by the name of the model's input."""
    known: dict[str, tuple[Path, Executable]] = {}

    def make(name: str) -> tuple[Path, Executable]:
        if name not in known:
            folder, model = tmp_path_factory.mktemp(name), classifier(name)
            executable = executable_of(model, [([0, 1], "onnxruntime"), ([2], "openvino")])
            recipe = replace(executable.recipe, report=sample(), model={"sha256": "a" * 64, "path": "model.onnx"})
            executable.recipe, executable.report = recipe, recipe.report
            write_record(full_record(), executable.workspace)
            assert (executable.workspace / RECORD).exists()
            onnx.save(model, str(folder / "model.onnx"))
            path = executable.save(folder / "model.collage")
            executable.save(folder / "model.collage.zip")
            for other, fingerprint in (("sr", ""), ("digits", ""), ("avx2", "a" * 16), ("avx512", "b" * 16)):
                shutil.copytree(path, folder / f"{other}.collage")
                manifest = json.loads((path / "manifest.json").read_text())
                manifest["fingerprint"]["digest"] = fingerprint or manifest["fingerprint"]["digest"]
                (folder / f"{other}.collage" / "manifest.json").write_text(json.dumps(manifest))
            (folder / "demo").mkdir()
            images = np.random.default_rng(1).random((2, 1, 8, 8), np.float32)
            np.savez(folder / "demo" / "digits_test.npz", images=images, labels=np.arange(2))
            known[name] = folder, executable
        return known[name]

    return make


@pytest.mark.filterwarnings("ignore:the pack has no usable plan:RuntimeWarning")
@pytest.mark.parametrize("block", BLOCKS, ids=block_id)
def test_python_with_an_artefact_runs(
    block: Block,
    made: Callable[[str], tuple[Path, Executable]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "image" if block.page.name in WITH_IMAGES else "x"
    source, executable = made(name)
    folder = tmp_path / "here"
    shutil.copytree(source, folder)
    monkeypatch.chdir(folder)
    pipeline = importlib.import_module("collage.compiler.pipeline")
    signature = inspect.signature(pipeline.compile)

    def compiled(*arguments: Any, **options: Any) -> Executable:
        signature.bind(*arguments, **options)
        return executable

    monkeypatch.setattr(pipeline, "compile", compiled)
    if block.page.name == "fleet.md":
        shutil.rmtree(folder / "model.collage")
    space = {
        "collage": collage,
        "np": np,
        "transform": transform,
        "exe": executable,
        "executable": executable,
        "path": Path("model.collage"),
        "x": np.ones((1, 1, 8, 8), np.float32),
        "image": np.ones((1, 1, 8, 8), np.float32),
        "samples": {"x": np.ones((4, 1, 8, 8), np.float32)},
        "model": ir.load(folder / "model.onnx"),
        "toolchain": registry().get("openvino"),
        "target": registry().parse_target("openvino"),
        "CompileOptions": CompileOptions,
        **{name: getattr(collage.device, name) for name in collage.device.__all__},
    }
    code = compile(block.text, block_id(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(code, space)
    if inspect.iscoroutine(running):
        asyncio.run(running)


@pytest.mark.slow
@pytest.mark.parametrize("block", WITH_WORKERS, ids=block_id)
def test_python_with_workers_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures one kernel, or builds and checks a plan: nothing is replaced."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLLAGE_DB", str(tmp_path / "timings.sqlite"))
    onnx.save(classifier("x"), str(tmp_path / "model.onnx"))
    shutil.copyfile(tmp_path / "model.onnx", tmp_path / "superres.onnx")
    kernels = (PlanFileKernel("onnxruntime", ("reshape", "matmul")), PlanFileKernel("openvino", ("relu",)))
    PlanFile(kernels).save(tmp_path / "plan.json")
    exec(compile(block.text, block_id(block), "exec"), {})


def test_every_need_is_known() -> None:
    assert len(BLOCKS) > 8 and len(BLOCKS) + len(WITH_WORKERS) == len([block for block in ALL if block.needs])
