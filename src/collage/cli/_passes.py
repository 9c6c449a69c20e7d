"""``collage inspect MODEL --passes``: what each pass does to a model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.cli._console import print_json
from collage.cli._report import print_table
from collage.system.texts import counted, printable

if TYPE_CHECKING:
    from collage.transform import PassContext

__all__ = ["show_passes"]


def show_passes(
    path: Path,
    passes: str,
    print_before: str,
    print_after: str,
    *,
    fixed: Mapping[str, int],
    time: bool,
    verify: bool,
    json: bool,
    context: PassContext,
) -> None:
    """Run the passes on the model as it was read; print the requested models and a table."""
    from collage.frontend import fix_lengths, read_model
    from collage.transform import inspect_passes

    model = fix_lengths(read_model(path), fixed)
    printed: list[dict[str, str]] = []

    def show(name: str, when: str, text: str) -> None:
        if json:
            printed.append({"pass": name, "when": when, "text": text})
        else:
            sys.stdout.write(printable(f"# {when} {name}\n{text}\n\n"))

    found = inspect_passes(
        model,
        passes,
        print_before=_names(print_before),
        print_after=_names(print_after),
        verify=verify,
        context=context,
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
    for told in document["diagnostics"]:
        sys.stdout.write(printable(f"{told['pass']}: {told['text']}\n"))
    rows = []
    for row in document["passes"]:
        change = ", ".join(f"{operator} {count:+d}" for operator, count in row["change"].items())
        timing = ("" if row["skipped"] else f"{row['time_us'] / 1e3:.3f}",) if time else ()
        note = f"skipped: {row['skipped']}" if row["skipped"] else change
        rows.append(("  " * row["depth"] + row["name"], str(row["nodes"]), *timing, note))
    columns = ("pass", "operators", *(("ms",) if time else ()), "change")
    print_table(f"{model['path']}: {counted(model['nodes'], 'operator')}", columns, rows, range(1, len(columns) - 1))
