"""Large weights of TVM's kernels lie in a file of their own, which is mapped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import collage
from collage._errors import ToolchainError
from collage.frontend import fix_lengths
from collage.graph import copy_model
from collage.runtime import Executable
from collage.target import Target
from collage.testing import executable_of
from collage.testing._toolchain_kernels import kernel
from collage.toolchains import Compiled, LoadOptions
from collage.toolchains.sdk.model_files import MAPPED_WEIGHTS
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")
W = np.random.default_rng(0).standard_normal((256, 300)).astype(np.float32)  # 300 kB
X = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32)


def model(outputs: str = "float[3,300] y", more: str = "") -> ir.Model:
    return kernel(
        "k", f"(float[3,256] x) => ({outputs}) {{p = MatMul (x, w) y = Add (p, b) {more}}}", {"w": W, "b": W[0]}
    )


def compiled(folder: Path, text: ir.Model) -> Compiled:
    return TvmToolchain().compile(text, TARGET, folder)


def run(folder: Path, made: Compiled) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(y) for y in TvmToolchain().load(made, TARGET, folder, LoadOptions(2, exclusive=True))([X])]


def test_the_library_has_small_weights_only(tmp_path: Path) -> None:
    made = compiled(tmp_path, model())
    sizes = {Path(name).suffix: (tmp_path / name).stat().st_size for name in made.files}
    assert sizes[MAPPED_WEIGHTS] >= W.nbytes > sizes[".so"]
    np.testing.assert_allclose(run(tmp_path, made)[0], X @ W + W[0], rtol=1e-4, atol=1e-4)


def test_a_kernel_of_small_weights_has_no_such_file(tmp_path: Path) -> None:
    made = compiled(tmp_path, kernel("k", "(float[2] x) => (float[2] y) {y = Add (x, x)}"))
    assert not any(name.endswith(MAPPED_WEIGHTS) for name in made.files)


def test_a_weight_that_is_returned_is_a_copy(tmp_path: Path) -> None:
    made = compiled(tmp_path, model("float[3,300] y, float[256,300] z", "z = Identity (w)"))
    first = run(tmp_path, made)[1]
    np.testing.assert_array_equal(first, W)
    first[:] = 7
    np.testing.assert_array_equal(run(tmp_path, made)[1], W)


def test_compiling_again_leaves_what_is_loaded(tmp_path: Path) -> None:
    made = compiled(tmp_path, model())
    loaded = TvmToolchain().load(made, TARGET, tmp_path, LoadOptions(2, exclusive=True))
    (tmp_path / made.files[-1]).unlink()
    np.testing.assert_allclose(np.asarray(loaded([X])[0]), X @ W + W[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "places",
    [
        [[0, "float32", 256, 30000]],
        [[-64, "float32", 2]],
        [[1, "float32", 256, 30]],
        [["a", "b"]],
        [[0, "object", 2]],
        [7],
        7,
    ],
    ids=str,
)
def test_places_that_are_not_in_the_file_are_refused(places: Any, tmp_path: Path) -> None:
    made = compiled(tmp_path, model())
    with pytest.raises(ToolchainError, match="weights"):
        run(tmp_path, replace(made, metadata={**made.metadata, "weights": places}))


def test_without_its_file_it_does_not_load(tmp_path: Path) -> None:
    made = compiled(tmp_path, model())
    with pytest.raises(ToolchainError, match="weights"):
        run(tmp_path, replace(made, files=made.files[:2]))


def test_plans_for_several_lengths_share_one_file(tmp_path: Path) -> None:
    text = "(float[n,256] x) => (float[n,300] y) {p = MatMul (x, w) y = Add (p, b)}"
    free = kernel("k", text, {"w": W, "b": W[0]})

    def made(rows: int | None) -> Executable:
        executable = executable_of(
            copy_model(free) if rows is None else fix_lengths(copy_model(free), {"n": rows}), "llvm"
        )
        executable.recipe = replace(executable.recipe, model={"sha256": "5" * 64})
        return executable

    general = made(None)
    general.add_plans([made(rows) for rows in (40, 48)], general.report)
    general.save(tmp_path / "pack.collage")
    loaded = collage.load(tmp_path / "pack.collage")
    files = [next(plan.workspace.glob(f"*{MAPPED_WEIGHTS}")) for plan in loaded.specialised]
    assert files[0] != files[1] and files[0].samefile(files[1])
    for rows in (40, 48, 7):
        x = np.random.default_rng(rows).standard_normal((rows, 256)).astype(np.float32)
        np.testing.assert_allclose(loaded.run([x])["y"], x @ W + W[0], rtol=1e-4, atol=1e-4)
