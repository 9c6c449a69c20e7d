"""``collage db``: the timing database. Thin, like the other commands."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collage._errors import UsageError
from collage.cli._ages import age, read_age_s
from collage.cli._console import print_json
from collage.option_texts import read_dims, read_lengths
from collage.status import Status
from collage.store import download, upload, url_of
from collage.system.scratch import scratch
from collage.system.texts import counted, printable

if TYPE_CHECKING:
    from collage.database.build_diff import BuildChange
    from collage.database.database import Database

__all__ = ["db"]

_SCHEMA = 1
"""Version of what ``--json`` prints."""

db = typer.Typer(
    name="db",
    help="Inspect, clean and share the timing database.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Url = Annotated[str | None, typer.Option("--db", metavar="URL", help="Timing database: a file or an SQLAlchemy URL.")]
TargetOption = Annotated[
    str | None, typer.Option("--target", "-t", metavar="T", help="Only timings of this target or toolchain.")
]
StatusOption = Annotated[
    str | None,
    typer.Option("--status", metavar="S", help="Only timings with this status: ok, crashed, 'time-out', wrong, ..."),
]


def _known_status(status: str | None) -> str | None:
    """Return a status that timings can have.

    Raises:
        UsageError: There is no such status.
    """
    from collage.status import OUTCOMES

    if status is not None and status not in OUTCOMES:
        raise UsageError(f"no timing has the status {status!r}", hint=f"known: {', '.join(OUTCOMES)}")
    return status


@db.command(
    help="""Count timings and facts by kind and origin, and check the file.

    Examples:

      collage db stats

      collage db stats --db postgresql://me@server/timings --json
    """
)
def stats(url: Url = None, json: Json = False) -> None:
    """Count."""
    from collage.database.queries import statistics

    with _opened(url, reading=True) as database:
        found = statistics(database)
    if json:
        print_json({"schema": _SCHEMA, **found})
        return
    _print(
        f"{found['url']}: {counted(found['timings'], 'timing')}, {counted(sum(found['facts'].values()), 'fact')}, "
        f"file {found['integrity']}"
    )
    for title in ("by_status", "by_target", "by_origin", "facts"):
        for name, count in found[title].items():
            here = "  (this machine)" if title == "by_origin" and name == found["origin"] else ""
            _print(f"  {title.removeprefix('by_'):<8} {count:>7}  {name}{here}")
    for name, machine in found["by_machine"].items():
        _print(f"  {'machine':<8} {machine['timings']:>7}  {name}  {machine['cpu'] or ''}")
    for row in found["quarantined"]:
        _print(f"  quarantined {age(row['since_s'])}: {row['toolchain']} ({row['build']}): {row['reason']}")
    if found["damaged"]:
        _print(f"  unknown, as they cannot be believed: {counted(found['damaged'], 'row')}")


@db.command(
    help="""List timings. With the first characters of a digest, show one in full.

    Examples:

      collage db show --target openvino --limit 20

      collage db show 3f2a90

      collage db show --status crashed --json
    """
)
def show(
    digest: Annotated[str | None, typer.Argument(help="First characters of the digest of a timing.")] = None,
    target: TargetOption = None,
    status: StatusOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of timings to list, the newest first.")] = 50,
    url: Url = None,
    json: Json = False,
) -> None:
    """List."""
    from collage.database.queries import Choice, find_digest, listing

    status = _known_status(status)
    with _opened(url, reading=True) as database:
        if digest is not None:
            rows = [find_digest(database, digest)]
        else:
            rows = list(listing(database, Choice(target=target, status=status)))
    if json:
        print_json({"schema": _SCHEMA, "found": len(rows), "timings": rows[-limit:]})
    elif digest is not None:
        for name, value in {**rows[0], **rows[0]["parts"]}.items():
            if name != "parts":
                _print(f"{name:<10} {value}")
    else:
        for row in rows[-limit:]:
            _print(_line(row))
        if len(rows) > limit:
            _print(f"... and {len(rows) - limit} older ones; --limit shows more")


@db.command(
    "explain-miss",
    help="""Explain why a timing is not known: show the part of its key that differs from the nearest stored one.

    For a model, as each target would run it alone; or for a stored timing, against the nearest other one. Examples:

      collage db explain-miss model.onnx --target openvino --threads 2

      collage db explain-miss 3f2a90 --json
    """,
)
def explain_miss(
    what: Annotated[
        str, typer.Argument(metavar="MODEL|DIGEST", help="An ONNX file, or the first characters of a digest.")
    ],
    target: Annotated[
        list[str] | None, typer.Option("--target", "-t", metavar="T", help="A target or alias; may be repeated.")
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Threads per kernel, as for compile.")] = 0,
    dim: Annotated[list[str] | None, typer.Option("--dim", metavar="NAME=V", help="As for compile.")] = None,
    fix: Annotated[list[str] | None, typer.Option("--fix", metavar="NAME=V", help="As for compile.")] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Explain."""
    from collage.measure.explain_miss import explain_digest, explain_model

    with _opened(url, reading=True) as database:
        if Path(what).exists():
            from collage.toolchains import choose_menu, registry

            menu = choose_menu(target or None, registry())
            dims, fixed = read_lengths(dim), read_dims(fix, "--fix")
            rows = explain_model(database, Path(what), menu, registry(), threads=threads, dims=dims, fixed=fixed)
            found = list(rows)
        elif "." in what or "/" in what:
            raise UsageError(f"there is no file {what}")
        else:
            found = [explain_digest(database, what)]
    if json:
        print_json({"schema": _SCHEMA, "explanations": found})
        return
    for row in found:
        _print(_why(row))


@db.command(
    help="""Write all timings and facts as text, for other people or machines. It contains no models, weights or binaries.

    Examples:

      collage db export timings.jsonl

      collage db export - | gzip > timings.jsonl.gz
    """
)
def export(
    file: Annotated[str, typer.Argument(help="The file or URL to write; - is standard output.")],
    url: Url = None,
    json: Json = False,
) -> None:
    """Export."""
    from collage.database.export import export_lines

    if json and file == "-":
        raise UsageError("--json and the export cannot both go to the standard output")
    count = 0
    with _opened(url, reading=True) as database, _written(file) as out:
        for line in export_lines(database):
            out.write(line + "\n")
            count += 1
    if json:
        print_json({"schema": _SCHEMA, "file": file, "rows": count - 2})
    elif file != "-":
        _print(f"{counted(count - 2, 'row')} written to {file}")


@db.command(
    "import",
    help="""Import a file of `collage db export`. All lines are checked first. If one is bad, nothing is imported.

    Imported rows are marked as such. They spare measuring kernels, and never decide a race: finalists are always timed
    on this machine. Examples:

      collage db import timings.jsonl

      gunzip < timings.jsonl.gz | collage db import -
    """,
)
def import_(
    file: Annotated[str, typer.Argument(help="The file or URL to read; - is standard input.")],
    url: Url = None,
    json: Json = False,
) -> None:
    """Import."""
    from collage.database.export import import_lines

    with _opened(url, create=True) as database, _read(file) as lines:
        try:
            moved = import_lines(database, lines, file)
        except UnicodeDecodeError:
            raise UsageError(f"{file} is not a text file; nothing was imported") from None
    _print_moved(moved, file, json)


@db.command(
    help="""Copy the rows of another database into this one: of a file, here or at a URL, or of a server.

    Rows keep their origin. The other database is not changed. Examples:

      collage db merge /backup/timings.sqlite

      collage db merge s3://bucket/timings.sqlite

      collage db merge postgresql://me@server/timings --db mine.sqlite
    """
)
def merge(
    source: Annotated[str, typer.Argument(metavar="URL", help="The other database.")],
    url: Url = None,
    json: Json = False,
) -> None:
    """Merge."""
    from collage.database.export import merge as merge_

    with _opened(url, create=True) as database:
        moved = merge_(database, source)
    _print_moved(moved, source, json)


@db.command(
    help="""Remove the timings and facts that match all given options. At least one option must be given.

    Examples:

      collage db prune --older-than 90d

      collage db prune --build "onnxruntime 1.30" --dry-run

      collage db prune --machine old-laptop-1f2e3d4c

      collage db prune --status time-out

      collage db prune --kind quarantine
    """
)
def prune(
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Only rows older than this, e.g. 12h, 90d or 8w.")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(help="Only timings of the machine with this fingerprint or origin, see `collage db stats`."),
    ] = None,
    build: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only timings of toolchain builds whose name contains this text.")
    ] = None,
    target: TargetOption = None,
    status: StatusOption = None,
    kind: Annotated[str | None, typer.Option(help="Only facts of this kind, see `collage db stats`.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the rows, and remove nothing.")] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Prune."""
    from collage.database.queries import Choice
    from collage.database.queries import prune as prune_

    before_s = None if older_than is None else time.time() - read_age_s(older_than)
    if any(text is not None and not text.strip() for text in (machine, build, target, kind)):
        raise UsageError("an option to choose rows by is empty, as of a variable of the shell that is not set")
    choice = Choice(before_s, machine, build, target, _known_status(status), kind)
    if choice == Choice():
        raise UsageError("name the rows to remove, such as --older-than 90d (see collage db prune --help)")
    with _opened(url) as database:
        timings, facts = prune_(database, choice, dry_run=dry_run)
    if json:
        print_json({"schema": _SCHEMA, "dry_run": dry_run, "timings": timings, "facts": facts})
    else:
        found = f"{counted(timings, 'timing')} and {counted(facts, 'fact')}"
        _print(f"{found} {'would be ' if dry_run else ''}removed")


@db.command(
    help="""List kernels that became slower, faster, wrong or unsupported with another build of their toolchain.

    Kernels count that were measured with both on one machine. Examples:

      collage db diff

      collage db diff --target openvino --older 2026.3 --newer 2026.4 --json
    """
)
def diff(
    target: TargetOption = None,
    older: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Text in the older build's name."),
    ] = None,
    newer: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text in the newer build's name. [default: the last]")
    ] = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Compare builds."""
    from collage.database.build_diff import build_changes
    from collage.database.queries import Choice

    with _opened(url, reading=True) as database:
        changes, compared = build_changes(database, Choice(target=target), older, newer)
    if json:
        print_json({"schema": _SCHEMA, "compared": compared, "changes": [asdict(change) for change in changes]})
        return
    for change in changes:
        _print(_changed(change))
    wrong = dict.fromkeys(change.after["parts"]["target"] for change in changes if change.change == Status.WRONG)
    for text in wrong:
        _print(f"to write a wrong kernel for its vendor: collage diff MODEL.onnx -t {shlex.quote(text)} -o wrong")
    _print(f"measured with two builds: {counted(compared, 'kernel')}, of which changed: {len(changes)}")


@db.command(
    help="""Learn from the compilations in the database, for `collage predict` on this machine.

    Examples:

      collage db train

      collage db train --db postgresql://me@server/timings --json
    """
)
def train(url: Url = None, json: Json = False) -> None:
    """Train."""
    from collage.prediction import PREDICTOR
    from collage.prediction import train as train_

    with _opened(url) as database:
        predictor = train_(database, "collage db train")
        database.keep_local_fact(PREDICTOR, predictor)
    inside, of = predictor.score()
    if json:
        print_json({"schema": _SCHEMA, "timings": predictor.timings, "models": of, "inside": inside})
    else:
        _print(
            f"learned from {counted(predictor.timings, 'timing')}; of {counted(of, 'model')}, each predicted from the others, "
            f"the true gain was within the range for {inside}"
        )


@contextmanager
def _opened(url: str | None, *, create: bool = False, reading: bool = False) -> Iterator[Database]:
    """The database; it must be there, unless it is to be filled, and writable, unless it is only read."""
    from collage.database.database import Database, default_url, sqlite_file

    url = url or default_url()
    file = sqlite_file(url)
    if file is not None and not create and not file.exists():
        raise UsageError(f"there is no timing database {file}")
    with Database(url, reading=reading) as database:
        yield database


@contextmanager
def _written(file: str) -> Iterator[Any]:
    if file == "-":
        yield sys.stdout
        return
    if (url := url_of(file)) is not None:
        with scratch() as folder:
            with (folder / "export").open("w", encoding="utf-8") as out:
                yield out
            upload(folder / "export", url)
        return
    try:
        with Path(file).open("w", encoding="utf-8") as out:
            yield out
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error


@contextmanager
def _read(file: str) -> Iterator[Any]:
    if file == "-":
        yield sys.stdin
        return
    if (url := url_of(file)) is not None:
        with scratch() as folder, download(url, folder).open(encoding="utf-8") as lines:
            yield lines
        return
    try:
        with Path(file).open(encoding="utf-8") as lines:
            yield lines
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


def _print(text: str) -> None:
    sys.stdout.write(printable(text) + "\n")


def _print_moved(moved: Any, source: str, json: bool) -> None:
    if json:
        found = {"timings": moved.timings, "facts": moved.facts, "taken": moved.taken}
        print_json({"schema": _SCHEMA, "source": source, **found})
    else:
        found_in = f"{counted(moved.timings, 'timing')} and {counted(moved.facts, 'fact')} in {source}"
        _print(f"{found_in}; new or newer: {moved.taken}")


def _line(row: Mapping[str, Any]) -> str:
    """A timing in one line."""
    took = f"{row['median_us']:>12.1f} µs" if row["median_us"] is not None else f"{'':>15}"
    made = f"{age(row['made_at_s'])}, {'here' if row['local'] else row['origin']}"
    said = f"  {row['reason'][:80]}" if row["reason"] else ""
    return f"{row['digest'][:12]}  {row['status']:<13} {took}  {row['parts']['target']:<34} {made}{said}"


def _changed(change: BuildChange) -> str:
    """A change in one line."""
    before, after = change.before, change.after
    if change.ratio is not None:
        said = f"{before['median_us']:.1f} -> {after['median_us']:.1f} µs, {change.ratio:.2f} times"
    else:
        said = f"was {before['status']}" + (f": {after['reason'][:80]}" if after["reason"] else "")
    builds = f"{before['parts']['build']} -> {after['parts']['build']}"
    return f"{after['digest'][:12]}  {change.change:<13} {after['parts']['target']:<34} {said}  ({builds})"


def _why(row: Mapping[str, Any]) -> str:
    """An explanation in a few lines."""
    head = f"{row['digest'][:12]} on {row['parts']['target']}: "
    found = row["nearest"]
    if row["known"]:
        return f"{head}known, {found['status']}, {age(found['made_at_s'])}"
    if found is None:
        return f"{head}not known; nothing else is, either"
    lines = [
        f"{head}{'differs' if row['differs'] else 'is'} from {found['digest'][:12]} ({found['status']}), the nearest, in"
    ]
    lines += [f"  {d['part']}: wanted {d['wanted']!r}, stored {d['stored']!r}" for d in row["differs"]]
    return "\n".join(lines)
