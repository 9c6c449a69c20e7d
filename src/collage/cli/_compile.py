"""``collage compile``."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from collage._errors import UsageError, WrongAnswer
from collage.cli._arguments import read_dims, read_files, read_lengths, read_seconds
from collage.cli._compile_options import (
    DisabledPasses,
    FusionStyles,
    LaunchPenalties,
    MaxCandidates,
    MaxDepth,
    NativeMaxDepth,
    OptLevel,
    PassConfig,
    read_context,
    read_fusion,
    read_penalties,
)
from collage.cli._config import apply_config
from collage.cli._console import print_json, progress
from collage.cli._fleet import MachineName, MachinesFile, On, compile_there
from collage.cli._options import Db, Fixed, Inputs, Json, Occasions, Quiet, Targets, Threads, Verbose

__all__ = ["COMPILE_HELP", "compile_"]

COMPILE_HELP = """Compile a model into the fastest measured mix of toolchains.

    Examples:

      collage compile model.onnx -o model.collage

      collage compile model.onnx -o model.collage -t llvm -t onnxruntime -t openvino --json

      collage compile model.onnx -o model.collage --dim seq=128 --time-budget 2m

      collage compile model.onnx -o model.collage --dim seq=32:3,512:1

      collage compile model.onnx -o model.collage --fix batch=1 --fix seq=128

      collage compile model.onnx -o model.collage --input image=photo.npy

      collage compile model.onnx -o model.collage -t llvm -t openvino --tune 2m

      collage compile model.onnx -o model.collage --accuracy-budget 1e-2

      collage compile model.onnx -o model.collage --data samples --metric top1 --max-drop 0.01

      collage compile model.onnx -o model.collage --search proof

      collage compile model.onnx -o model.collage --objective throughput --limit "p99<=20ms"

      collage compile model.onnx -o model.collage --devices plan.toml

      collage compile model.onnx -o model.collage --force "/Resize:llvm" --forbid "openvino:TopK"

      collage compile model.onnx -o model.collage --plan plan.json

      collage compile model.onnx --dry-run

      collage compile model.onnx -o model.zip --on ray://head:10001 --machine c7g.xl --machines fleet.toml
    """


def compile_(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The artefact to write: a folder, a .zip, or a URL.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            callback=apply_config,
            is_eager=True,
            help="Read options from this file. Default: collage.toml in the current folder. See docs/plans.md.",
        ),
    ] = None,
    target: Targets = None,
    db: Db = None,
    dim: Occasions = None,
    fix: Fixed = None,
    input_: Inputs = None,
    threads: Threads = 0,
    time_budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Total time of the compilation, e.g. 90s or 5m.")
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time for tuning kernels, if a toolchain can tune and a gain is expected."),
    ] = None,
    use_tuned: Annotated[
        bool, typer.Option("--use-tuned/--no-tuned", help="Use kernels that were tuned before.")
    ] = True,
    accuracy_budget: Annotated[
        float | None,
        typer.Option(
            metavar="ERROR",
            help="Largest error of the whole model, relative to its outputs; admits bf16 and int8 kernels.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER|FILE.npz", help="Samples of real inputs, for calibration and for judging plans."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="M", help="max-error, cosine, snr, top1, top5 or python:MODULE:FUNCTION."),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(metavar="DROP", help="Largest drop of the metric, e.g. 0.01; admits bf16 and int8 kernels."),
    ] = None,
    front: Annotated[bool, typer.Option("--front", help="Show times and errors for several accuracy budgets.")] = False,
    measure_budget: Annotated[int | None, typer.Option(min=0, help="Largest number of kernels to measure.")] = None,
    search: Annotated[
        Literal["fast", "proof", "exhaustive"],
        typer.Option(
            help="fast; proof: until no other plan can be cheaper; exhaustive: measure every candidate.",
        ),
    ] = "fast",
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Search strategy: lazy, exhaustive, evolutionary, wide, or one of an installed package; see docs/fusion.md.",
        ),
    ] = "lazy",
    objective: Annotated[
        Literal["latency", "throughput", "memory", "size"],
        typer.Option(help="The figure to optimise; see docs/objectives.md."),
    ] = "latency",
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="Q<=V", help="A limit for the result: p99<=20ms, rss<=400MB, size<=10MB, throughput>=50/s."
        ),
    ] = None,
    percentile: Annotated[
        Literal["10", "50", "90"],
        typer.Option(help="Percentile of a kernel's latencies that the search uses as its cost."),
    ] = "50",
    recipe_only: Annotated[
        bool,
        typer.Option(
            "--recipe-only", help="Leave compiled code out. Then kernels are built when the artefact is loaded."
        ),
    ] = False,
    remeasure: Annotated[bool, typer.Option("--remeasure", help="Ignore stored timings and measure again.")] = False,
    devices: Annotated[
        Path | None, typer.Option(metavar="PLAN.toml", help="A plan of devices; see docs/devices.md.")
    ] = None,
    probe: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="'nan': take only plans that keep NaN among the inputs, as tables need."),
    ] = None,
    allow_host: Annotated[
        bool,
        typer.Option(
            "--allow-host", help="If no target runs any operator, run the model on the host, without optimisations."
        ),
    ] = False,
    fusion_style: FusionStyles = None,
    native_max_depth: NativeMaxDepth = None,
    max_depth: MaxDepth = None,
    max_candidates: MaxCandidates = None,
    launch_penalty: LaunchPenalties = None,
    passes: Annotated[
        str, typer.Option(metavar="A,B{k=v}", help="Passes that prepare the model. The default is `prepare`.")
    ] = "prepare",
    opt_level: OptLevel = None,
    disable_pass: DisabledPasses = None,
    pass_config: PassConfig = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN.json", help="Build exactly this plan; see docs/plans.md.")
    ] = None,
    plan_out: Annotated[
        Path | None, typer.Option(metavar="PLAN.json", help="Write the plan of the result to this file.")
    ] = None,
    force: Annotated[
        list[str] | None,
        typer.Option(
            "--force", metavar="NODE:T", help="Only this target runs these operators: a name or type, with * and ?."
        ),
    ] = None,
    forbid: Annotated[
        list[str] | None, typer.Option("--forbid", metavar="T:NODE", help="This target does not run these operators.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show candidates and expected minutes; build and measure nothing.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Explain the result, as `collage explain` does.")] = False,
    baseline: Annotated[
        str,
        typer.Option(
            metavar="T",
            help="Baseline of the reported gain: the original file on onnxruntime, another target, or none.",
        ),
    ] = "onnxruntime",
    on: On = None,
    machine: MachineName = None,
    machines: MachinesFile = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Compile a model."""
    began = time.monotonic()
    if on is not None or machine is not None:
        return compile_there(context, model, output, on, machine, machines, db, quiet=quiet, json=json)
    from collage.cli._arrays import read_arrays
    from collage.cli._report import print_report
    from collage.compiler.pipeline import CompileOptions, compile
    from collage.runtime import check_destination
    from collage.store import shown, url_of

    if output is None and not dry_run:
        raise UsageError("missing option --output (-o), see collage compile --help")
    for path in (output, plan_out):
        if path is not None and url_of(path) is None and not path.parent.exists():
            raise UsageError(f"cannot write {path}: the folder {path.parent} does not exist")
    if output is not None:
        check_destination(output)
    options = CompileOptions(
        threads=threads,
        db=db,
        dims=read_lengths(dim),
        fixed=read_dims(fix, "--fix"),
        inputs=read_arrays(read_files(input_, "--input", "NAME=FILE.npy")),
        time_budget_s=read_seconds(time_budget),
        tune_s=read_seconds(tune) or 0.0,
        use_tuned=use_tuned,
        accuracy_budget=accuracy_budget,
        data=data,
        metric=metric,
        max_drop=max_drop,
        front=front,
        search=search,
        strategy=strategy,
        objective=objective,
        limits=tuple(limit or ()),
        percentile=int(percentile),
        measure_budget=measure_budget,
        remeasure=remeasure,
        devices=devices,
        plan=plan,
        plan_out=plan_out,
        force=tuple(force or ()),
        forbid=tuple(forbid or ()),
        probe=probe,
        allow_host=allow_host,
        baseline=baseline,
        fusion=read_fusion(fusion_style, native_max_depth, max_depth, max_candidates),
        launch_penalties_s=read_penalties(launch_penalty),
        passes=passes,
    )
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
        told = {**report.as_json(with_old_keys=True), "artefact": shown(output) if is_right else None}
        print_json({**told, "explanation": executable.explain().to_json()} if explain else told)
    else:
        print_report(report, shown(output) if is_right else None)
        if explain:
            from collage.cli._explain import print_explanation

            print_explanation(executable.explain())
    if not is_right:
        raise WrongAnswer("a kernel of the plan computes wrongly; nothing is written")
