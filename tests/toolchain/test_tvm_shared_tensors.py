"""TVM's virtual machine makes no tensor and no shape twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.toolchain.tvm_cases import TARGET, agrees, numbers

from collage.testing._toolchain_kernels import KernelCase
from collage.toolchains.tvm.toolchain import TvmToolchain

kernels = pytest.importorskip("collage.toolchains.tvm.kernels")
pytest.importorskip("tvm")

LAYERS = 6
WEIGHTS = {f"w{i}": 0.2 * numbers(8, 8) for i in range(LAYERS)}
# A row of each layer goes around its product, in a shape of its own.
LAYER = (
    "h{i} = MatMul (x{i}, w{i}) r{i} = Reshape (h{i}, halves) t{i} = Softmax (r{i}) b{i} = Reshape (t{i}, whole) "
    "x{j} = Add (b{i}, x{i})"
)
TEXT = "(float[N,8] x0) => (float[N,8] y) {" + " ".join(LAYER.format(i=i, j=i + 1) for i in range(LAYERS))
CONSTANTS = {"halves": np.array([0, 2, 4]), "whole": np.array([0, 8])}


def layers(end: str = f"y = Tanh (x{LAYERS}) }}") -> KernelCase:
    return KernelCase("layers", f"{TEXT} {end}", [numbers(3, 8)], WEIGHTS | CONSTANTS)


def made(case: KernelCase, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often a run calls each function."""
    counts: Counter[str] = Counter()
    load = kernels.load_main

    def count(_: Any, name: str, before: bool, *__: Any) -> int:
        counts[name] += before
        return 0

    toolchain = TvmToolchain()
    compiled = toolchain.compile(case.model(), TARGET, folder)
    monkeypatch.setattr(kernels, "load_main", lambda library, _=None: load(library, count))
    kernel = kernels.MachineKernel(folder, compiled, 1, True, count)
    counts.clear()
    kernel(case.inputs)
    return counts


def test_equal_tensors_and_shapes_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = made(layers(), tmp_path, monkeypatch)
    loops = sum(count for name, count in counts.items() if not name.startswith("vm."))
    assert loops >= 2 * LAYERS
    assert 0 < counts["vm.builtin.alloc_tensor"] <= loops / 2
    assert 0 < counts["vm.builtin.make_shape"] <= 6  # Of memory, rows and halves.


@pytest.mark.parametrize(
    "end",
    [
        f"y = Tanh (x{LAYERS}) }}",
        f"y = Identity (x{LAYERS}) }}",
        f"y = Concat <axis = 0> (x{LAYERS}, x2, x{LAYERS}) }}",
        f"s = Shape <start = 0, end = 1> (x0) z = Expand (one, s) u = Unsqueeze (z, last) y = Mul (u, x{LAYERS}) }}",
    ],
)
def test_what_is_kept_for_later_is_not_written_over(end: str, tmp_path: Path) -> None:
    more = {"one": np.float32([2]), "last": np.array([1])}
    constants = WEIGHTS | CONSTANTS | (more if "Expand" in end else {})
    case = KernelCase("layers", f"{TEXT.replace('[N,8] y', '[M,8] y')} {end}", [numbers(3, 8)], constants)
    agrees(case, tmp_path, [numbers(1, 8)], [numbers(40, 8)], within=1e-6)


def test_several_results_have_memory_of_their_own(tmp_path: Path) -> None:
    text = TEXT.replace("float[N,8] y", "float[N,8] y, float[N,8] x2, float[N,8] x4")
    agrees(
        KernelCase("layers", f"{text} y = Neg (x{LAYERS}) }}", [numbers(3, 8)], WEIGHTS | CONSTANTS),
        tmp_path,
        within=1e-6,
    )
