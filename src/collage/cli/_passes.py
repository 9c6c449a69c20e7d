"""``collage inspect MODEL --passes``: what each pass does to a model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from collage.cli._console import print_json

__all__ = ["show_passes"]


def show_passes(
    path: Path, passes: str, print_before: str, print_after: str, *, time: bool, verify: bool, json: bool
) -> None:
    """Runs the passes on the model as the front door lets it in, and prints the models asked for, and a table."""
    from collage.frontend import read_model
    from collage.transform import inspect_passes

    model = read_model(path)
    printed: list[dict[str, str]] = []

    def show(name: str, when: str, text: str) -> None:
        if json:
            printed.append({"pass": name, "when": when, "text": text})
        else:
            sys.stdout.write(f"# {when} {name}\n{text}\n\n")

    found = inspect_passes(
        model,
        _names(passes),
        print_before=_names(print_before),
        print_after=_names(print_after),
        verify=verify,
        show=show,
    )
    document = {"schema": 1, "model": {"path": str(path), "nodes": len(model.graph)}, **found, "printed": printed}
    if json:
        print_json(document)
    else:
        _print_table(document, time)


def _names(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]


def _print_table(document: Mapping[str, Any], time: bool) -> None:
    model = document["model"]
    table = Table(
        title=f"{escape(model['path'])}: {model['nodes']} operators",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("pass")
    table.add_column("operators", justify="right")
    if time:
        table.add_column("ms", justify="right")
    table.add_column("change", overflow="fold")
    for row in document["passes"]:
        name = "  " * row["depth"] + row["name"]
        change = ", ".join(f"{operator} {count:+d}" for operator, count in row["change"].items())
        note = f"skipped: {row['skipped']}" if row["skipped"] else change
        timing = ("" if row["skipped"] else f"{row['time_us'] / 1e3:.3f}",) if time else ()
        table.add_row(escape(name), str(row["nodes"]), *timing, escape(note))
    # A pipe has no width of its own, and tables are no prose: give them room.
    Console(width=None if sys.stdout.isatty() else 140).print(table)
