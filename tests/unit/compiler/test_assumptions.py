"""The assumptions that a compilation tells before its work."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from collage.compiler.assumptions import assumed_lengths, assumed_options
from collage.options import CompileOptions
from collage.system.progress import Note, Progress, shown
from collage.target import Target

MODEL = """<ir_version: 8, opset_import: ["" : 18]>
g (float[batch, seq] x, float[4] y) => (float[batch, seq] z) { z = Relu(x) }"""
FIXED = '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] z) { z = Relu(x) }'


def test_lengths_are_told_and_those_that_are_made_up_are_named() -> None:
    model = ir.from_onnx_text(MODEL)
    told = assumed_lengths(model, {"batch": 1, "seq": {32: 3, 512: 1}}, {"seq"})
    assert told == "timed at batch 1, seq 32 and at batch 1, seq 512; assumed: batch; --dim changes it"
    assert assumed_lengths(model, {"batch": 2, "seq": 7}, {"batch", "seq"}) == "timed at batch 2, seq 7"
    assert assumed_lengths(ir.from_onnx_text(FIXED), {}, ()) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (CompileOptions(), "outputs may differ by rounding only"),
        (CompileOptions(max_drop=0.005), "top-1 may get worse by 0.5 %"),
        (CompileOptions(metric="perplexity", max_drop=0.01), "perplexity may get worse by 1 %"),
        (CompileOptions(metric="kl", max_drop=0.01), "kl may get worse by 0.01"),
        (CompileOptions(accuracy_budget=0.01), "outputs may differ by 1 % of the largest"),
        (CompileOptions(limits=("p99<=20ms",)), "p99<=20ms"),
        (CompileOptions(objective="memory"), "the largest resident set"),
        (CompileOptions(baseline="none", time_budget_s=90), "compared with nothing; a time budget of 90 s"),
        (CompileOptions(), "the original file on ONNX Runtime with its defaults; no time budget"),
        (CompileOptions(), "targets: llvm"),
    ],
)
def test_options_are_told_in_words(options: CompileOptions, words: str) -> None:
    assert words in "\n".join(assumed_options(options, [Target.parse("llvm")]))


def test_a_note_is_shown_whole_beside_steps_that_are_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    with shown() as show:
        progress = Progress(show, ("read",))
        for text in ("first", "skipped", Note("timed at batch 1")):
            progress(text)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "timed at batch 1" and len(lines) == 2
