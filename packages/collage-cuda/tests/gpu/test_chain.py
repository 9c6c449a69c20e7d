"""Kernels of several toolchains on one device: tensors stay there, and the whole is one CUDA graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.runtime import Step
from collage.runtime._device_chain import DeviceChain, executor_of
from collage.target import Target
from collage.testing._toolchain_case import _load, _reference
from collage.testing._toolchain_kernels import kernel
from collage.toolchains import registry

CAPTURABLE = ("cuda -libs=cudnn", "cuda -libs=cublas", "cuda -compiler=inductor")


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def loaded(text: str, model: Any, folder: Path) -> Any:
    target = Target.parse(text)
    toolchain = registry().for_target(target)
    found = toolchain.availability_of(target)
    if not found.available:
        pytest.skip(f"{text}: {found.reason}")
    return _load(toolchain, model, target, folder)


@pytest.mark.parametrize(
    "between", ["cuda", "cuda -compiler=inductor", "cuda -compiler=onnxruntime", "cuda -compiler=tensorrt"]
)
def test_several_toolchains_in_one_chain(between: str, tmp_path: Path) -> None:
    weights = {"w": numbers(6, 4, 3, 3), "b": numbers(6, seed=1), "v": numbers(7, 5, seed=2), "c": numbers(5, seed=3)}
    models = [
        kernel(
            "one",
            "(float[2,4,9,9] x) => (float[2,6,7,7] t) {c = Conv (x, w, b) t = Relu (c)}",
            {k: weights[k] for k in "wb"},
        ),
        kernel("two", "(float[2,6,7,7] t) => (float[2,6,7,7] s) {s = Softmax (t)}"),
        kernel(
            "three",
            "(float[2,6,7,7] s) => (float[2,6,7,5] y) {a = MatMul (s, v) y = Add (a, c)}",
            {k: weights[k] for k in "vc"},
        ),
    ]
    targets = ("cuda -libs=cudnn", between, "cuda -libs=cublas")
    kernels = [loaded(target, model, tmp_path) for target, model in zip(targets, models, strict=True)]
    steps = [
        Step(f"k{i}", each, (name,), (after,))
        for i, (each, name, after) in enumerate(zip(kernels, "xts", "tsy", strict=True))
    ]
    executor = executor_of(steps, ["x"], ["y"], None)
    for run in range(5):
        x = numbers(2, 4, 9, 9, seed=run)
        wanted = [x]
        for model in models:
            wanted = list(_reference(model, wanted))
        np.testing.assert_allclose(executor.run([x])[0], wanted[0], rtol=0, atol=1e-4)


def test_a_chain_of_capturable_kernels_is_one_graph(tmp_path: Path) -> None:
    text = "(float[8,64] x) => (float[8,64] y) {a = MatMul (x, w) c = Add (a, b) y = Relu (c)}"
    weights = {"w": numbers(64, 64) / 8, "b": numbers(64, seed=1)}
    steps = []
    for i in range(4):
        model = kernel(f"k{i}", text, weights)
        steps.append(Step(f"k{i}", loaded(CAPTURABLE[1], model, tmp_path), (f"v{i}",), (f"v{i + 1}",)))
    chain = DeviceChain(steps, frozenset({"v4"}))
    for run in range(4):
        x = numbers(8, 64, seed=run)
        wanted = x
        for _ in range(4):
            wanted = np.maximum(wanted @ weights["w"] + weights["b"], 0)
        np.testing.assert_allclose(chain([x])[0], wanted, rtol=0, atol=1e-3)
    (program,) = chain._programs.values()
    assert program is not None and len(program._parts) == 1
    _, spans = chain.trace([numbers(8, 64)])
    assert len(spans) == 4 and all(end > began for began, end in spans)
