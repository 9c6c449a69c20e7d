"""TVM's own loops for attention: a product, the softmax of its rows and a product with it."""

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
from tests.toolchain.tvm_cases import agrees, numbers

from collage.target import Target
from collage.testing._toolchain_kernels import KernelCase
from collage.toolchains import LoadOptions, compile_for
from collage.toolchains.tvm import attention
from collage.toolchains.tvm.processor import Processor
from collage.toolchains.tvm.toolchain import TvmToolchain

pytest.importorskip("tvm")

TARGET = Target.parse("llvm")
PROCESSORS = [Processor(16, 32, 2), Processor(8, 16, 2)]
Shape = Sequence[int | str]
PLAIN = "s = MatMul (q, r) c = Mul (s, scale) p = Softmax <axis = -1> (c) y = MatMul (p, w)"
MASKED = "s = MatMul (q, r) c = Mul (s, scale) z = Add (c, mask) p = Softmax <axis = -1> (z) y = MatMul (p, w)"


def names_of(
    body: str, inputs: dict[str, np.ndarray], folder: Path, shapes: dict[str, Shape] | None = None, within: float = 2e-6
) -> list[str]:
    """Compare with ONNX Runtime. Return the names of TVM's functions; keys and values are computed."""
    folder.mkdir(exist_ok=True)
    given = ", ".join(f"float {name}" for name in inputs)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> kernel ({given}) => (float y)'
        f" <float scale = {{0.35}}> {{ r = Neg (k) w = Neg (v) {body} }}"
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    for value in model.graph.input:
        shape = (shapes or {}).get(value.name, inputs[value.name].shape)
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shape))
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    toolchain = TvmToolchain()
    made = compile_for(toolchain, ir.serde.deserialize_model(model), TARGET, folder)
    kernel = toolchain.load(made, TARGET, folder, LoadOptions(2, exclusive=True))
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = reference.run(None, inputs)
    for _ in range(2):  # The second time memory holds what the first one left.
        (actual,) = kernel(list(inputs.values()))
        largest = np.max(np.abs(expected), initial=0, where=np.isfinite(expected))
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=within * largest)
    return [name for name, _ in made.metadata["calls"]]


def given(
    batch: Sequence[int], rows: int, columns: int, depth: int, width: int, seed: int = 0
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"q": (*batch, rows, depth), "k": (*batch, depth, columns), "v": (*batch, columns, width)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def is_own(names: Sequence[str]) -> bool:
    return any("_attention" in name for name in names)


@pytest.mark.few(8)
@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize(
    ("batch", "lengths"),
    [
        ((1, 2), (197, 197, 64, 64)),
        ((3, 2), (49, 49, 32, 32)),
        ((2,), (7, 512, 8, 20)),
        ((1, 4), (1, 40, 64, 64)),
        ((), (33, 17, 5, 9)),
        ((2, 1, 2), (13, 5, 3, 4)),
        ((1, 1), (6, 16, 1, 100)),
        ((5,), (40, 40, 15, 15)),
    ],
)
def test_any_lengths(
    batch: Sequence[int],
    lengths: tuple[int, int, int, int],
    processor: Processor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "processor_of", lambda target: processor)
    assert is_own(names_of(PLAIN, given(batch, *lengths), tmp_path))


@pytest.mark.parametrize("shape", [(2, 3, 21, 37), (2, 1, 1, 37), (1, 1, 21, 37), (21, 1), (3, 1, 1)])
def test_masks_hide_scores(shape: Shape, tmp_path: Path) -> None:
    """A row of which all is hidden has no number, as in the reference."""
    inputs = given((2, 3), 21, 37, 8, 24)
    mask = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    mask[mask > 0.8] = -np.inf
    inputs["mask"] = mask
    assert is_own(names_of(MASKED, inputs, tmp_path))


def test_scores_that_overflow_and_nan_stay_in_their_rows(tmp_path: Path) -> None:
    inputs = given((2,), 13, 37, 8, 24)
    inputs["q"][0, 12] *= 1e4
    inputs["q"][1, 3, 2] = np.nan
    assert is_own(names_of(PLAIN, inputs, tmp_path))


@pytest.mark.parametrize(
    ("shape", "is_turned"), [((2, 64, 40), True), ((1, 3, 33, 33), True), ((40, 21), True), ((2, 24, 60), False)]
)
def test_channels_first(shape: tuple[int, ...], is_turned: bool, tmp_path: Path) -> None:
    """Attention over pixels multiplies values with the transpose of the scores."""
    rng = np.random.default_rng(0)
    *batch, columns, width = shape
    axes = [*range(len(batch)), len(batch) + 1, len(batch)]
    inputs = given(batch, 48, columns, 8, width)
    inputs["v"] = rng.standard_normal((*batch, width, columns)).astype(np.float32)
    body = PLAIN.replace("y = MatMul (p, w)", f"t = Transpose <perm = {axes}> (p) y = MatMul (w, t)")
    assert is_own(names_of(body, inputs, tmp_path)) == is_turned


def test_what_follows_is_computed_in_the_same_loops(tmp_path: Path) -> None:
    body = PLAIN.replace("y = MatMul (p, w)", "m = MatMul (p, w) t = Tanh (m) y = Mul (t, scale)")
    names = names_of(body, given((2, 2), 21, 37, 8, 24), tmp_path)
    assert is_own(names) and len(names) == 3, "two negations, and the attention with all the rest"


@pytest.mark.parametrize(
    "body",
    [
        PLAIN.replace("axis = -1", "axis = 0"),
        PLAIN.replace("y = MatMul (p, w)", "m = MatMul (p, w) y = Add (m, p)"),
        PLAIN.replace("y = MatMul (p, w)", "m = MatMul (p, w) y = Sub (m, c)"),
        PLAIN.replace("y = MatMul (p, w)", "y = MatMul (w, p)"),
        PLAIN.replace("y = MatMul (p, w)", "y = MatMul (p, p)"),
        PLAIN.replace("Softmax", "LogSoftmax"),
    ],
    ids=["of_columns", "weights_read_again", "scores_read_again", "other_side", "square", "logarithm"],
)
def test_others_keep_their_functions(body: str, tmp_path: Path) -> None:
    assert not is_own(names_of(body, given((3,), 24, 24, 8, 24), tmp_path, within=1e-5))


def test_free_lengths_keep_their_functions(tmp_path: Path) -> None:
    shapes: dict[str, Shape] = {"q": (2, "m", 8), "k": (2, 8, "n"), "v": (2, "n", 24)}
    assert not is_own(names_of(PLAIN, given((2,), 21, 37, 8, 24), tmp_path, shapes))


def test_what_is_filled_with_a_scalar_is_no_softmax(tmp_path: Path) -> None:
    """As sums over the edges of a graph begin: no chain of three functions is one of scores, whatever their ranks."""
    text = "(float[v,8] x, int64[e,1] i, float[e,8] u) => (float[w,8] y)"
    body = '{s = Shape (x) z = ConstantOfShape (s) n = ScatterND <reduction = "add"> (z, i, u) y = Add (n, x)}'
    x, i, u = numbers(5, 8), np.array([[0], [4], [4]]), numbers(3, 8, seed=1)
    agrees(KernelCase("sums", text + body, [x, i, u]), tmp_path, within=1e-6)


def test_keys_that_heads_share(tmp_path: Path) -> None:
    inputs = given((2, 3), 21, 37, 8, 24)
    inputs["k"], inputs["v"] = inputs["k"][:, :1], inputs["v"][0, 0]
    assert is_own(names_of(PLAIN, inputs, tmp_path))


def test_a_random_choice_of_lengths(tmp_path: Path) -> None:
    rng: Any = np.random.default_rng(5)
    for i in range(6):
        lengths = (int(x) for x in rng.integers(4, 90, 4))
        names_of(PLAIN, given((2,), *lengths, seed=i), tmp_path / str(i))
