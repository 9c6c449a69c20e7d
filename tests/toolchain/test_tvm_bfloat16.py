"""Bfloat16 on TVM: inputs that become floats, outputs that are rounded as ONNX does, and nothing in between."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from collage.target import Target
from collage.testing import executable_of
from collage.toolchains.tvm.bfloat16 import with_words
from collage.toolchains.tvm.toolchain import TvmToolchain

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
PRODUCT = f"{HEAD} m (bfloat16[n, 8] x, bfloat16[8] b) => (bfloat16[n, 8] y, bfloat16[n, 8] z) {{ y = Mul (x, b) z = Exp (y) }}"


def narrow(values: Any) -> Any:
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16)


def test_a_model_in_bfloat16_runs_whole() -> None:
    executable = executable_of(ir.from_onnx_text(PRODUCT), "llvm")
    assert [kernel.target.split()[0] for kernel in executable.recipe.kernels] == ["llvm"]
    for rows in (1, 5, 3):
        x, b = narrow(np.random.default_rng(rows).standard_normal((rows, 8))), narrow(np.linspace(-2, 2, 8))
        found = executable.run({"x": x, "b": b})
        wide = x.astype(np.float32) * b.astype(np.float32)
        np.testing.assert_array_equal(found["y"], narrow(wide))
        np.testing.assert_allclose(np.float32(found["z"]), np.exp(wide), rtol=0.01)
        assert found["y"].dtype == found["z"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("strided", [False, True])
def test_bits_are_read_and_rounded_as_numpy_does(strided: bool) -> None:
    casts = "y = Cast <to = 1> (x) z = Cast <to = 16> (f)"
    text = f"{HEAD} m (bfloat16[n] x, float[n] f) => (float[n] y, bfloat16[n] z) {{ {casts} }}"
    executable = executable_of(ir.from_onnx_text(text), "llvm")
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    # Each bfloat16, halfway to the next, and just beyond.
    near = (np.arange(1 << 16, dtype=np.uint32) << 16) + np.resize(np.uint32([0, 0x7FFF, 0x8000, 0x8001]), 1 << 16)
    if strided:
        every, near = np.repeat(every, 2)[::2], np.repeat(near, 2)[::2]
    found = executable.run({"x": every, "f": near.view(np.float32)})
    np.testing.assert_array_equal(found["y"], every.astype(np.float32))
    with np.errstate(invalid="ignore"):
        rounded = near.view(np.float32).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.float32(found["z"]), np.float32(rounded))


def test_values_in_between_are_not_taken() -> None:
    model = ir.from_onnx_text(f"{HEAD} m (bfloat16[8] x) => (bfloat16[8] y) {{ a = Exp (x) y = Neg (a) }}")
    assert not any(TvmToolchain().supports(node, Target.parse("llvm")).ok for node in model.graph)
    assert with_words(model) is model
