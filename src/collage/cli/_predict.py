"""``collage predict``: the gain and the time of a compilation, expected beforehand. Thin, like the other commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from collage.cli._console import print_json, progress
from collage.cli._early_checks import check_model_file, check_target_names
from collage.cli._options import Db, Fixed, Json, Occasions, Quiet, Targets
from collage.option_texts import read_dims, read_lengths
from collage.system.texts import counted, printable

__all__ = ["PREDICT_HELP", "predict"]

PREDICT_HELP = """Predict what compiling a model would gain, and how long it would take. No kernel is built or timed.

    Examples:

      collage predict model.onnx

      collage predict model.onnx --dim batch=8 -t onnxruntime -t openvino --json
    """


def predict(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    target: Targets = None,
    dim: Occasions = None,
    fix: Fixed = None,
    db: Db = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Predict."""
    check_model_file(model)
    check_target_names(target or ())
    from collage.compiler.forecast import predict as predict_
    from collage.options import CompileOptions

    options = CompileOptions(db=db, dims=read_lengths(dim), fixed=read_dims(fix, "--fix"))
    with progress(quiet) as say:
        found = predict_(model, target, options=options, say=say)
    if json:
        print_json(found)
    else:
        _print(found)


def _print(found: Mapping[str, Any]) -> None:
    from collage.cli._report import print_table
    from collage.report import short_name

    rows = [
        (short_name(row["target"]), *_cells(row["ms"]), row["reason"] or "")
        for row in sorted(found["singles"], key=lambda row: row["ms"]["expected"] if row["ms"] else float("inf"))
    ]
    print_table("expected: nothing was built or timed", ("target alone", "ms", "range", ""), rows, (1, 2))
    learned, score, gain = found["learned_from"], found["score"], found["gain"]
    lines = list(found["notes"])

    if gain is None:
        lines.append("gain: no toolchain that it learned from takes the whole model; nothing is predicted")
    else:
        lines.append("gain over the fastest, of every model: {expected:.2f}x ({low:.2f} to {high:.2f})".format(**gain))
    if found["compile_s"] is not None:
        text = "a compilation, of every model: {expected:.0f} s ({low:.0f} to {high:.0f})"
        lines.append(text.format(**found["compile_s"]))
    lines += [f"unlike what it learned from: {each}; the ranges may not hold" for each in found["unlike"]]
    lines.append(
        f"of {counted(score['of'], 'model')}, each predicted from the others, the true gain was within the range for "
        f"{score['inside']}; learned from {counted(learned['timings'], 'timing')}"
    )
    print(printable("\n".join(lines)))


def _cells(figures: Mapping[str, float] | None) -> tuple[str, str]:
    if figures is None:
        return "", ""
    return f"{figures['expected']:.3g}", f"{figures['low']:.3g} to {figures['high']:.3g}"
