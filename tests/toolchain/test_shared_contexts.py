"""Contexts of one executable that share what their toolchain made: right, at once, and loaded once."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.runtime import Executable
from collage.target import Target
from collage.testing import executable_of
from collage.testing._toolchain_kernels import kernel
from collage.toolchains import LoadOptions, registry

SHARING = ["onnxruntime", "openvino"]


def model() -> Any:
    return kernel("k", "(float[8, 8] x) => (float[8, 8] y) {a = MatMul (x, x) b = Relu (a) y = Add (b, x)}")


def expected(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.maximum(x @ x, 0) + x
    return found


@pytest.mark.parametrize("name", SHARING)
def test_contexts_of_one_thread_load_once(name: str, tmp_path: Path) -> None:
    target = Target.parse(f"llvm -compiler={name}")
    toolchain = registry().for_target(target)
    compiled = toolchain.compile(model(), target, tmp_path)
    shared: dict[Any, Any] = {}
    options = LoadOptions(threads=1, streams=3, shared=shared)
    kernels = [toolchain.load(compiled, target, tmp_path, options) for _ in range(3)]
    assert len(shared) == 1
    for number, loaded in enumerate(kernels):
        x = np.full((8, 8), number + 1, np.float32)
        np.testing.assert_allclose(loaded([x])[0], expected(x), rtol=1e-5)
    alone = toolchain.load(compiled, target, tmp_path, replace(options, streams=1, shared=None))
    np.testing.assert_allclose(alone([x])[0], expected(x), rtol=1e-5)
    assert len(shared) == 1


@pytest.mark.parametrize("name", [*SHARING, pytest.param("llvm", marks=pytest.mark.slow)])
def test_runs_at_once_do_not_meet(name: str) -> None:
    if not registry().for_target(registry().parse_target(name)).availability().available:
        pytest.skip(f"{name} is not here")
    plain = executable_of(model(), name, threads=1)
    exe = Executable(replace(plain.recipe, streams=3), plain.workspace)
    failures: list[str] = []

    def caller(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for _ in range(50):
            x = draw.standard_normal((8, 8)).astype(np.float32)
            (y,) = exe.run({"x": x}).values()
            if not np.allclose(y, expected(x), rtol=1e-4, atol=1e-5):
                failures.append(f"caller {seed}")

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads)
