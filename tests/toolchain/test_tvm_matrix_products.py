"""TVM's own loops for products of two computed matrices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from collage.target import Target
from collage.toolchains import LoadOptions, compile_for
from collage.toolchains.tvm import nests
from collage.toolchains.tvm.processor import Processor
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")
Shape = Sequence[int | str]


def model_of(left: Shape, right: Shape, after: str = "") -> onnx.ModelProto:
    """A product, whose second operand is computed, and what follows."""
    body = f"r = Neg (b) c = MatMul (a, r) {after or 'y = Identity (c)'}"
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> kernel (float a, float b) => (float y)'
        f" <float scale = {{0.125}}> {{ {body} }}"
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    for value, shape in zip(model.graph.input, (left, right), strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shape))
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def check(model: onnx.ModelProto, folder: Path, *lengths: dict[str, int]) -> list[str]:
    """Compare with ONNX Runtime at lengths. Return the names of TVM's functions."""
    toolchain = TvmToolchain()
    made = compile_for(toolchain, ir.serde.deserialize_model(model), TARGET, folder)
    kernel = toolchain.load(made, TARGET, folder, LoadOptions(2, exclusive=True))
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    for known in lengths:
        shapes = [
            [d.dim_value or known.get(d.dim_param, 0) for d in v.type.tensor_type.shape.dim] for v in model.graph.input
        ]
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
        (expected,) = reference.run(None, {"a": a, "b": b})
        for _ in range(2):  # The second time memory holds what the first one left.
            (actual,) = kernel([a, b])
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(expected).max(initial=0)))
    return [name for name, _ in made.metadata["calls"]]


def is_own(names: Sequence[str]) -> bool:
    return any("_matrices_" in name for name in names)


@pytest.mark.few(10)
@pytest.mark.parametrize("processor", [Processor(16, 32, 2), Processor(8, 16, 2)])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((197, 64), (64, 197)),
        ((3, 50, 8), (3, 8, 50)),
        ((2, 3, 13, 5), (2, 3, 5, 17)),
        ((1, 24), (24, 33)),
        ((13, 64), (64, 64)),
        ((4, 1, 9, 6), (3, 6, 31)),
        ((2, 70, 1), (2, 1, 65)),
        ((130, 300), (300, 100)),
        ((8, 40, 40), (8, 40, 15)),
        ((2, 13, 9), (2, 9, 8)),
        ((3, 5), (5, 7)),
        ((1, 20), (20, 5)),
        ((197, 33), (33, 11)),
    ],
)
def test_rows_and_columns_of_any_number(
    left: Shape, right: Shape, processor: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nests, "processor_of", lambda target: processor)
    assert is_own(check(model_of(left, right), tmp_path, {}))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("m", 24), (24, 40)),
        (("h", "m", 16), ("h", 16, "n")),
        ((2, "m", "k"), (2, "k", 33)),
        ((1, 4, "n", 32), (1, 4, 32, "n")),
        (("b", 1, "m", "k"), (3, "k", "n")),
        ((2, "m", "k"), (2, "k", 15)),
        (("m", 12), (12, 6)),
    ],
)
def test_free_lengths(left: Shape, right: Shape, tmp_path: Path) -> None:
    """More and fewer columns than a tile has, and one row."""
    lengths = [
        {"h": 3, "b": 2, "m": m, "n": n, "k": k} for m, n, k in ((13, 40, 5), (1, 7, 64), (64, 32, 1), (57, 31, 9))
    ]
    assert is_own(check(model_of(left, right), tmp_path, *lengths))


def test_what_follows_is_computed_in_the_same_loops(tmp_path: Path) -> None:
    model = model_of((2, 21, 8), (2, 8, 37), "s = Mul (c, scale) t = Tanh (s) y = Add (t, c)")
    names = check(model, tmp_path, {})
    assert is_own(names) and len(names) == 2, "the negation, and the product with all the rest"


def test_infinities_stay_in_their_rows_and_columns(tmp_path: Path) -> None:
    """The last tiles repeat rows and columns."""
    toolchain = TvmToolchain()
    model = model_of((13, 8), (8, 37))
    made = compile_for(toolchain, ir.serde.deserialize_model(model), TARGET, tmp_path)
    a, b = np.ones((13, 8), np.float32), np.ones((8, 37), np.float32)
    a[12, 3], b[5, 36] = np.inf, np.nan
    (y,) = toolchain.load(made, TARGET, tmp_path, LoadOptions(2))([a, b])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(y, a @ -b)


@pytest.mark.parametrize(
    ("left", "right"),
    [((49, 16), (16, 64)), ((3, 5), (5, 3)), ((12, 64), (64, 32))],
)
def test_others_keep_their_loops(left: Shape, right: Shape, tmp_path: Path) -> None:
    assert not is_own(check(model_of(left, right), tmp_path, {}))


def test_a_random_choice_of_shapes(tmp_path: Path) -> None:
    rng: Any = np.random.default_rng(5)
    for i in range(6):
        m, k, n = (int(x) for x in rng.integers(1, 90, 3))
        folder = tmp_path / str(i)
        folder.mkdir()
        check(model_of((2, m, k), (2, k, n), "y = Mul (c, scale)"), folder, {})
