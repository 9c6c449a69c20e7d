"""``collage run``, ``bench``, ``compare`` and ``explain``: commands on artefacts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from collage._errors import UsageError
from collage.cli._console import print_json, progress
from collage.cli._early_checks import check_places
from collage.cli._options import Dims, Inputs, Json, Occasions, Quiet, Verbose
from collage.option_texts import read_dims, read_files, read_lengths, read_seconds
from collage.system.texts import printable

__all__ = ["BENCH_HELP", "COMPARE_HELP", "EXPLAIN_HELP", "RUN_HELP", "bench", "compare", "explain", "run"]

RUN_HELP = """Run an artefact.

    Inputs come from .npy files; those not given are made up (plausible random values). Examples:

      collage run model.collage

      collage run model.collage --input x=image.npy --output-dir out --json

      collage run model.collage.zip --profile trace.json
    """

BENCH_HELP = """Time an artefact against every single toolchain, interleaved.

    The artefact is called `collage`; the others run the original model with their vendor's defaults, each in a clean
    process, taking turns. Examples:

      collage bench model.collage

      collage bench model.collage --against onnxruntime --json

      collage bench model.collage --input image=photo.npy

      collage bench model.collage --concurrency 2 --duration 10s
    """

COMPARE_HELP = """Race two artefacts of one model, in turns, and show what changed.

    Exit code 6 means that B is slower than --fail-below allows, beyond doubt, or does not run rightly. Examples:

      collage compare old.collage new.collage

      collage compare old.collage new.collage model.onnx --fail-below 0.98 --json
    """

EXPLAIN_HELP = """Explain an artefact: its kernels, the candidates that lost and by how much, and those that were not tried.

    Examples:

      collage explain model.collage

      collage explain model.collage --node /Resize --against openvino

      collage explain model.collage --target acme --json
    """


def run(
    artefact: Annotated[Path, typer.Argument(help="An artefact: a folder, or a zip of it.")],
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
    check_places(artefact)
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


def bench(
    artefact: Annotated[Path, typer.Argument(help="An artefact.")],
    against: Annotated[
        list[str] | None, typer.Option("--against", metavar="T", help="A target; may be repeated. Default: its menu.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=3, help="Number of rounds. Each row runs once in each.")] = 15,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of callers at the same time: measures runs per second and latencies under that load."
        ),
    ] = None,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help="Total time of each row, e.g. 10s.")] = None,
    neighbour: Annotated[
        Literal["none", "idle", "equal"], typer.Option(help="Run all rows beside a busy process of this priority.")
    ] = "none",
    dim: Occasions = None,
    input_: Inputs = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE.onnx", help="The model that it was compiled from, if its path has changed."),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Benchmark an artefact."""
    check_places(artefact)
    from collage.benchmark import bench as bench_
    from collage.cli._arrays import read_arrays
    from collage.cli._report import print_bench

    inputs = read_arrays(read_files(input_, "--input", "NAME=FILE.npy"))
    dims = read_lengths(dim) if dim else None
    if concurrency is not None or duration is not None:
        from collage.cli._serving import show_serving

        if neighbour != "none":
            raise UsageError(
                "--neighbour cannot be combined with --concurrency or --duration, which make a load themselves"
            )
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
        table = bench_(
            artefact, against, rounds=rounds, neighbour=neighbour, dims=dims, inputs=inputs, model=model, say=say
        )
    if json:
        print_json(table)
    else:
        print_bench(table)


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="The artefact to compare with.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other artefact.")],
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="The model that A was compiled from, if its path has changed."),
    ] = None,
    fail_below: Annotated[
        float | None, typer.Option(metavar="X", min=0.0, help="Exit with 6 if B is less than X times as fast as A.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=6, help="Number of rounds. Each artefact runs once in each.")] = 15,
    dim: Occasions = None,
    input_: Inputs = None,
    json: Json = False,
) -> None:
    """Compare two artefacts."""
    check_places(a, b)
    from collage.artefact_comparison import compare_artefacts
    from collage.cli._arrays import read_arrays
    from collage.cli._compare import show_comparison

    inputs = read_arrays(read_files(input_, "--input", "NAME=FILE.npy"))
    dims = read_lengths(dim) if dim else None
    with progress(quiet=False) as say:
        found = compare_artefacts(a, b, model, rounds=rounds, doubt_below=fail_below, dims=dims, inputs=inputs, say=say)
    if code := show_comparison(found, fail_below, json=json):
        raise typer.Exit(code)


def explain(
    artefact: Annotated[Path, typer.Argument(help="An artefact.")],
    node: Annotated[
        str | None,
        typer.Option(
            "--node", metavar="NAME", help="List all candidates with this operator, given by its name or #INDEX."
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="T", help="With --node: only candidates for this target.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", metavar="T", help="List the candidates that a target took, refused or computed wrongly."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Explain an artefact."""
    check_places(artefact)
    from collage.cli._explain import show_explanation

    show_explanation(artefact, node, against, target, json=json)
