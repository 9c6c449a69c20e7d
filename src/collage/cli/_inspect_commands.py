"""``collage inspect``, ``targets`` and ``env``: what is in a model, and what is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from collage._errors import ModelError, UsageError
from collage.cli._compile_options import DisabledPasses, OptLevel, PassConfig, read_context
from collage.cli._console import print_json, progress
from collage.cli._options import Fixed, Json, Occasions, Targets, Threads
from collage.cli._pack import show_machines
from collage.option_texts import read_budget, read_dims, read_lengths

__all__ = ["ENV_HELP", "INSPECT_HELP", "TARGETS_HELP", "env", "inspect", "targets"]

INSPECT_HELP = """Show what is in a model, and what each toolchain takes of it; of an artefact, which machines it has plans for.

    Examples:

      collage inspect model.onnx

      collage inspect model.onnx --coverage --json

      collage inspect model.onnx --coverage --fix batch=1

      collage inspect model.onnx --headroom --time-budget 2m

      collage inspect model.onnx --devices plan.toml

      collage inspect model.collage

      collage inspect model.onnx --passes "InferType,FoldConstant" --print-after FoldConstant --time
    """

TARGETS_HELP = """List toolchains: whether each can be used here, its version, options, and how to get it.

    Examples:

      collage targets

      collage targets --json

      collage targets -v
    """

ENV_HELP = """Describe this machine and installation; copy it into a bug report.

    Examples:

      collage env

      collage env --json
    """


def inspect(
    model: Annotated[Path, typer.Argument(help="An ONNX file, or an artefact.")],
    coverage: Annotated[bool, typer.Option("--coverage", help="Show which toolchain supports which operator.")] = False,
    headroom: Annotated[
        bool,
        typer.Option(
            "--headroom",
            help="Measure where time goes, and how far that is from the machine's limit.",
        ),
    ] = False,
    time_budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time for --headroom, e.g. 5m."),
    ] = None,
    threads: Threads = 0,
    target: Targets = None,
    dim: Occasions = None,
    fix: Fixed = None,
    passes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B{k=v}",
            help="Run these passes and show what each does; `prepare` is what compile does by default.",
        ),
    ] = None,
    devices: Annotated[
        Path | None,
        typer.Option(
            metavar="PLAN.toml", help="Show where a plan of devices puts each operator, what is copied, and why."
        ),
    ] = None,
    print_before: Annotated[str, typer.Option(metavar="A,B", help="Print the model before these passes.")] = "",
    print_after: Annotated[str, typer.Option(metavar="A,B", help="Print the model after these passes.")] = "",
    time: Annotated[bool, typer.Option("--time", help="Show how long each pass took.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check the model and its outputs after each pass.")] = False,
    opt_level: OptLevel = None,
    disable_pass: DisabledPasses = None,
    pass_config: PassConfig = None,
    json: Json = False,
) -> None:
    """Inspect a model."""
    from collage.runtime import is_artefact

    if is_artefact(model):
        shown = (coverage, headroom, time_budget, threads, passes, devices)
        asked = (*shown, target, dim, fix, print_before, print_after, time, verify)
        return show_machines(model, has_options=any(asked), json=json)
    if headroom and (coverage or devices is not None or passes is not None):
        raise UsageError("--headroom, --coverage, --devices and --passes each show something else: give one of them")
    if not headroom and (time_budget is not None or threads):
        raise UsageError("--time-budget and --threads go with --headroom: nothing else is measured")
    if devices is not None:
        from collage.cli._devices import show_devices

        return show_devices(model, devices, fixed=read_dims(fix, "--fix"), json=json)
    if passes is not None:
        from collage.cli._passes import show_passes

        return show_passes(
            model,
            passes,
            print_before,
            print_after,
            fixed=read_dims(fix, "--fix"),
            time=time,
            verify=verify,
            json=json,
            context=read_context(opt_level, disable_pass, pass_config),
        )
    if print_before or print_after or time or verify or opt_level is not None or disable_pass or pass_config:
        raise UsageError(
            "--print-before, --print-after, --time, --verify, --opt-level, --disable-pass and --pass-config go with "
            '--passes "A,B"'
        )
    if headroom:
        from collage.cli._headroom import show_headroom

        budget_s = None if time_budget is None else read_budget(time_budget)
        told: dict[str, Any] = {"dims": read_lengths(dim), "fixed": read_dims(fix, "--fix"), "threads": threads}
        return show_headroom(model, target or None, {**told, "time_budget_s": budget_s}, json=json)
    from collage.cli._report import print_inspection
    from collage.compiler.pipeline import CompileOptions
    from collage.inspection import inspect as inspect_

    options = CompileOptions(dims=read_lengths(dim), fixed=read_dims(fix, "--fix"))
    with progress(quiet=not coverage) as say:
        found = inspect_(model, target or None, coverage=coverage, options=options, say=say)
    if json:
        print_json(found)
    else:
        print_inspection(found)
    if found["problem"] is not None:
        raise ModelError(f"the model cannot be run: {found['problem']}")


def targets(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show where a broken toolchain fails.")] = False,
    json: Json = False,
) -> None:
    """List toolchains."""
    from collage.cli._report import print_targets
    from collage.inspection import describe_targets

    found = describe_targets()
    if json:
        print_json({"schema": 1, "targets": found})
    else:
        print_targets(found, verbose=verbose)


def env(json: Json = False) -> None:
    """Describe the environment."""
    from collage.cli._report import print_env
    from collage.inspection import describe_environment

    found = describe_environment()
    if json:
        print_json({"schema": 1, **found})
    else:
        print_env(found)
