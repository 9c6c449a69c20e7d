"""Plans for some lengths beside a plan for all: the right one runs, results are the same, and packs keep both."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.unit.runtime.test_symbolic_lengths import MODELS

import collage
from collage._errors import ArtefactError, InputError, UsageError
from collage.frontend import fix_lengths, read_model
from collage.report import Report
from collage.runtime import Executable, machine_rows, pack, unpack_plan
from collage.system import scratch
from collage.testing import executable_of

OPEN, _ = MODELS["attention"]
"""``x[b, s, 8]``."""
ORIGINAL = onnxruntime.InferenceSession(OPEN.SerializeToString(), providers=["CPUExecutionProvider"])


def made(target: str, **lengths: int) -> Executable:
    executable = executable_of(fix_lengths(read_model(OPEN), lengths), target)
    executable.recipe = replace(executable.recipe, model={"sha256": "a" * 64})
    return executable


@pytest.fixture
def both() -> Executable:
    executable = made("onnxruntime")
    executable.add_plans([made("openvino", b=1, s=16), made("llvm", b=2)], Report())
    return executable


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def target_at(executable: Executable, *shape: int) -> str:
    return executable.plan_for([numbers(*shape)]).recipe.kernels[0].compiled.toolchain


def assert_same(executable: Executable, *shape: int) -> None:
    x = numbers(*shape)
    (wanted,) = ORIGINAL.run(None, {"x": x})
    out = np.empty_like(wanted)
    for result in (
        executable.run({"x": x})["y"],
        executable.run_tensors([x])["y"],
        executable.trace([x])[0]["y"],
        executable(x),
        executable.run([x], out={"y": out})["y"],
    ):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


def test_a_call_is_run_by_the_plan_for_its_lengths(both: Executable) -> None:
    assert target_at(both, 1, 16, 8) == "openvino"
    assert target_at(both, 2, 5, 8) == target_at(both, 2, 7, 8) == "tvm"
    assert target_at(both, 1, 17, 8) == target_at(both, 3, 16, 8) == target_at(both, 2, 0, 8) == "onnxruntime"
    with pytest.raises(InputError):
        both.plan_for([numbers(1, 16, 9)])
    assert both.profile([numbers(1, 16, 8)], runs=2).kernels[0].target == "llvm -compiler=openvino"
    assert "2 plans for some lengths" in repr(both)


def test_results_are_right_at_any_lengths(both: Executable) -> None:
    random = np.random.default_rng(7)
    shapes = [(int(random.integers(0, 4)), int(random.integers(0, 20)), 8) for _ in range(60)]
    for shape in [(1, 16, 8), (2, 3, 8), *shapes]:
        assert_same(both, *shape)


def test_more_shapes_than_are_remembered(both: Executable) -> None:
    for length in range(1, 300):
        assert target_at(both, 1, length, 8) == ("openvino" if length == 16 else "onnxruntime")


@pytest.mark.parametrize("name", ["p.collage", "p.zip"])
def test_an_artefact_holds_all_plans(both: Executable, tmp_path: Path, name: str) -> None:
    path = both.save(tmp_path / name)
    loaded = collage.load(path)
    assert loaded.notes == []
    assert [target_at(loaded, *shape) for shape in ((1, 16, 8), (2, 9, 8), (5, 5, 8))] == [
        "openvino",
        "tvm",
        "onnxruntime",
    ]
    for shape in ((1, 16, 8), (2, 9, 8), (5, 5, 8), (0, 4, 8)):
        assert_same(loaded, *shape)
    again = collage.load(loaded.save(tmp_path / f"again_{name}"))
    assert len(again.specialised) == 2
    rows = machine_rows(path)["plans"]
    for number, row in enumerate(rows):
        plain = tmp_path / f"{number}_{name}"
        unpack_plan(path, plain, row["manifest"] if number else row["fingerprint"])
        assert [str(port) for port in collage.load(plain).inputs] == [row["lengths"] or "x: float32[b, s, 8]"]
    assert [row["used_here"] for row in rows] == [True] * 3
    assert [row["lengths"] for row in rows] == [None, "x: float32[1, 16, 8]", "x: float32[2, s, 8]"]


def test_a_recipe_only_is_built_for_all_lengths(both: Executable, tmp_path: Path) -> None:
    loaded = collage.load(both.save(tmp_path / "p.collage", recipe_only=True))
    assert len(loaded.specialised) == 2
    assert_same(loaded, 1, 16, 8)


def test_plans_load_with_the_first_call_at_their_lengths(both: Executable, tmp_path: Path) -> None:
    loaded = collage.load(both.save(tmp_path / "p.collage"))
    assert not any(one._contexts.is_loaded for one in loaded.specialised)
    loaded.run([numbers(1, 16, 8)])
    assert [one._contexts.is_loaded for one in loaded.specialised] == [True, False]
    loaded.warm_up()
    assert all(one._contexts.is_loaded for one in loaded.specialised)


def test_scratch_folders_go_with_the_executable(both: Executable, tmp_path: Path) -> None:
    loaded = collage.load(both.save(tmp_path / "p.collage"))
    folders = [one.workspace for one in (loaded, *loaded.specialised)]
    assert all(folder.is_dir() for folder in folders)
    del loaded
    assert not any(folder.exists() for folder in folders)


def test_threads_at_different_lengths(both: Executable, tmp_path: Path) -> None:
    loaded = collage.load(both.save(tmp_path / "p.collage"), contexts=2)
    wrong: list[BaseException] = []

    def run(*shape: int) -> None:
        try:
            for _ in range(20):
                assert_same(loaded, *shape)
        except BaseException as error:
            wrong.append(error)

    callers = [threading.Thread(target=run, args=(batch, 16, 8)) for batch in (1, 2, 3, 1)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


FORK = """
import os, sys
import numpy as np
import collage

executable = collage.load(sys.argv[1], trusted=True)
inputs = [np.ones(shape, np.float32) for shape in ((1, 16, 8), (2, 4, 8), (3, 3, 8))]
before = [executable(x) for x in inputs]
child = os.fork()
after = [executable(x) for x in inputs]
same = all(map(np.array_equal, before, after))
if child == 0:
    os._exit(0 if same else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or not same)
"""


def test_a_fork_runs_every_plan(both: Executable, tmp_path: Path) -> None:
    path = both.save(tmp_path / "p.collage")
    subprocess.run([sys.executable, "-c", FORK, str(path)], check=True, timeout=120)


def test_plans_for_one_set_of_lengths_are_packed_once(tmp_path: Path) -> None:
    paths = [made(target, b=1, s=4).save(tmp_path / f"{target}.collage") for target in ("onnxruntime", "openvino")]
    with pytest.raises(UsageError, match="the same lengths"):
        pack(paths, tmp_path / "p.collage")


def test_there_has_to_be_a_plan_for_all_lengths(tmp_path: Path) -> None:
    paths = [made("onnxruntime", b=batch, s=4).save(tmp_path / f"{batch}.collage") for batch in (1, 2)]
    with pytest.raises(UsageError, match="different inputs"):
        pack(paths, tmp_path / "p.collage")


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "other lengths than the model": lambda m: m["inputs"][0].update(shape=[1, 17, 8]),
    "another rank": lambda m: m["inputs"][0].update(shape=[1, 16]),
    "another type": lambda m: m["inputs"][0].update(dtype="float64"),
    "another output": lambda m: m["outputs"][0].update(name="z"),
    "another machine": lambda m: m["fingerprint"].update(digest="b" * 16),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_plan_for_some_lengths_is_refused(both: Executable, tmp_path: Path, name: str) -> None:
    path = both.save(tmp_path / "p.collage")
    head = json.loads((path / "pack.json").read_text())
    manifest = json.loads((path / head["plans"][1]).read_text())
    HOSTILE[name](manifest)
    data = json.dumps(manifest).encode()
    (path / head["plans"][1]).unlink()
    head["plans"][1] = hashlib.sha256(data).hexdigest()
    (path / head["plans"][1]).write_bytes(data)
    (path / "pack.json").write_text(json.dumps(head))
    with pytest.raises(ArtefactError):
        collage.load(path)


def test_a_changed_file_of_a_plan_for_some_lengths_is_found(both: Executable, tmp_path: Path) -> None:
    path = both.save(tmp_path / "p.collage")
    before = set(scratch._held)
    for file in sorted(path.iterdir()):
        data = file.read_bytes()
        if not data:
            continue
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(ArtefactError):
            collage.load(path)
        file.write_bytes(data)
    assert set(scratch._held) <= before  # Nothing that was copied is left.
    assert_same(collage.load(path), 1, 16, 8)
