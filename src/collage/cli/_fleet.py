"""``collage fleet``: many models on many machines. Thin, like the other commands."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collage._distribution import WHERE, install_command
from collage._errors import CollageError, UsageError
from collage.cli._console import print_json, progress
from collage.option_texts import read_seconds
from collage.options import MACHINES
from collage.system.texts import counted, printable

if TYPE_CHECKING:
    from collage.fleet.tasks import Task

__all__ = ["MachineName", "MachinesFile", "On", "compile_there", "fleet"]

_SCHEMA = 1
"""Version of what ``--json`` prints."""

fleet = typer.Typer(
    name="fleet",
    help="Compile many models on many machines, with Ray and one database; needs the extra fleet.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Url = Annotated[
    str | None,
    typer.Option("--db", metavar="URL", help="Database of timings and tasks, for several machines PostgreSQL."),
]
Address = Annotated[
    str, typer.Option("--on", metavar="RAY", help="ray://HOST:PORT, HOST:PORT, auto, or local: Ray is started here.")
]
Folder = Annotated[Path | None, typer.Option("-o", "--output", help="Only tasks of this output folder.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Models; default: all.")]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="RAY",
        help="Compile and measure on a node of this cluster.",
        rich_help_panel=MACHINES,
    ),
]
MachineName = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="TYPE",
        help="With --on: the type of machine, as named in the file of --machines.",
        rich_help_panel=MACHINES,
    ),
]
MachinesFile = Annotated[
    Path | None,
    typer.Option(
        "--machines",
        metavar="FLEET.toml",
        help="With --on: the types of machines.",
        rich_help_panel=MACHINES,
    ),
]
_OWN = ("model", "output", "on", "machine", "machines", "db", "quiet", "verbose", "json", "config")
"""Parameters of ``collage compile`` that are obeyed here if the model is compiled there."""
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@fleet.command(
    "compile",
    help="""Compile each model for each type of machine. Finished tasks stay, and the same command continues.

    Examples:

      collage fleet compile models/*.onnx -o out

      collage fleet compile models/*.onnx --on ray://head:10001 --machines fleet.toml --db postgresql://me@db/timings -o out
    """,
)
def compile_(
    models: Annotated[list[Path], typer.Argument(help="ONNX files.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for the artefacts: MODEL/MACHINE.collage.zip.")
    ],
    on: Address = "local",
    machines: Annotated[
        Path | None, typer.Option(metavar="FLEET.toml", help="Types of machines, and options; see docs/fleet.md.")
    ] = None,
    db: Url = None,
    tries: Annotated[int, typer.Option(min=1, help="Number of failures after which a task fails for good.")] = 4,
    limit: Annotated[str, typer.Option(metavar="TIME", help="Time limit of one try.")] = "4h",
    patience: Annotated[
        str, typer.Option(metavar="TIME", help="Time to wait without progress, for example without a node.")
    ] = "30m",
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Compile a fleet of models."""
    from collage.fleet.command import compile_fleet
    from collage.fleet.machines import LOCAL, local_fleet, read_fleet

    if machines is None and on != LOCAL:
        raise typer.BadParameter(
            "name the types of machines: --machines fleet.toml; `collage fleet machines` writes one"
        )
    with progress(quiet) as say:
        tasks = compile_fleet(
            models,
            local_fleet() if machines is None else read_fleet(machines),
            output,
            address=on,
            db=db,
            tries=tries,
            limit_s=read_seconds(limit) or 0.0,
            patience_s=read_seconds(patience) or 0.0,
            say=say,
        )
    if json:
        print_json({"schema": _SCHEMA, "tasks": [task.as_json() for task in tasks]})
    else:
        for task in tasks:
            if task.state != "done":
                typer.echo(printable(f"{task.name} for {task.machine}: {task.state}: {task.reason}"))
        typer.echo(f"{counted(sum(task.state == 'done' for task in tasks), 'artefact')} in {output}")
    if left := [task for task in tasks if task.state != "done"]:
        raise CollageError(
            f"{counted(len(left), 'task')} of {len(tasks)} failed; `collage fleet status` shows the reasons"
        )


@fleet.command(
    help="""List tasks with their results. An artefact is stale if a toolchain has changed since, or was replaced.

    Examples:

      collage fleet status --db postgresql://me@db/timings

      collage fleet status -o out --json
    """
)
def status(
    output: Folder = None,
    state: Annotated[
        str | None, typer.Option("--state", help="Only tasks in this state, or `stale`, or `replaced`.")
    ] = None,
    db: Url = None,
    json: Json = False,
) -> None:
    """List tasks."""
    from collections import Counter

    from collage.fleet.tasks import STATES, replaced

    if state not in (None, *STATES, "stale", "replaced"):
        raise UsageError(f"no task is {state!r}; tasks are {', '.join(STATES)}, stale or replaced")
    if output is not None and not Path(output).exists():
        raise UsageError(f"-o {output}: there is no such folder")
    tasks, old = _chosen(db, output, [])
    gone = replaced(tasks)
    marks = {task.digest: {"stale": task.digest in old, "replaced": task.digest in gone} for task in tasks}
    told = [task for task in tasks if state in (None, task.state) or marks[task.digest].get(state)]
    if json:
        print_json({"schema": _SCHEMA, "tasks": [{**task.as_json(), **marks[task.digest]} for task in told]})
        return
    for task in told:
        typer.echo(printable(_line(task, marks[task.digest])))
    counts = Counter(task.state for task in tasks)
    counts.update(mark for of_task in marks.values() for mark, is_so in of_task.items() if is_so)
    typer.echo(", ".join(f"{count} {name}" for name, count in counts.items()) or "no tasks")


@fleet.command(
    help="""Mark tasks that failed, were cancelled or are stale. The next `fleet compile` runs them again.

    Examples:

      collage fleet retry -o out

      collage fleet retry resnet50 --stale --db postgresql://me@db/timings
    """
)
def retry(
    names: Names = None,
    output: Folder = None,
    stale: Annotated[bool, typer.Option("--stale", help="Also tasks whose toolchains have changed since.")] = False,
    db: Url = None,
) -> None:
    """Try tasks again."""
    tasks, old = _chosen(db, output, names or [])
    _move(db, [task.digest for task in tasks], ("failed", "cancelled"), "waiting")
    if stale:
        _move(db, [task.digest for task in tasks if task.digest in old], ("done",), "waiting")


@fleet.command(
    help="""Cancel tasks that are not finished. A running driver stops them.

    Examples:

      collage fleet cancel -o out

      collage fleet cancel resnet50 --db postgresql://me@db/timings
    """
)
def cancel(names: Names = None, output: Folder = None, db: Url = None) -> None:
    """Cancel tasks."""
    tasks, _ = _chosen(db, output, names or [])
    _move(db, [task.digest for task in tasks], ("waiting", "running"), "cancelled", "cancelled")


@fleet.command(
    help="""List the nodes of a cluster that measure, as a file for --machines.

    Examples:

      collage fleet machines --on ray://head:10001 > fleet.toml
    """
)
def machines(on: Address = "local", json: Json = False) -> None:
    """List nodes."""
    from collage.fleet.machines import LOCAL
    from collage.fleet.remote import describe_nodes

    found = describe_nodes(on, [LOCAL])
    if json:
        print_json({"schema": _SCHEMA, "nodes": found})
        return
    told: set[tuple[str, str]] = set()
    for node in found:
        for name in node["machines"]:
            comment = f"# {node['host']}: {node['cpu']}, {node['cores']} cores, Collage {node['collage']}"
            if (name, node["fingerprint"]) in told:
                typer.echo(printable(comment))
                continue
            told.add((name, node["fingerprint"]))
            typer.echo(printable(f'{comment}\n[machines."{name}"]\nfingerprint = "{node["fingerprint"]}"\n'))


@fleet.command(
    help="""Join this machine to a cluster as a node that measures. The command prints its fingerprint and runs `ray start`.

    Examples:

      collage fleet join head:6379 --machine c7g.xl
    """
)
def join(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The head of the cluster.")],
    machine: Annotated[str, typer.Option("--machine", metavar="TYPE", help="The type of this machine.")],
    slots: Annotated[
        int,
        typer.Option(
            min=1, help="Number of models that are compiled at the same time. Kernels are timed one at a time."
        ),
    ] = 1,
) -> None:
    """Join a cluster."""
    import os
    import shutil
    from json import dumps
    from sys import executable

    from collage.fleet.cluster import MEASURE, resource_of, token_environment
    from collage.fleet.node import describe_here

    ray = shutil.which("ray", path=os.pathsep.join([str(Path(executable).parent), os.environ.get("PATH", "")]))
    if ray is None:
        raise UsageError(f"a fleet needs the package ray: {install_command('fleet')}{WHERE}")
    here = describe_here()
    typer.echo(printable(f'[machines."{machine}"]\nfingerprint = "{here["fingerprint"]}"  # {here["host"]}'))
    resources = dumps({resource_of(machine): 1, MEASURE: slots})
    # Ray has its workers give way to everything else. What is timed must not.
    environment = {**os.environ, **token_environment(address), "RAY_worker_niceness": "0"}
    words = [ray, "start", f"--address={address}", f"--num-cpus={slots}", f"--resources={resources}"]
    os.execve(ray, words, environment)


def compile_there(
    context: typer.Context,
    model: Path,
    output: Path | None,
    on: str | None,
    machine: str | None,
    machines: Path | None,
    db: str | None,
    *,
    quiet: bool,
    json: bool,
) -> None:
    """Compile a model on a node of a cluster, with the options of ``collage compile`` that were given."""
    from collage.fleet.machines import LOCAL, MachineType, check_options, local_fleet, read_fleet
    from collage.fleet.remote import compile_on
    from collage.store import url_of

    if on is None or output is None:
        raise UsageError("--machine goes with --on and -o: which cluster, and where to write the artefact")
    if url_of(output) is not None:
        raise UsageError("an artefact comes back as a file here; copy it on from there")
    if machines is None and on != LOCAL:
        raise UsageError("name the types of machines: --machines fleet.toml; `collage fleet machines` writes one")
    kind = (local_fleet() if machines is None else read_fleet(machines))[machine or LOCAL]
    given = {
        next(each for each in parameter.opts if each.startswith("--")).lstrip("-"): context.params[str(parameter.name)]
        for parameter in context.command.params
        if parameter.name not in _OWN and _is_given(context, str(parameter.name))
    }
    options = {**kind.options, **check_options(given, "--on")}
    with progress(quiet) as say:
        kept = compile_on(model, MachineType(kind.name, kind.fingerprint, options), output, address=on, db=db, say=say)
    if json:
        print_json({"schema": _SCHEMA, "artefact": str(output), "machine": kind.name, **asdict(kept)})
    else:
        took = "" if kept.time_us is None else f": {kept.time_us / 1e3:.3f} ms there"
        typer.echo(f"{output}{took}")


def _is_given(context: typer.Context, name: str) -> bool:
    """Return True if an option was given, on the command line or in a file."""
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "DEFAULT_MAP", "ENVIRONMENT")


def _chosen(db: str | None, output: Path | None, names: list[str]) -> tuple[list[Task], set[str]]:
    """Return tasks by their names and folder, and the keys of stale ones."""
    from collage.fleet.tasks import TaskStore, absolute_url, stale

    with TaskStore(absolute_url(db)) as store:
        known = store.all()
    folder = None if output is None else str(output.resolve())
    tasks = [task for task in known if folder in (None, task.folder)]
    if unknown := sorted(set(names) - {task.name for task in tasks}):
        raise UsageError(f"there is no task {unknown[0]!r}; `collage fleet status` lists them")
    # A newer artefact that makes one stale may be in another folder.
    return [task for task in tasks if not names or task.name in names], stale(known)


def _move(db: str | None, digests: list[str], states: tuple[str, ...], to: str, reason: str = "") -> None:
    from collage.fleet.tasks import TaskStore, absolute_url

    with TaskStore(absolute_url(db)) as store:
        typer.echo(f"{counted(store.move(digests, states, to, reason), 'task')} {to}")


def _line(task: Task, marks: Mapping[str, bool]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(task.changed_at_s))
    time_ = "" if task.time_us is None else f"{task.time_us / 1e3:.3f} ms"
    gain = "" if task.gain is None else f"{task.gain:.2f}x"
    state = next((mark for mark, is_so in marks.items() if is_so), task.state)
    rest = task.reason if task.state != "done" else f"{task.artefact[:12]} {time_:>11} {gain:>6}"
    return f"{when}  {state:<9} {task.name:<24} {task.machine:<12} {task.model[:12]} {rest}"
