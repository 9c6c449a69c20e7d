"""``collage store``: a content-addressed store of artefacts. Thin, like the other commands."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from collage._errors import ArtefactError, UsageError
from collage.cli._ages import age, read_age_s
from collage.cli._console import counted, print_json, printable

__all__ = ["store"]

_SCHEMA = 1

store = typer.Typer(
    name="store",
    help="Store artefacts by name in a folder or an object store. Equal files are stored once.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Root = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="ROOT", help="A folder or a URL such as s3://bucket/store. Default: $COLLAGE_STORE."
    ),
]
Reference = Annotated[str, typer.Argument(metavar="NAME", help="Its name, or sha256: and its digest.")]


@store.command(
    help="""Verify an artefact or a pack, and store it under a name.

    Commands take `store://NAME` for an artefact of the store that $COLLAGE_STORE names. Examples:

      collage store put model.collage resnet50

      collage store put model.collage resnet50/v3 --store s3://bucket/store
    """
)
def put(
    artefact: Annotated[Path, typer.Argument(help="An artefact or a pack.")],
    name: Annotated[str, typer.Argument(help="The name; one that exists is replaced.")],
    root: Root = None,
    json: Json = False,
) -> None:
    """Store an artefact."""
    from collage.runtime import stored
    from collage.store import Store

    digest = stored(artefact, Store(root), name)
    if json:
        print_json({"schema": _SCHEMA, "name": name, "digest": digest})
    else:
        _print(f"{name}: sha256:{digest}")


@store.command(
    help="""Write an artefact of the store to a folder or a zip. Every byte is compared with its digest.

    Examples:

      collage store get resnet50 -o model.collage
    """
)
def get(
    reference: Reference,
    output: Annotated[Path, typer.Option("-o", "--output", help="The output: a folder, or a .zip.")],
    root: Root = None,
    json: Json = False,
) -> None:
    """Fetch an artefact."""
    from collage.runtime import check_destination, fetch
    from collage.store import Store

    check_destination(output)
    digest = fetch(Store(root), reference, output)
    if json:
        print_json({"schema": _SCHEMA, "name": reference, "digest": digest, "artefact": str(output)})
    else:
        _print(f"sha256:{digest} written to {output}")


@store.command("list", help="List the names in the store, with digest, size and age.")
def list_(root: Root = None, json: Json = False) -> None:
    """List names."""
    from collage.store import Store, url_of

    if root is not None and url_of(root) is None and not Path(root).is_dir():
        raise UsageError(f"{root} is not a store: there is no such folder", hint="`collage store put` makes one")
    rows = list(Store(root).names())
    if json:
        told = [
            {"name": row.name, "digest": row.digest, "bytes": row.size_bytes, "made_at_s": row.made_at_s}
            for row in rows
        ]
        print_json({"schema": _SCHEMA, "artefacts": told})
        return
    if not rows:
        _print("the store holds no artefacts; `collage store put` stores one")
    for row in rows:
        _print(f"{row.name:<30} {row.digest[:12]} {row.size_bytes / 1e6:>10.1f} MB  {age(row.made_at_s)}")


@store.command(
    help="""Read everything in the store and compare it with its digest. The exit code is 5 if something is damaged.

    Examples:

      collage store verify

      collage store verify --remove-damaged
    """
)
def verify(
    root: Root = None,
    remove_damaged: Annotated[
        bool, typer.Option("--remove-damaged", help="Remove damaged objects, so that `put` stores them again.")
    ] = False,
    json: Json = False,
) -> None:
    """Verify the store."""
    from collage.store import Store

    place = Store(root)
    problems = list(place.verify())
    if remove_damaged:
        for problem in problems:
            if problem.path is not None:
                place.place.remove(problem.path)
    if json:
        print_json({"schema": _SCHEMA, "problems": [{"what": each.what, "reason": each.reason} for each in problems]})
    else:
        for problem in problems:
            _print(problem.reason)
    if problems:
        raise ArtefactError(f"{place} has {counted(len(problems), 'problem')}")
    if not json:
        _print(f"{place}: everything is as it was stored")


@store.command(help="Remove a name. Its files stay until `collage store gc`.")
def remove(name: Reference, root: Root = None) -> None:
    """Remove a name."""
    from collage.store import Store

    Store(root).remove(name)
    _print(f"{name} removed")


@store.command(
    help="""Remove files that no name refers to.

    Younger ones stay, since they may belong to an artefact that is being stored. Examples:

      collage store gc

      collage store gc --older-than 7d --dry-run
    """
)
def gc(
    root: Root = None,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Only files older than this, e.g. 12h or 7d.")] = "1d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the files, and remove nothing.")] = False,
    json: Json = False,
) -> None:
    """Collect garbage."""
    from collage.store import Store

    began = time.monotonic()
    found = Store(root).collect(read_age_s(older_than), dry_run=dry_run)
    if json:
        told = {"objects": found.objects, "bytes": found.size_bytes, "young": found.young, "dry_run": dry_run}
        print_json({"schema": _SCHEMA, **told, "duration_s": time.monotonic() - began})
        return
    done = "would be removed" if dry_run else "removed"
    young = f"; {found.young} without a name are younger than {older_than}" if found.young else ""
    _print(f"{counted(found.objects, 'object')} ({found.size_bytes / 1e6:.1f} MB) {done}{young}")


def _print(text: str) -> None:
    sys.stdout.write(printable(text) + "\n")
