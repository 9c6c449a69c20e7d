"""Decoders: how long a step takes, and what it reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from collage.measure._decoding_worker import DecodingWorker
from collage.measure._peak_worker import PeakWorker
from collage.measure.decoding import bytes_read
from collage.runtime._decoder import decoder_of
from collage.testing import executable_of

WIDTH, WORDS = 8, 16

TABLE, HEAD = (", ".join([str(x)] * (WIDTH * WORDS)) for x in (0.5, 0.25))
DECODER = f"""
<ir_version: 9, opset_import: ["" : 17]>
agraph (int64[1, seq] input_ids, float[1, past, {WIDTH}] past_0, int64[1, total] attention_mask, int64[1, seq] position_ids)
    => (float[1, seq, {WORDS}] logits, float[1, total, {WIDTH}] present_0)
    <float[{WORDS}, {WIDTH}] table = {{{TABLE}}}, float[{WIDTH}, {WORDS}] head = {{{HEAD}}}, int64[1] one = {{1}},
     int64[1] two = {{2}}>
{{
    x = Gather (table, input_ids)
    p = Cast <to = 1> (position_ids)
    q = Unsqueeze (p, two)
    rows = Add (x, q)
    present_0 = Concat <axis = 1> (past_0, rows)
    m = Cast <to = 1> (attention_mask)
    weights = Unsqueeze (m, two)
    masked = Mul (present_0, weights)
    context = ReduceSum <keepdims = 1> (masked, one)
    y = Add (rows, context)
    logits = MatMul (y, head)
}}
"""


def test_a_decoder_is_timed_token_by_token(tmp_path: Any) -> None:
    executable = executable_of(ir.from_onnx_text(DECODER), "onnxruntime")
    executable.save(tmp_path / "model.collage")
    first_s, step_s, read = DecodingWorker(str(tmp_path / "model.collage")).decode(5, 6)
    assert 0 < first_s < 10 and 0 < step_s < 10
    # Of the table a step reads a row; the head it reads as a whole.
    assert read is not None and WIDTH * WORDS * 4 <= read < 2 * WIDTH * WORDS * 4
    outputs = executable.run(decoder_of(executable.inputs, executable.outputs).feeds(5, 0))  # type: ignore[union-attr]
    assert outputs["present_0"].shape == (1, 5, WIDTH)


def test_narrow_weights_are_fewer_bytes() -> None:
    text = "<ir_version: 9, opset_import: ['' : 17]> g (float[1,256] x, float[256,288] w) => (float[1,288] y) {y = MatMul (x, w)}"
    model = ir.from_onnx_text(text.replace("'", '"'))
    value = model.graph.inputs.pop()
    value.const_value = ir.tensor(np.random.default_rng(0).normal(size=(256, 288)).astype(np.float32), name="w")
    model.graph.register_initializer(value)
    f32, w4 = (executable_of(model, f"onnxruntime{option}") for option in ("", " -precision=w4"))
    assert bytes_read(f32.recipe, f32.workspace) == 256 * 288 * 4
    # A block of 32 weights has a scale of 4 bytes, and on TVM of 2.
    assert bytes_read(w4.recipe, w4.workspace) == 256 * 288 * (16 + 4) // 32


def test_large_weights_of_tvm_count_without_tables() -> None:
    text = (
        "<ir_version: 9, opset_import: ['' : 17]> g (int64[1] i, float[512,2048] t, float[2048,4096] w)"
        " => (float[1,4096] y) {x = Gather (t, i) y = MatMul (x, w)}"
    )
    model = ir.from_onnx_text(text.replace("'", '"'))
    for name, shape in (("w", (2048, 4096)), ("t", (512, 2048))):
        value = model.graph.inputs.pop()
        value.const_value = ir.tensor(np.random.default_rng(0).normal(size=shape).astype(np.float32), name=name)
        model.graph.register_initializer(value)
    f32, w4 = (executable_of(model, f"llvm{option}") for option in ("", " -precision=w4"))
    assert bytes_read(f32.recipe, f32.workspace) == 2048 * 4096 * 4
    assert bytes_read(w4.recipe, w4.workspace) == 2048 * 4096 * (16 + 2) // 32


def test_memory_is_read_at_a_rate_that_memory_has() -> None:
    assert 1e8 < PeakWorker().read_bytes_per_s(1) < 1e12
