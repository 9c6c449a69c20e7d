"""Write ``docs/reference/cli.md`` from the commands of ``collage``: ``python tools/cli_reference.py``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from collage.cli._app import app
from collage.options import EXPERTS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
HEAD = """# Command line

<!-- Written by `python tools/cli_reference.py`. Do not edit. -->

Every command has `-h` or `--help`, with examples. All that report something have `--json`: one document with a `schema` number.
Options for experts are in `collage compile --help` only.
All that measure take `--db URL`, the timing database: a file or an SQLAlchemy URL.
[Compiling](../compiling.md#exit-codes) lists the exit codes.
"""


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([HEAD, *_sections(typer.main.get_command(app), "collage", None)])


def _sections(command: Any, name: str, parent: Any) -> Iterator[str]:
    """Yield a section for a command and for each of its sub-commands."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    if parent is not None:
        yield f"## `{name}`\n"
    if command.help:
        yield _described(inspect.cleandoc(command.help))
    yield from _table(command, context)
    for own, sub_command in getattr(command, "commands", {}).items():
        yield from _sections(sub_command, f"{name} {own}", context)


def _described(text: str) -> str:
    """Return a help text as Markdown, without its examples."""
    prose = []
    for paragraph in re.split(r"\n\s*\n", text):
        is_example = re.match(r"\s*(?:\S.*\| )?collage ", paragraph)
        if not is_example:
            prose.append(inspect.cleandoc(paragraph))
    body = (
        "\n\n".join(
            " ".join(p.split()).removesuffix("Examples:").removesuffix("Example:").strip() for p in prose
        ).strip()
        + "\n"
    )
    return body


def _table(command: Any, context: Any) -> Iterator[str]:
    """Yield the rows of a table of arguments and options, save those for completion, which depend on the shell."""
    shown = [
        each
        for each in command.get_params(context)
        if not each.name.endswith("_completion")
        and each.name not in ("help", "json", "db")
        and getattr(each, "rich_help_panel", None) != EXPERTS
    ]
    records = [record for each in shown if (record := each.get_help_record(context))]
    if not records:
        return
    yield "| option | meaning |\n|---|---|"
    for option, meaning in records:
        yield f"| `{_cell(option)}` | {_cell(meaning)} |"
    yield ""


def _cell(text: str) -> str:
    return re.sub(r" May be repeated\.|; may be repeated| \[[\dx<=>]+\]", "", " ".join(text.split())).replace(
        "|", "\\|"
    )


if __name__ == "__main__":
    main()
