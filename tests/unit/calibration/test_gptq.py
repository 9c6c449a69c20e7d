"""Weights of 4 bits that are rounded on samples: they err less there, and toolchains find their integers again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage.calibration import round_weights
from collage.calibration.gptq import inverse_factor, rounded
from collage.frontend import place_weights
from collage.testing._toolchain_kernels import kernel
from collage.toolchains.sdk.narrow_weights import BLOCK, in_blocks, rounded_blocks

ROWS, WIDTH = 320, 256
RNG = np.random.default_rng(0)
MIXED = (
    RNG.standard_normal((WIDTH, WIDTH)) @ np.diag(np.geomspace(1, 1e-2, WIDTH)) @ RNG.standard_normal((WIDTH, WIDTH))
)
"""Turns independent columns into columns that say much of each other."""


def inputs(seed: int, rows: int = 512) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, WIDTH)) @ MIXED).astype(np.float32)


def weights(columns: int = 96) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((WIDTH, columns)).astype(np.float32)


def nearest(weight: np.ndarray) -> np.ndarray:
    """Round weights [K, N] without samples."""
    columns = np.ascontiguousarray(weight.T).reshape(weight.shape[1], -1, BLOCK)
    integers, scales = rounded_blocks(columns)
    return (integers * scales[..., None]).reshape(weight.shape[1], -1).T


def error(x: np.ndarray, weight: np.ndarray, made: np.ndarray) -> float:
    return float(np.linalg.norm(x @ (made - weight)) / np.linalg.norm(x @ weight))


def test_columns_that_depend_on_each_other_make_good_for_errors() -> None:
    x, weight = inputs(2), weights()
    made = rounded(weight, inverse_factor((x.T @ x).astype(np.float64)))
    assert error(inputs(3), weight, made) < 0.5 * error(inputs(3), weight, nearest(weight))


def test_independent_columns_are_rounded_to_the_nearest() -> None:
    weight = weights()
    np.testing.assert_array_equal(rounded(weight, inverse_factor(np.eye(WIDTH))), nearest(weight))


def test_columns_that_are_always_zero_do_no_harm() -> None:
    x, weight = inputs(2), weights()
    x[:, :40] = 0
    made = rounded(weight, inverse_factor((x.T @ x).astype(np.float64)))
    np.testing.assert_array_equal(made[:BLOCK], nearest(weight)[:BLOCK])
    assert np.isfinite(made).all()


def model(folder: Path, extra: str = "", wide: int = 8) -> ir.Model:
    """Products of one value, one of which is transposed, one behind another, and one with other weights."""
    rng = np.random.default_rng(0)
    shapes = {"first": (WIDTH, ROWS), "second": (ROWS, ROWS), "third": (ROWS, WIDTH), "few": (WIDTH, wide)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found = kernel(
        "products",
        f"""(float[n, {WIDTH}] x) => (float[n, {ROWS}] y, float[n, {wide}] z)
        {{ a = MatMul (x, first) b = Relu (a) c = MatMul (b, second) d = Gemm <transB = 1> (x, third) y = Add (c, d)
           z = MatMul (x, few) {extra} }}""",
        arrays,
    )
    for node in found.graph:
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        node.outputs[0].shape = node.outputs[0].shape or ir.Shape(["n", ROWS])
    return place_weights(found, folder)


def samples() -> list[dict[str, np.ndarray]]:
    return [{"x": inputs(seed, 128)} for seed in range(3)]


@pytest.fixture
def placed(tmp_path: Path) -> tuple[ir.Model, Path]:
    made = model(tmp_path)
    ir.save(made, tmp_path / "prepared.onnx")
    return made, tmp_path / "prepared.onnx"


def test_large_weights_of_a_model_are_rounded_and_found_again(placed: tuple[ir.Model, Path]) -> None:
    made, file = placed
    found = round_weights(made, file, samples, file.parent)
    assert found.keys() == {"first", "second", "third"}
    for node in made.graph:
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        if weight is None or weight.name not in found:
            continue
        rounded_weight = found[str(weight.name)].numpy()
        weight.const_value = ir.Tensor(np.array(rounded_weight))
        integers, scales = in_blocks(node, 4)
        again = integers * np.repeat(scales, BLOCK, axis=0)
        np.testing.assert_array_equal(again.T if weight.name == "third" else again, rounded_weight)
    x, third = inputs(9), made.graph.initializers["third"]
    plain = model(file.parent).graph.initializers["third"].const_value
    assert plain is not None and third.const_value is not None
    assert error(x, plain.numpy().T, third.const_value.numpy().T) < 0.6 * error(
        x, plain.numpy().T, nearest(plain.numpy().T)
    )


def test_weights_stay_as_they_are_when_time_is_over(placed: tuple[ir.Model, Path]) -> None:
    made, file = placed
    assert round_weights(made, file, samples, file.parent, has_time=lambda: False) == {}


def test_weights_that_something_else_reads_stay_as_they_are(tmp_path: Path) -> None:
    made = model(tmp_path, "w = Transpose (first)")
    ir.save(made, tmp_path / "prepared.onnx")
    assert round_weights(made, tmp_path / "prepared.onnx", samples, tmp_path).keys() == {"second", "third"}


def test_few_weights_among_others_stay_as_they_are(tmp_path: Path) -> None:
    made = model(tmp_path, "more = Add (few, few)", wide=4 * ROWS)  # Read twice, so that it is none of them.
    assert round_weights(made, tmp_path / "not written.onnx", samples, tmp_path) == {}
