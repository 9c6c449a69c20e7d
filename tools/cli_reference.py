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
All that measure take `--db URL`, the timing database: a file or an SQLAlchemy URL. Long ones take `-q` (no progress), and some
`-v` (more detail). Options for experts are in `collage compile --help` only.
[Compiling](../compiling.md#exit-codes) lists the exit codes.
"""

# Described in the head of the page, for all commands.
_COMMON = ("--help", "--json", "--db", "--quiet", "--verbose")


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())


def page() -> str:
    """Return the page as Markdown."""
    group = typer.main.get_command(app)
    compile_command = group.commands["compile"]
    rows = _rows(compile_command, compile_command.make_context("collage compile", [], resilient_parsing=True))
    return "\n".join([HEAD, *_sections(group, "collage", None, frozenset(rows))])


def _sections(command: Any, name: str, parent: Any, of_compile: frozenset[tuple[str, str]]) -> Iterator[str]:
    """Yield a section for a command and for each of its sub-commands. Options of ``compile`` are described there only."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    if parent is not None:
        yield f"## `{name}`\n"
    if command.help:
        yield _described(inspect.cleandoc(command.help))
    rows = _rows(command, context)
    repeated = [] if name == "collage compile" else [row for row in rows if row in of_compile]
    yield from _table([row for row in rows if row not in repeated])
    if repeated:
        names = ", ".join(f"`{option}`" for option, _ in repeated)
        yield f"{names}: as for `collage compile`.\n"
    for own, sub_command in getattr(command, "commands", {}).items():
        yield from _sections(sub_command, f"{name} {own}", context, of_compile)


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


def _rows(command: Any, context: Any) -> list[tuple[str, str]]:
    """Return arguments and options with their meaning, without those of the head, of experts and of completion."""
    shown = [
        each
        for each in command.get_params(context)
        if not each.name.endswith("_completion")
        and not any(name in _COMMON for name in each.opts)
        and getattr(each, "rich_help_panel", None) != EXPERTS
    ]
    records = [record for each in shown if (record := each.get_help_record(context))]
    return [(_option(option), _cell(meaning)) for option, meaning in records]


def _table(rows: list[tuple[str, str]]) -> Iterator[str]:
    """Yield a table of options."""
    if rows:
        yield "| option | meaning |\n|---|---|"
        for option, meaning in rows:
            yield f"| `{option}` | {meaning} |"
        yield ""


def _option(text: str) -> str:
    """Return an option with its value, named in plain words, and an argument with its name alone."""
    if not text.startswith("-"):
        return _cell(re.sub(r" <[\w\[\]]+>$", "", text))
    plain = {"<int range>": "N", "<float range>": "X", "<str>": "TEXT", "<path>": "PATH"}
    return _cell(re.sub("|".join(plain), lambda kind: plain[kind[0]], text))


def _cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return re.sub(
        r" May be repeated\.|; may be repeated| \[[\dx<=>.]+\]|; x>=\d+(?=\])", "", " ".join(text.split())
    ).replace("|", "\\|")


if __name__ == "__main__":
    main()
