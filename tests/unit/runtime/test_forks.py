"""An artefact that was loaded and run before a fork works in the fork, whatever made its kernels, or says why not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.runtime import _forks
from collage.target import Target
from collage.testing import executable_of
from collage.toolchains import registry

LIMIT_S = 120
PROGRAM = Path(__file__).with_name("fork_program.py")


def model() -> onnx.ModelProto:
    """x [64, 256] -> softmax(relu(x) @ w) @ v: enough for toolchains to share it between threads."""
    rng = np.random.default_rng(0)
    weights = {"w": (256, 512), "v": (512, 64)}
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w"], ["m"], name="first"),
        helper.make_node("Softmax", ["m"], ["s"], name="softmax", axis=-1),
        helper.make_node("MatMul", ["s", "v"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "fork",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 64])],
        [
            numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 16, name)
            for name, shape in weights.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def save(folder: Path, parts: object) -> Path:
    exe = executable_of(model(), parts)  # type: ignore[arg-type]
    x = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=exe.run({"x": x})["y"])
    exe.save(folder / "m.collage")
    return folder


def on_processors() -> list[str]:
    """Return a target of each toolchain for processors; finding out which are installed takes seconds."""
    stems = (next((stem for stem in each.targets if stem.startswith("llvm")), None) for each in registry())
    return [stem for stem in stems if stem is not None]


def go(folder: Path, mode: str) -> None:
    command = [sys.executable, str(PROGRAM), str(folder), mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr


def _with_marks(target: str) -> Any:
    # Importing PyTorch's compiler takes half a minute in each process. `extern` runs TVM and oneDNN, which others run alone.
    is_slow = any(name in target for name in ("inductor", "extern"))
    return pytest.param(target, marks=pytest.mark.slow) if is_slow else target


@pytest.mark.few(4)
@pytest.mark.parametrize("target", [_with_marks(target) for target in on_processors()])
def test_kernels_of_every_toolchain_run_in_forks(target: str, tmp_path: Path) -> None:
    found = registry().for_target(Target.parse(target)).availability()
    if not found.available:
        pytest.skip(str(found.reason))
    go(save(tmp_path, target), "fork")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("mixed"), [([0, 1], "llvm"), ([2], "onnxruntime"), ([3], "openvino")])


@pytest.mark.parametrize("mode", ["pool", "lazy", "busy"])
def test_a_mix_runs_in_forks(mixed: Path, mode: str) -> None:
    go(mixed, mode)


def test_a_fork_that_cannot_load_its_kernels_says_so_at_once(tmp_path: Path) -> None:
    go(save(tmp_path, "onnxruntime"), "gone")


def test_forks_of_two_threads_follow_each_other() -> None:
    """The end of one fork lets runs begin, which the other one still holds."""
    told: list[str] = []

    def fork(name: str) -> None:
        _forks._before()
        told.append(name)
        time.sleep(0.05)
        told.append(name)
        _forks._in_parent()

    threads = [threading.Thread(target=fork, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert told in (list("aabb"), list("bbaa"))
