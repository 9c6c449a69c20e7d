"""The commands. Thin: each reads its options, calls the library, and prints."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from collage._errors import CollageError, ModelError, UsageError, WrongAnswer
from collage._version import __version__
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
from collage.cli._console import print_json, printable, progress
from collage.cli._db import db as db_commands
from collage.cli._fleet import MachineName, MachinesFile, On, compile_there
from collage.cli._fleet import fleet as fleet_commands
from collage.cli._pack import PACK_HELP, UNPACK_HELP, pack, show_machines, unpack
from collage.cli._page import HELP as REPORT_HELP
from collage.cli._page import report as report_command
from collage.cli._store import store as store_commands
from collage.cli._toolchain import toolchain as toolchain_commands

__all__ = ["app", "main"]

app = typer.Typer(
    name="collage",
    help="Finds, by measurement, the fastest mix of toolchains for a model and a machine.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(db_commands)
app.add_typer(toolchain_commands)
app.add_typer(fleet_commands)
app.add_typer(store_commands)
app.command("report", help=REPORT_HELP)(report_command)
app.command("pack", help=PACK_HELP)(pack)
app.command("unpack", help=UNPACK_HELP)(unpack)

_INTERRUPTED = 130
"""Exit code after Ctrl-C, where there is no result yet."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show every step, a line each.")]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        "-t",
        metavar="T",
        help="A target or alias; may be repeated. Default: all that are usable and quick to build.",
    ),
]
Threads = Annotated[
    int, typer.Option("--threads", min=0, help="Threads per kernel; 0 is each toolchain's own default.")
]
Db = Annotated[str | None, typer.Option("--db", metavar="URL", help="Timing database: a file or an SQLAlchemy URL.")]
Dims = Annotated[
    list[str] | None, typer.Option("--dim", metavar="NAME=V", help="Length of a symbolic dimension of made-up inputs.")
]
Occasions = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=V[:W,V:W...]",
        help="Representative length of a symbolic dimension; or several, with how often each is met.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=FILE.npy", help="A real input, to measure and check on; may be repeated."),
]
Fixed = Annotated[
    list[str] | None,
    typer.Option("--fix", metavar="NAME=V", help="The one length that a symbolic dimension is to have; often faster."),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"collage {__version__}")
        raise typer.Exit


@app.callback()
def _options_of_all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(
    "compile",
    help="""Compile a model into the fastest measured mix of toolchains.

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
    """,
)
def compile_(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write the artefact: a folder, a .zip, or a URL.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            callback=apply_config,
            is_eager=True,
            help="Options from this file; default: collage.toml, if it is here. See docs/plans.md.",
        ),
    ] = None,
    target: Targets = None,
    db: Db = None,
    dim: Occasions = None,
    fix: Fixed = None,
    input_: Inputs = None,
    threads: Threads = 0,
    time_budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="What compiling should take in all, e.g. 90s or 5m.")
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long to tune kernels, where a toolchain can and it promises a gain."),
    ] = None,
    use_tuned: Annotated[
        bool, typer.Option("--use-tuned/--no-tuned", help="Whether kernels that were tuned before take part.")
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
        typer.Option(metavar="FOLDER|FILE.npz", help="Samples of real inputs, to calibrate and to judge on."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="M", help="max-error, cosine, snr, top1, top5 or python:MODULE:FUNCTION."),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(metavar="DROP", help="Largest drop of the metric, e.g. 0.01; admits bf16 and int8 kernels."),
    ] = None,
    front: Annotated[
        bool, typer.Option("--front", help="Show time against error for several accuracy budgets.")
    ] = False,
    measure_budget: Annotated[int | None, typer.Option(min=0, help="Measure at most so many kernels.")] = None,
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
        typer.Option(help="What decides: latency, runs per second, resident set, or bytes; see docs/objectives.md."),
    ] = "latency",
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="Q<=V", help="A bound to keep: p99<=20ms, rss<=400MB, size<=10MB, throughput>=50/s."),
    ] = None,
    percentile: Annotated[
        Literal["10", "50", "90"], typer.Option(help="Percentile of a kernel's latencies that is its cost.")
    ] = "50",
    recipe_only: Annotated[
        bool, typer.Option("--recipe-only", help="Leave compiled code out: kernels are built where it is loaded.")
    ] = False,
    remeasure: Annotated[bool, typer.Option("--remeasure", help="Measure anew, even what is known.")] = False,
    devices: Annotated[
        Path | None, typer.Option(metavar="PLAN.toml", help="Which operators run on which device; see docs/devices.md.")
    ] = None,
    allow_host: Annotated[
        bool, typer.Option("--allow-host", help="Let the host run it all, unoptimised, where no target runs any of it.")
    ] = False,
    fusion_style: FusionStyles = None,
    native_max_depth: NativeMaxDepth = None,
    max_depth: MaxDepth = None,
    max_candidates: MaxCandidates = None,
    launch_penalty: LaunchPenalties = None,
    passes: Annotated[
        str, typer.Option(metavar="A,B{k=v}", help="How the model is prepared; `prepare` is what is done by default.")
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
            help="What you have, to tell gains over: the original file on onnxruntime, another target, or none.",
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


@app.command(
    help="""Run an artefact.

    Inputs come from .npy files; those not given are made up (plausible random values). Examples:

      collage run model.collage

      collage run model.collage --input x=image.npy --output-dir out --json

      collage run model.collage.zip --profile trace.json
    """
)
def run(
    artefact: Annotated[Path, typer.Argument(help="What compile wrote: a folder, or a zip of it.")],
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE.npy", help="A tensor for an input; may be repeated."),
    ] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Write each output to a .npy file in this folder.")] = None,
    dim: Dims = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="TRACE.json", help="Time each kernel; write a trace that Perfetto opens.")
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Load no native code of the artefact: build its kernels here.")
    ] = False,
    json: Json = False,
) -> None:
    """Run an artefact."""
    from collage.cli._report import print_outputs
    from collage.cli._run import run_once

    found = run_once(
        artefact,
        read_files(input_, "--input", "NAME=FILE.npy"),
        output_dir,
        read_dims(dim),
        trace=profile,
        rebuild=rebuild,
    )
    measured = found.pop("profile")
    if json:
        times = {} if measured is None else {"profile": {**measured.as_json(), "trace": str(profile)}}
        print_json({"schema": 1, "artefact": str(artefact), **found, **times})
        return
    for note in found["notes"]:
        typer.echo(printable(f"note: {note}"), err=True)
    print_outputs(found["outputs"])
    if measured is not None:
        typer.echo(printable(f"\n{measured}\n\ntrace: {profile}"))


@app.command(
    help="""Time an artefact against every single toolchain, interleaved.

    The artefact is called `collage`; the others run the original model with their vendor's defaults, each in a clean
    process, taking turns. Examples:

      collage bench model.collage

      collage bench model.collage --against onnxruntime --json

      collage bench model.collage --input image=photo.npy

      collage bench model.collage --concurrency 2 --duration 10s
    """
)
def bench(
    artefact: Annotated[Path, typer.Argument(help="What compile wrote.")],
    against: Annotated[
        list[str] | None, typer.Option("--against", metavar="T", help="A target; may be repeated. Default: its menu.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds; each contestant has one turn in each.")] = 15,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Callers at once: runs per second, and latencies under that load.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long each contestant serves in all, e.g. 10s.")
    ] = None,
    dim: Occasions = None,
    input_: Inputs = None,
    model: Annotated[
        Path | None, typer.Option(metavar="FILE.onnx", help="What it was compiled from, if it is not found from here.")
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Benchmark an artefact."""
    from collage.benchmark import bench as bench_
    from collage.cli._arrays import read_arrays
    from collage.cli._report import print_bench

    inputs = read_arrays(read_files(input_, "--input", "NAME=FILE.npy"))
    dims = read_lengths(dim) if dim else None
    if concurrency is not None or duration is not None:
        from collage.cli._serving import show_serving

        return show_serving(
            artefact,
            against,
            concurrency or 1,
            read_seconds(duration),
            quiet=quiet,
            verbose=verbose,
            json=json,
            rounds=rounds,
            dims=dims,
            inputs=inputs,
            model=model,
        )
    with progress(quiet, verbose) as say:
        table = bench_(artefact, against, rounds=rounds, dims=dims, inputs=inputs, model=model, say=say)
    if json:
        print_json(table)
    else:
        print_bench(table)


@app.command(
    help="""Race two artefacts of one model, in turns, and show what changed.

    Exit code 6 tells that B is slower than --fail-below allows, beyond doubt, or does not run rightly. Examples:

      collage compare old.collage new.collage

      collage compare old.collage new.collage model.onnx --fail-below 0.98 --json
    """
)
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="The artefact to compare with.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other artefact.")],
    model: Annotated[
        Path | None, typer.Argument(metavar="[MODEL]", help="What A was compiled from, if it is not found from here.")
    ] = None,
    fail_below: Annotated[
        float | None, typer.Option(metavar="X", min=0.0, help="Exit with 6 where B is less than X times as fast as A.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=6, help="Rounds; each artefact has one turn in each.")] = 15,
    dim: Occasions = None,
    input_: Inputs = None,
    json: Json = False,
) -> None:
    """Compare two artefacts."""
    from collage.artefact_comparison import compare_artefacts
    from collage.cli._arrays import read_arrays
    from collage.cli._compare import show_comparison

    inputs = read_arrays(read_files(input_, "--input", "NAME=FILE.npy"))
    dims = read_lengths(dim) if dim else None
    with progress(quiet=False) as say:
        found = compare_artefacts(a, b, model, rounds=rounds, doubt_below=fail_below, dims=dims, inputs=inputs, say=say)
    if code := show_comparison(found, fail_below, json=json):
        raise typer.Exit(code)


@app.command(
    help="""Explain an artefact: what runs it, what lost and by how much, and what was not tried.

    Examples:

      collage explain model.collage

      collage explain model.collage --node /Resize --against openvino

      collage explain model.collage --target acme --json
    """
)
def explain(
    artefact: Annotated[Path, typer.Argument(help="What compile wrote.")],
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="Every candidate with this operator; or #INDEX.")
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="T", help="With --node: only candidates for this target.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", metavar="T", help="What a target was offered, took, and got wrong.")
    ] = None,
    json: Json = False,
) -> None:
    """Explain an artefact."""
    from collage.cli._explain import show_explanation

    show_explanation(artefact, node, against, target, json=json)


@app.command(
    help="""Show what is in a model, and what each toolchain takes of it; of an artefact, which machines it has plans for.

    Examples:

      collage inspect model.onnx

      collage inspect model.onnx --coverage --json

      collage inspect model.onnx --coverage --fix batch=1

      collage inspect model.onnx --devices plan.toml

      collage inspect model.collage

      collage inspect model.onnx --passes "InferType,FoldConstant" --print-after FoldConstant --time
    """
)
def inspect(
    model: Annotated[Path, typer.Argument(help="An ONNX file, or an artefact.")],
    coverage: Annotated[bool, typer.Option("--coverage", help="Ask each toolchain about each operator.")] = False,
    target: Targets = None,
    db: Db = None,
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
        asked = (coverage, target, dim, fix, passes, devices, print_before, print_after, time, verify)
        return show_machines(model, has_options=any(asked), json=json)
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
    from collage.cli._report import print_inspection
    from collage.compiler.pipeline import CompileOptions
    from collage.inspection import inspect as inspect_

    options = CompileOptions(db=db, dims=read_lengths(dim), fixed=read_dims(fix, "--fix"))
    with progress(quiet=not coverage) as say:
        found = inspect_(model, target or None, coverage=coverage, options=options, say=say)
    if json:
        print_json(found)
    else:
        print_inspection(found)
    if found["problem"] is not None:
        raise ModelError(f"the model cannot be run: {found['problem']}")


@app.command(
    help="""List toolchains: whether each can be used here, its version, options, and how to get it.

    Examples:

      collage targets

      collage targets --json

      collage targets -v
    """
)
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


@app.command(
    help="""Describe this machine and installation; copy it into a bug report.

    Examples:

      collage env

      collage env --json
    """
)
def env(json: Json = False) -> None:
    """Describe the environment."""
    from collage.cli._report import print_env
    from collage.inspection import describe_environment

    found = describe_environment()
    if json:
        print_json({"schema": 1, **found})
    else:
        print_env(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``collage``; ends the process with the documented exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # A terminal that knows no µ gets all the rest.
    sys.exit(_main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    try:
        result: Any = app(args=None if arguments is None else list(arguments), standalone_mode=False)
        if result == _INTERRUPTED:  # Typer's word for a KeyboardInterrupt that it caught.
            raise KeyboardInterrupt
    except CollageError as error:
        sys.stderr.write(f"collage: {printable(str(error))}\n")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("collage: interrupted; what was measured is kept, the same command continues\n")
        return _INTERRUPTED
    except BrokenPipeError:
        return 0
    except typer.Exit as stop:
        return stop.exit_code
    except Exception as error:
        # Click's own usage errors know their message and their exit code (2).
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            context = getattr(error, "ctx", None)
            message = error.format_message()
            if not message.startswith("Usage:"):  # Without a command the message is the help itself.
                message = f"collage: {message}" + (f" (see {context.command_path} --help)" if context else "")
            sys.stderr.write(message + "\n")
            return int(error.exit_code)
        raise
    return result if isinstance(result, int) else 0
