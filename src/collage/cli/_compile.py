"""``collage compile``."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from collage._errors import UsageError, WrongAnswer
from collage.cli._compile_options import (
    DisabledPasses,
    FusionStyles,
    MaxCandidates,
    MaxDepth,
    NativeMaxDepth,
    OptLevel,
    PassConfig,
    read_context,
    read_fusion,
)
from collage.cli._config import apply_config
from collage.cli._console import print_json, progress
from collage.cli._early_checks import check_model_file, check_name, check_paths, check_target_names, notes_on
from collage.cli._fleet import MachineName, MachinesFile, On, compile_there
from collage.cli._generated import settings_of, with_compile_options
from collage.cli._options import Json, Quiet, Targets
from collage.option_texts import read_files
from collage.options import EXPERTS, MACHINES, SEARCH, CompileOptions
from collage.store import shown, url_of

__all__ = ["COMPILE_HELP", "compile_"]

COMPILE_HELP = """Compile a model into the fastest measured mix of toolchains.

    Examples:

      collage compile model.onnx -o model.collage

      collage compile model.onnx -o model.collage --dim seq=128 --time-budget 2m

      collage compile model.onnx -o model.collage --precision int8 --data samples

      collage compile model.onnx -o model.collage -t llvm -t openvino --fix batch=1 --json

      collage compile model.onnx --dry-run
    """


@with_compile_options
def compile_(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The artefact to write: a folder, a .zip, or a URL.")
    ] = None,
    target: Targets = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show candidates and expected minutes; build and measure nothing.",
            rich_help_panel=SEARCH,
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Explain the result, as `collage explain` does.", rich_help_panel=SEARCH),
    ] = False,
    recipe_only: Annotated[
        bool,
        typer.Option(
            "--recipe-only",
            help="Leave compiled code out. Then kernels are built when the artefact is loaded.",
            rich_help_panel=MACHINES,
        ),
    ] = False,
    on: On = None,
    machine: MachineName = None,
    machines: MachinesFile = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            callback=apply_config,
            is_eager=True,
            help="Read options from this file. Default: collage.toml in the current folder.",
            rich_help_panel=MACHINES,
        ),
    ] = None,
    fusion_style: FusionStyles = None,
    native_max_depth: NativeMaxDepth = None,
    max_depth: MaxDepth = None,
    max_candidates: MaxCandidates = None,
    opt_level: OptLevel = None,
    disable_pass: DisabledPasses = None,
    pass_config: PassConfig = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every step, a line each.", rich_help_panel=EXPERTS)
    ] = False,
    quiet: Quiet = False,
    json: Json = False,
    **settings: Any,
) -> None:
    """Compile a model."""
    began = time.monotonic()
    if on is not None or machine is not None:
        return compile_there(context, model, output, on, machine, machines, settings["db"], quiet=quiet, json=json)
    if output is None and not dry_run:
        raise UsageError("missing option --output (-o)", hint="collage compile model.onnx -o model.collage")
    check_model_file(model)
    check_target_names(target or ())
    given = settings_of(settings)
    if fusion := read_fusion(fusion_style, native_max_depth, max_depth, max_candidates):
        given["fusion"] = fusion
    if "inputs" in given:
        from collage.cli._arrays import read_arrays

        given["inputs"] = read_arrays(read_files(given["inputs"], "--input", "NAME=FILE.npy"))
    options = CompileOptions(**given)
    check_paths(options)
    if not quiet:
        for note in notes_on(options):
            typer.echo(f"note: {note}", err=True)
    for path in (output, options.plan_out):
        if path is not None and url_of(path) is None and not Path(path).parent.exists():
            raise UsageError(f"cannot write {path}: the folder {Path(path).parent} does not exist")
    # Imports are here, so that a wrong command is refused at once.
    if output is not None:
        check_name(output)
        from collage.runtime import check_destination

        check_destination(output)
    from collage.cli._report import print_report
    from collage.compiler.pipeline import compile

    if output is None or dry_run:
        from collage.cli._dry_run import print_dry_run
        from collage.compiler.dry_run import dry_run as look

        with read_context(opt_level, disable_pass, pass_config), progress(quiet, verbose) as show:
            found = look(model, target or None, options=options, say=show)
        return print_json(found) if json else print_dry_run(found)
    with read_context(opt_level, disable_pass, pass_config), progress(quiet, verbose) as show:
        executable = compile(model, target or None, options=options, progress=show)
        is_right = executable.report.numerics.ok is not False
        if is_right:  # No artefact is written by a failure.
            show(f"writing {shown(output)}")
            executable.save(output, recipe_only=recipe_only)
    # Imports and writing are time that the user waits, too.
    searched = replace(executable.report.search, wall_s=time.monotonic() - began)
    report = replace(executable.report, search=searched)
    if json:
        told = {**report.as_json(), "artefact": shown(output) if is_right else None}
        print_json({**told, "explanation": executable.explain().to_json()} if explain else told)
    else:
        print_report(report, shown(output) if is_right else None)
        if explain:
            from collage.cli._explain import print_explanation

            print_explanation(executable.explain())
    if not is_right:
        raise WrongAnswer("a kernel of the plan computes wrongly; nothing is written")
