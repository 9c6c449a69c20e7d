"""The application ``collage``: its commands, and the exit codes of errors."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from collage._errors import CollageError
from collage._version import __version__
from collage.cli._artefact_commands import (
    BENCH_HELP,
    COMPARE_HELP,
    EXPLAIN_HELP,
    RUN_HELP,
    bench,
    compare,
    explain,
    run,
)
from collage.cli._compile import COMPILE_HELP, compile_
from collage.cli._console import printable
from collage.cli._db import db as db_commands
from collage.cli._fleet import fleet as fleet_commands
from collage.cli._inspect_commands import ENV_HELP, INSPECT_HELP, TARGETS_HELP, env, inspect, targets
from collage.cli._pack import PACK_HELP, UNPACK_HELP, pack, unpack
from collage.cli._page import HELP as REPORT_HELP
from collage.cli._page import report as report_command
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

for group in (db_commands, toolchain_commands, fleet_commands):
    app.add_typer(group)
for name, text, command in (
    ("report", REPORT_HELP, report_command),
    ("pack", PACK_HELP, pack),
    ("unpack", UNPACK_HELP, unpack),
    ("compile", COMPILE_HELP, compile_),
    ("run", RUN_HELP, run),
    ("bench", BENCH_HELP, bench),
    ("compare", COMPARE_HELP, compare),
    ("explain", EXPLAIN_HELP, explain),
    ("inspect", INSPECT_HELP, inspect),
    ("targets", TARGETS_HELP, targets),
    ("env", ENV_HELP, env),
):
    app.command(name, help=text)(command)

_INTERRUPTED = 130
"""Exit code after Ctrl-C, where there is no result yet."""


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
