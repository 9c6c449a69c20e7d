"""Weights of 4 bits are rounded on samples, which may be texts for a decoder; the artefact holds what was judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import collage
from collage.testing import executable_of
from collage.testing._toolchain_kernels import kernel
from collage.toolchains.sdk.narrow_weights import BLOCK, _in_blocks

WIDTH, WORDS = 256, 96
TARGET = "onnxruntime -precision=w4"


def decoder() -> ir.Model:
    """Return a decoder whose cache is a sum over tokens. Its columns say much of each other, as those of trained models do."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((WORDS, 24)) @ rng.standard_normal((24, WIDTH)) + 0.1 * rng.standard_normal(
        (WORDS, WIDTH)
    )
    arrays = {
        "table": table.astype(np.float32),
        "first": (rng.standard_normal((WIDTH, 2 * WIDTH)) / 16).astype(np.float32),
        "second": (rng.standard_normal((2 * WIDTH, WIDTH)) / 16).astype(np.float32),
    }
    return kernel(
        "decoder",
        f"""(int64[1, seq] input_ids, float[1, past, {WIDTH}] past_0)
           => (float[1, seq, {WIDTH}] y, float[1, total, {WIDTH}] present_0)
        {{ x = Gather (table, input_ids) present_0 = Concat <axis = 1> (past_0, x) a = MatMul (x, first) b = Relu (a)
           c = MatMul (b, second) y = Add (x, c) }}""",
        arrays,
    )


def texts(seed: int, count: int = 40) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"input_ids": rng.integers(0, WORDS, 16)} for _ in range(count)]


def error(model: Path, executable: Any) -> float:
    """Return the error of an executable on texts that nothing else saw, relative to what the products add."""
    plain = executable_of(model, "onnxruntime")
    off, size = 0.0, 0.0
    for text in texts(9, 8):
        feeds = {"input_ids": text["input_ids"][None], "past_0": np.zeros((1, 1, WIDTH), np.float32)}
        right = np.asarray(plain.run(feeds)["y"])
        off += float(np.square(np.asarray(executable.run(feeds)["y"]) - right).sum())
        size += float(np.square(right).sum())
    return float(np.sqrt(off / size))


def test_a_decoder_is_rounded_on_texts_and_its_artefact_holds_the_rounded_weights(tmp_path: Path) -> None:
    model = tmp_path / "decoder.onnx"
    ir.save(decoder(), model)
    made = collage.compile(
        model,
        targets=[TARGET],
        data=texts(1),
        options=collage.CompileOptions(accuracy_budget=0.2, db="sqlite:///:memory:", finals=False),
    )
    assert all("precision=w4" in kernel.target for kernel in made.recipe.kernels)
    assert made.recipe.empty == ("past",)  # The judge ran kernels, not the host in their place.
    assert error(model, made) < 0.7 * error(model, executable_of(model, TARGET))
    made.save(tmp_path / "decoder.collage")
    stored = ir.load(tmp_path / "decoder.collage" / "model.onnx").graph.initializers
    found = [value.const_value.numpy() for value in stored.values() if value.const_value is not None]
    products = [array for array in found if array.shape in ((WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH))]
    assert len(products) == 2
    for weight in products:
        integers, scales = _in_blocks(np.ascontiguousarray(weight.T))
        np.testing.assert_array_equal(integers * np.repeat(scales, BLOCK, axis=1), weight.T)
