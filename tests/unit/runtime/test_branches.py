"""Branches side by side: right on random graphs, kept in artefacts, and one after the other on one processor."""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime import InferenceSession
from tests.unit.runtime.test_machine_fit import on

import collage
from collage._errors import ArtefactError, ToolchainError
from collage.frontend import read_model
from collage.graph import DataflowGraph
from collage.runtime import Executable, KernelRecord, Port, Recipe, Step, pack
from collage.runtime import _executable as executable_module
from collage.runtime._machine_fit import fitting_branches
from collage.runtime._parallel import CoreSets, DeviceExecutor, PlacedStep, lanes_of
from collage.search import stages_of
from collage.system.machine import usable_cores
from collage.testing import executable_of
from collage.toolchains import Compiled
from collage.transform import prepare

two_cores = pytest.mark.skipif(usable_cores() < 2, reason="needs two processors")
ALONE = "llvm -compiler=onnxruntime -threads=1"
X = {"x": np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)}


def branchy_model(seed: int) -> onnx.ModelProto:
    """Groups of chains between sums, some of whose values are outputs too."""
    rng = random.Random(seed)
    nodes: list[onnx.NodeProto] = []
    outputs = []

    def add(op: str, *reads: str) -> str:
        # No two branches are alike: equal ones would become one.
        more = {"alpha": 0.1 + 0.01 * len(nodes)} if op == "Elu" else {}
        nodes.append(helper.make_node(op, reads, [f"v{len(nodes)}"], name=f"n{len(nodes)}", **more))
        return f"v{len(nodes) - 1}"

    last = add("Relu", "x")
    for _ in range(rng.randint(1, 3)):
        ends = []
        for _ in range(rng.randint(2, 4)):
            value = add("Elu", last)
            for _ in range(rng.randint(0, 3)):
                value = add(rng.choice(["Sigmoid", "Tanh", "Neg", "Abs", "Softplus"]), value)
            ends.append(value)
        if rng.random() < 0.3:
            outputs.append(rng.choice(ends))
        last = add("Sum", *ends)
    outputs = [last, *dict.fromkeys(outputs)]
    tensor = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 6]) for name in ("x", *outputs)]
    graph = helper.make_graph(nodes, "branchy", tensor[:1], tensor[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def in_branches(model: onnx.ModelProto, lanes: int = 2, **options: Any) -> Executable:
    """The model with a kernel for each lane of its stages."""
    graph = DataflowGraph(prepare(read_model(model)))
    stages = stages_of(graph.consumer_bits, [1.0] * len(graph), lanes, 0.0, 9)
    parts, branches = [], []
    for stage in stages:
        for number, bits in enumerate(stage.lanes, 1):
            parts.append(([i for i in range(len(graph)) if bits >> i & 1], ALONE))
            branches.append(number if stage.is_parallel else None)
    made = executable_of(model, parts, **options)
    kernels = tuple(replace(k, branch=b) for k, b in zip(made.recipe.kernels, branches, strict=True))
    made.recipe = replace(made.recipe, kernels=kernels)
    made.branched = Executable(made.recipe, made.workspace)  # type: ignore[attr-defined]
    assert made.branched.recipe.branches > 1  # type: ignore[attr-defined]
    return made  # Owns the folder.


def executor_in(exe: Executable) -> Any:
    context = exe._contexts.hold()
    exe._contexts.release(context)
    return context


@two_cores
@pytest.mark.parametrize("seed", range(8))
def test_random_branches_compute_what_onnx_runtime_does(seed: int) -> None:
    model = branchy_model(seed)
    made = in_branches(model, lanes=2 + seed % 3)
    exe: Executable = made.branched  # type: ignore[attr-defined]
    assert type(executor_in(exe)) is DeviceExecutor
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for scale in (1.0, -3.0, 0.5):
        x = {"x": scale * X["x"]}
        wanted = dict(zip([o.name for o in session.get_outputs()], session.run(None, x), strict=True))
        found = exe.run(x)
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
        out = {name: np.empty_like(value) for name, value in wanted.items()}
        assert all(exe.run(x, out=out)[name] is out[name] for name in out)
        for name, value in wanted.items():
            np.testing.assert_allclose(out[name], value, rtol=1e-5, atol=1e-6)
    _, spans = exe.trace(X)
    assert len(spans) == len(exe.recipe.kernels)


@pytest.fixture(scope="module")
def made() -> Executable:
    return in_branches(branchy_model(1))


def assert_right(exe: Executable) -> None:
    session = InferenceSession(branchy_model(1).SerializeToString(), providers=["CPUExecutionProvider"])
    for found, wanted in zip(exe.run(X).values(), session.run(None, X), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def branches_of(exe: Executable) -> list[int | None]:
    return [kernel.branch for kernel in exe.recipe.kernels]


def test_an_artefact_keeps_its_branches(made: Executable, tmp_path: Path) -> None:
    path = made.save(tmp_path / "m.collage")
    manifest = json.loads((path / "manifest.json").read_text())
    assert [kernel.get("branch") for kernel in manifest["kernels"]] == branches_of(made)
    assert manifest["schema"] == 1, "older versions read it, and run its kernels one after the other"
    for exe in (
        collage.load(path, trusted=True),
        collage.load(made.save(tmp_path / "m.zip"), trusted=True),
        collage.load(path, rebuild=True),
        collage.load(made.save(tmp_path / "recipe.collage", recipe_only=True)),
    ):
        assert branches_of(exe) == branches_of(made)
        assert_right(exe)
    assert "2 branches side by side" in repr(collage.load(path, lazy=True, trusted=True))


def test_a_pack_keeps_its_branches(made: Executable, tmp_path: Path) -> None:
    made.recipe = replace(made.recipe, model={"sha256": "a" * 64})
    path = made.save(tmp_path / "m.collage")
    pack([path], tmp_path / "pack.collage")
    exe = collage.load(tmp_path / "pack.collage", trusted=True)
    assert branches_of(exe) == branches_of(made)
    assert_right(exe)


@two_cores
def test_a_process_of_one_processor_runs_kernels_one_after_the_other(made: Executable, tmp_path: Path) -> None:
    path = made.save(tmp_path / "m.collage")
    program = (
        "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "import numpy as np, collage, threading\n"
        "exe = collage.load(sys.argv[1], trusted=True)\n"
        "x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)\n"
        "print(sorted(exe.run({'x': x}).values(), key=lambda a: a.sum())[0].sum())\n"
        "print([t.name for t in threading.enumerate() if t.name.startswith('collage')])\n"
        "print(*exe.notes, sep='\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    total, threads, *notes = done.stdout.splitlines()
    assert float(total) == pytest.approx(min(a.sum() for a in made.run(X).values()), rel=1e-4)
    assert threads == "[]"
    assert any("compiled for 2 branches side by side, and 1 processor is usable" in note for note in notes)


@pytest.mark.parametrize(
    ("cores", "quota", "threads", "branches", "used"),
    [
        (2, None, 0, 2, 2),
        (2, 1.0, 0, 2, 1),
        (2, 0.5, 0, 2, 1),
        (8, None, 1, 2, 1),
        (8, 3.0, 0, 4, 3),
        (1, None, 0, 0, 0),
    ],
)
def test_branches_that_the_processors_have_no_room_for_share(
    monkeypatch: pytest.MonkeyPatch, cores: int, quota: float | None, threads: int, branches: int, used: int
) -> None:
    on(monkeypatch, cores, quota)
    monkeypatch.setattr("collage.runtime._machine_fit.usable_cores", lambda: cores)
    kernels = tuple(kernel(f"k{i}", ["x"], f"y{i}", i + 1) for i in range(branches))
    recipe = Recipe((), (), kernels, threads, "model.onnx", {}, {})
    found, notes = fitting_branches(recipe, threads)
    assert found == used and bool(notes) == (used != branches)
    lanes = lanes_of(recipe, max(1, found))
    assert len(set(lanes)) == min(used, branches)


def test_a_quota_of_one_processor_is_kept_to_at_load(
    made: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, 16, None)
    path = made.save(tmp_path / "m.collage")
    on(monkeypatch, 16, 1.0)
    exe = collage.load(path, trusted=True)
    assert not isinstance(executor_in(exe), DeviceExecutor)
    assert any("kernels run one after the other" in note for note in exe.notes)
    assert_right(exe)
    assert not isinstance(executor_in(collage.load(path, trusted=True, threads=1)), DeviceExecutor)


def kernel(name: str, reads: Sequence[str], makes: str, branch: int | None) -> KernelRecord:
    compiled = Compiled("fake", "llvm -compiler=fake", ("f",), tuple(reads), (makes,))
    return KernelRecord(name, "llvm -compiler=fake", tuple(reads), (makes,), compiled, branch=branch)


@pytest.mark.parametrize("branch", [0, -1, 65, 10**30, 1.0, True, "1", [1]])
def test_a_manifest_with_a_strange_branch_is_refused(branch: object, made: Executable, tmp_path: Path) -> None:
    path = made.save(tmp_path / "m.collage")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["kernels"][1]["branch"] = branch
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtefactError, match=r"branch|64 bits"):
        collage.load(path)


def test_a_kernel_on_a_device_is_in_no_branch() -> None:
    here = replace(kernel("k", ["x"], "y", 1), device="cpu:0", reads=(None,), writes=("cpu:0",))
    port = Port("x", "float32", (2,)), Port("y", "float32", (2,))
    with pytest.raises(ValueError, match="on a device and in a branch"):
        Recipe(port[:1], port[1:], (here,), 0, "model.onnx", {}, {}).check_wiring()


class _Kernel:
    reuses_outputs = False

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return [self._function(*inputs)]


def test_a_kernel_that_fails_in_a_branch_gives_its_error_and_hangs_nothing() -> None:
    state = {"fails": True}
    other_began = threading.Event()

    def failing(x: Any) -> Any:
        assert other_began.wait(60)
        if state["fails"]:
            raise ToolchainError("kernel b1 gave up")
        return x

    def other(x: Any) -> Any:
        other_began.set()
        return x

    steps = [
        PlacedStep(Step("a", _Kernel(lambda x: x + 1), ("x",), ("p",)), "trunk"),
        PlacedStep(Step("b1", _Kernel(failing), ("p",), ("q",)), "branch 1"),
        PlacedStep(Step("b2", _Kernel(other), ("p",), ("r",)), "branch 2"),
        PlacedStep(Step("c", _Kernel(lambda q, r: q + r), ("q", "r"), ("y",)), "trunk"),
    ]
    lanes = CoreSets(dict.fromkeys(("trunk", "branch 1", "branch 2"), ()))
    executor = DeviceExecutor(steps, ["x"], ["y"], lanes)
    for _ in range(3):
        with pytest.raises(ToolchainError, match="b1 gave up"):
            executor.run([np.ones(2)])
    state["fails"] = False
    np.testing.assert_array_equal(executor.run([np.ones(2)])[0], [4, 4])


@two_cores
def test_the_host_stands_in_for_a_kernel_of_a_branch(made: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = Executable(made.recipe, made.workspace)
    executor = executor_in(exe)
    position = next(i for i, each in enumerate(made.recipe.kernels) if each.branch == 2)

    def gives_up(inputs: Sequence[Any]) -> Sequence[Any]:
        raise RuntimeError("no")

    into, (_, *rest) = executor._program[position]
    executor._steps[position] = (gives_up, *rest)
    executor._into[position] = None
    assert_right(exe)
    assert any("no" in note for note in exe.notes)
    assert into is None or callable(into)


@two_cores
def test_threads_end_with_the_executable(made: Executable) -> None:
    before = {thread for thread in threading.enumerate() if thread.name.startswith("collage ")}
    exe = Executable(made.recipe, made.workspace)
    exe.run(X)
    mine = [t for t in threading.enumerate() if t.name.startswith("collage ") and t not in before]
    assert sorted(t.name for t in mine) == ["collage branch 1", "collage branch 2", "collage trunk"]
    del exe
    gc.collect()
    for thread in mine:
        thread.join(60)
        assert not thread.is_alive()


def test_several_callers_take_turns_or_have_contexts(made: Executable) -> None:
    exe = Executable(made.recipe, made.workspace, contexts=3)
    wanted = made.run(X)
    errors: list[BaseException] = []

    def call() -> None:
        try:
            for _ in range(20):
                for name, value in exe.run(X).items():
                    np.testing.assert_array_equal(value, wanted[name])
        except BaseException as error:
            errors.append(error)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(120)
        assert not caller.is_alive()
    assert errors == []


def test_debug_checks_every_kernel_in_order(made: Executable) -> None:
    exe = Executable(made.recipe, made.workspace, debug=True)
    assert not isinstance(executor_in(exe), executable_module.DeviceExecutor)
    assert_right(exe)
