"""``collage diff``: the first operator at which a toolchain differs from the reference. Thin, like the other commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collage.cli._console import print_json, progress
from collage.cli._early_checks import check_model_file, check_target_names
from collage.cli._options import Db, Fixed, Inputs, Json, Occasions, Quiet, Targets
from collage.option_texts import read_dims, read_files, read_lengths
from collage.system.texts import counted, printable

if TYPE_CHECKING:
    from collage.compiler.first_difference import Difference

__all__ = ["DIFF_HELP", "diff"]

_SCHEMA = 1

DIFF_HELP = """Find the first operator at which a toolchain differs from the reference by more than float arithmetic itself errs.

    The exit code is 1 if a toolchain differs. Examples:

      collage diff model.onnx -t openvino -t llvm

      collage diff model.onnx -t openvino --input image=photo.npy -o wrong
    """


def diff(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    target: Targets = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A folder to write to: each wrong kernel, its inputs and right outputs."),
    ] = None,
    input_: Inputs = None,
    dim: Occasions = None,
    fix: Fixed = None,
    db: Db = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Find first differences."""
    check_model_file(model)
    check_target_names(target or ())
    from collage.cli._arrays import read_arrays
    from collage.compiler.first_difference import first_differences
    from collage.options import CompileOptions

    inputs = read_arrays(read_files(input_, "--input", "NAME=FILE.npy"))
    options = CompileOptions(db=db, dims=read_lengths(dim), fixed=read_dims(fix, "--fix"), inputs=inputs)
    with progress(quiet) as say:
        found = first_differences(model, target, output, options=options, say=say)
    if json:
        print_json({"schema": _SCHEMA, "model": str(model), "targets": [each.as_json() for each in found]})
    else:
        sys.stdout.write("".join(f"{printable(line)}\n" for line in _lines(found)))
    if any(each.verdict == "wrong" for each in found):
        raise typer.Exit(1)


def _lines(found: Sequence[Difference]) -> list[str]:
    lines = []
    for each in found:
        if each.verdict == "right":
            lines.append(f"{each.target}: right at every operator, within the noise of float arithmetic")
        elif each.verdict == "failed":
            lines.append(f"{each.target}: failed, and no operator is wrong alone: {each.reason}")
        else:
            size = f"a kernel of {counted(len(each.kernel), 'operator')} shows it"
            lines.append(f"{each.target}: the first difference is at {each.node} ({each.operator}); {size}")
            lines.append(f"  {', '.join(each.kernel[:12])}{' …' if len(each.kernel) > 12 else ''}")
            lines.append(f"  that kernel: {each.difference}")
            lines.append(f"  the whole model: {each.reason}")
            lines += [] if each.folder is None else [f"  written to {each.folder}"]
    return lines
