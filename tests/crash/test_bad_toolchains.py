"""A toolchain may do anything: it costs its own candidates, never the run, and nothing is left behind."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage._errors import NothingCanRun
from collage.compiler import opening
from collage.database.database import Database
from collage.database.queries import listing
from collage.measure.worker_pool import Limits
from collage.runtime import Executable
from collage.testing import FakeToolchain
from collage.toolchains import Registry
from collage.workers.worker import Worker
from tests.crash._leftovers import VARIABLE, assert_none_left
from tests.figures import figures

FLOAT = TensorProto.FLOAT
X = np.float32([-1, 0, 1, 2])


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, FLOAT, [4]) for name in "xy")
    nodes = [helper.make_node("Neg", ["x"], ["n"], name="neg"), helper.make_node("Relu", ["n"], ["y"], name="relu")]
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.fixture(scope="module")
def lent() -> Iterator[dict[str, Worker]]:
    """Workers of good toolchains, which all tests share."""
    workers: dict[str, Worker] = {}
    yield workers
    for worker in workers.values():
        worker.kill()


@pytest.fixture
def workers(lent: dict[str, Worker]) -> Iterator[dict[str, Worker]]:
    yield lent
    kill_fakes(lent)


def kill_fakes(workers: dict[str, Worker]) -> None:
    """End the bad toolchain's workers: the first, and the lanes that it gets if builds are slow, as on a busy machine."""
    for name in [name for name in workers if name.startswith("fake")]:
        workers.pop(name).kill()


@pytest.fixture(autouse=True)
def in_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_FAKE_IN_PARENT", str(os.getpid()))
    limit_to(monkeypatch, 120.0)


def limit_to(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    limits = Limits(start_s=seconds, compile_s=seconds, try_s=seconds, run_s=seconds, memory_bytes=3 << 30)
    monkeypatch.setattr(opening, "LIMITS", limits)


@pytest.fixture(scope="module")
def alone(model: onnx.ModelProto, lent: dict[str, Worker], tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What is known, and so was measured, where there is no bad toolchain on the menu."""
    db = str(tmp_path_factory.mktemp("alone") / "t.sqlite")
    options = collage.CompileOptions(db=db, baseline="none", finals=False)
    collage.compile(model, ["onnxruntime"], options=options, workers=lent)
    return set(rows_of(db, "onnxruntime"))


def rows_of(db: str, toolchain: str) -> dict[str, dict]:
    with Database(db) as database:
        return {
            row["digest"]: row for row in listing(database) if row["parts"]["target"] == f"llvm -compiler={toolchain}"
        }


def compile_beside(
    fake: FakeToolchain, model: onnx.ModelProto, db: str, workers: dict[str, Worker] | None = None, **options: object
) -> Executable:
    toolchains = Registry()
    toolchains.add(fake)
    return collage.compile(
        model,
        ["fake", "onnxruntime"],
        options=collage.CompileOptions(db=db, baseline="none", **options),  # type: ignore[arg-type]
        toolchains=toolchains,
        workers=workers,
    )


def slow(*case: str) -> object:
    return pytest.param(*case, marks=pytest.mark.slow)


# What it does; how the whole model on it is filed; what the report says of it. One of each way to fail is not slow: in the
# parent's first call, by a signal, by silence, by wrong answers at once and later, and by writing to its input.
CASES = [
    slow("import:raise", "", "told to fail"),
    slow("import:refuse", "", "told to refuse"),
    ("import:segfault", "", "SIGSEGV"),
    slow("import:abort", "", "SIGABRT"),
    slow("import:exit", "", "code 3"),
    slow("import:hang", "", "did not come up in 8 s"),
    slow("import:children", "", "did not come up in 8 s"),
    slow("import:flood", "ok", ""),
    slow("import:close", "", "worker"),
    slow("import:memory", "", "memory"),
    slow("import:chdir", "ok", ""),
    slow("import:orphans", "ok", ""),
    slow("compile:raise", "failed", "told to fail"),
    slow("compile:refuse", "refused", "told to refuse"),
    slow("compile:segfault", "crashed", "SIGSEGV"),
    slow("compile:abort", "crashed", "SIGABRT"),
    slow("compile:exit", "crashed", "code 3"),
    slow("compile:hang", "time-out", "more than 8 s"),
    slow("compile:children", "time-out", "more than 8 s"),
    slow("compile:flood", "ok", ""),
    slow("compile:close", "crashed", "worker"),
    slow("compile:memory", "out of memory", "memory"),
    slow("compile:hoarders", "out of memory", "together held"),
    slow("compile:spin", "ok", ""),
    slow("compile:delete", "failed", ""),
    slow("compile:chdir", "ok", ""),
    slow("compile:orphans", "ok", ""),
    slow("run:raise", "failed", "told to fail"),
    slow("run:segfault", "crashed", "SIGSEGV"),
    slow("run:abort", "crashed", "SIGABRT"),
    slow("run:exit", "crashed", "code 3"),
    slow("run:hang", "time-out", "more than 8 s"),
    slow("run:children", "time-out", "more than 8 s"),
    slow("run:flood", "ok", ""),
    ("run:close", "crashed", "worker"),
    slow("run:memory", "out of memory", "memory"),
    slow("run:nan", "wrong", "NaN"),
    slow("run:shape", "wrong", "shape"),
    slow("run:wrong", "wrong", "differs"),
    ("run:later", "wrong", "differs"),
    slow("run:stuck", "ok", ""),
    slow("run:tired", "wrong", "NaN"),
    ("run:fork", "crashed", "SIGABRT"),
    slow("run:group", "crashed", "SIGKILL"),
    slow("run:spin", "ok", ""),
    ("run:spoil", "wrong", "writes over its input"),
    slow("run:slow", "ok", ""),
    slow("run:delete", "ok", ""),
    slow("run:chdir", "ok", ""),
]


@pytest.mark.few(5)
@pytest.mark.parametrize(("misbehaviour", "filed", "said"), CASES)
def test_it_is_classified_and_the_others_go_on(
    model: onnx.ModelProto,
    misbehaviour: str,
    filed: str,
    said: str,
    alone: set[str],
    workers: dict[str, Worker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark, here, db = uuid.uuid4().hex, Path.cwd(), str(tmp_path / "t.sqlite")
    monkeypatch.setenv(VARIABLE, mark)
    if misbehaviour.endswith((":hang", ":children")):
        limit_to(monkeypatch, 8.0)
    # Slower than the other one, so that it loses where it is right. Elsewhere it never comes to the comparison of whole plans.
    executable = compile_beside(FakeToolchain(misbehaviour, seconds=0.01), model, db, workers, finals=filed == "ok")
    np.testing.assert_array_equal(executable.run({"x": X})["y"], [1, 0, 0, 0])
    assert [kernel.compiled.toolchain for kernel in executable.recipe.kernels] == ["onnxruntime"]
    report = next(row for row in figures(executable.report)["singles"] if row["target"] == "llvm -compiler=fake")
    assert said in (report["reason"] or ""), report
    statuses = [row["status"] for row in rows_of(db, "fake").values()]
    assert statuses[:1] == ([filed] if filed else []), statuses
    others = rows_of(db, "onnxruntime")
    assert alone <= others.keys()
    assert {row["status"] for row in others.values()} == {"ok"}
    assert Path.cwd() == here
    kill_fakes(workers)
    assert_none_left(mark)


@pytest.mark.slow
def test_a_toolchain_that_hangs_costs_its_time_out(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_to(monkeypatch, 8.0)
    executable = compile_beside(FakeToolchain("compile:children"), model, str(tmp_path / "t.sqlite"))
    row = next(row for row in figures(executable.report)["singles"] if row["target"] == "llvm -compiler=fake")
    assert "more than 8 s" in row["reason"]


def test_alone_on_the_menu_a_bad_toolchain_leaves_the_host(model: onnx.ModelProto, tmp_path: Path) -> None:
    toolchains = Registry()
    toolchains.add(FakeToolchain("compile:segfault"))
    options = collage.CompileOptions(db=str(tmp_path / "t.sqlite"), baseline="none", finals=False)
    with pytest.raises(NothingCanRun, match="SIGSEGV") as refusal:
        collage.compile(model, ["fake"], options=options, toolchains=toolchains)
    assert str(refusal.value).count("SIGSEGV") == 1
    executable = collage.compile(model, ["fake"], options=replace(options, allow_host=True), toolchains=toolchains)
    assert [kernel.compiled.toolchain for kernel in executable.recipe.kernels] == ["host"]
