"""Products of queries with heads of keys and values that several of them share, on TVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from collage.target import Target
from collage.toolchains import LoadOptions, compile_for
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")
REPEATED = (
    "u = Unsqueeze (c, two) n = Shape <start = 2, end = 3> (c) w = Concat <axis = 0> (b, g, f, n, d) e = Expand (u, w)"
)
KEYS = {
    "transposed": "t = Transpose <perm = [0, 1, 3, 2]> (r)",
    "transposed and scaled": "s = Transpose <perm = [0, 1, 3, 2]> (r) t = Mul (s, half)",
    "scaled and transposed": "s = Mul (r, half) t = Transpose <perm = [0, 1, 3, 2]> (s)",
    "with merged heads": "m = Reshape (r, merged) q = Transpose <perm = [0, 2, 1]> (m) t = Reshape (q, split)",
}
SHARED = ("transposed", "transposed and scaled", "with merged heads")
CONSTANTS = {
    **{"two": [2], "b": [1], "g": [2], "f": [4], "d": [8], "whole": [1, 8, -1, 8]},
    **{"merged": [8, -1, 8], "split": [1, 8, 8, -1]},
}


def model_of(keys: str, shape: str = "1, 8, rows, 8", repeated: str = REPEATED) -> onnx.ModelProto:
    body = f"{repeated} r = Reshape (e, whole) {KEYS[keys]} y = MatMul (x, t) z = MatMul (y, r)"
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> attention '
        f"(float[{shape}] x, float[1, 2, past, 8] k, float[1, 2, new, 8] a) => "
        "(float[1, 8, r1, t1] y, float[1, 8, r2, 8] z, float[1, 2, t2, 8] c)"
        f" {{ c = Concat <axis = 2> (k, a) {body} }}"
    )
    used = {name for node in model.graph.node for name in node.input}
    arrays = {name: np.array(value) for name, value in CONSTANTS.items()} | {"half": np.float32(0.5)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n in used)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def checked(model: onnx.ModelProto, folder: Path, *lengths: tuple[int, int, int]) -> str:
    """Compare with ONNX Runtime at lengths of rows, cache and new keys. Return the names of TVM's functions."""
    toolchain = TvmToolchain()
    made = compile_for(toolchain, ir.serde.deserialize_model(model), TARGET, folder)
    kernel = toolchain.load(made, TARGET, folder, LoadOptions(2, exclusive=True))
    session, rng = onnxruntime.InferenceSession(model.SerializeToString()), np.random.default_rng(0)
    for rows, past, new in lengths:
        shapes: list[Any] = [(1, 8, rows, 8), (1, 2, past, 8), (1, 2, new, 8)]
        given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        expected = session.run(None, dict(zip("xka", given, strict=True)))
        for _ in range(2):  # The second time memory holds what the first one left.
            for found, right in zip(kernel(given), expected, strict=True):
                np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)
    return " ".join(name for name, _ in made.metadata["calls"])


@pytest.mark.parametrize("keys", KEYS)
def test_shared_heads_are_not_repeated(keys: str, tmp_path: Path) -> None:
    names = checked(model_of(keys), tmp_path, (1, 5, 1), (3, 0, 3), (4, 17, 2), (1, 1, 1))
    assert ("broadcast" in names) == (keys not in SHARED)


def test_other_copies_are_left_alone(tmp_path: Path) -> None:
    """Copies before the heads: query ``h`` has the keys ``h % 2``, and not ``h // 4``."""
    before = REPEATED.replace("(b, g, f, n, d)", "(b, f, g, n, d)").replace("(c, two)", "(c, b)")
    names = checked(model_of("transposed", repeated=before), tmp_path, (1, 5, 1), (3, 4, 3))
    assert "broadcast" in names


def test_rows_of_a_fixed_number_stay_so(tmp_path: Path) -> None:
    assert "broadcast" not in checked(model_of("transposed", "1, 8, 3, 8"), tmp_path, (3, 5, 1), (3, 0, 2))
