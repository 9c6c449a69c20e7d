"""The application ``collage``: its commands, and the exit codes of errors."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from collage._errors import CollageError, UsageError
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
from collage.cli._db import db as db_commands
from collage.cli._diff import DIFF_HELP, diff
from collage.cli._fleet import fleet as fleet_commands
from collage.cli._generated import GroupedCommand
from collage.cli._inspect_commands import ENV_HELP, INSPECT_HELP, TARGETS_HELP, env, inspect, targets
from collage.cli._pack import PACK_HELP, UNPACK_HELP, pack, unpack
from collage.cli._page import HELP as REPORT_HELP
from collage.cli._page import report as report_command
from collage.cli._predict import PREDICT_HELP, predict
from collage.cli._toolchain import toolchain as toolchain_commands
from collage.system.texts import printable

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

for name, text, command in (
    ("compile", COMPILE_HELP, compile_),
    ("run", RUN_HELP, run),
    ("bench", BENCH_HELP, bench),
    ("explain", EXPLAIN_HELP, explain),
    ("report", REPORT_HELP, report_command),
    ("compare", COMPARE_HELP, compare),
    ("diff", DIFF_HELP, diff),
    ("pack", PACK_HELP, pack),
    ("unpack", UNPACK_HELP, unpack),
    ("inspect", INSPECT_HELP, inspect),
    ("predict", PREDICT_HELP, predict),
    ("targets", TARGETS_HELP, targets),
    ("env", ENV_HELP, env),
):
    app.command(name, help=text, cls=GroupedCommand)(command)
for group in (db_commands, toolchain_commands, fleet_commands):
    app.add_typer(group)

_INTERRUPTED = 130
"""Exit code after Ctrl-C, where there is no result yet."""

_OF_THE_USER = (errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG, errno.ENOSPC, errno.EPERM, errno.EROFS)
"""Errors of the system that say what is wrong with a path or a disk, wherever they come from."""


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
    sys.stdout, sys.stderr = (stream or _nowhere() for stream in (sys.stdout, sys.stderr))  # They may be closed.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # A terminal that knows no µ gets all the rest.
    warnings.formatwarning = lambda message, *_: f"warning: {printable(str(message))}\n"  # Without a line of our code.
    sys.exit(_main(arguments))


def _nowhere() -> Any:
    return Path(os.devnull).open("w", encoding="utf-8")


def _main(arguments: Sequence[str] | None) -> int:
    try:
        result: Any = app(
            args=None if arguments is None else list(arguments), prog_name="collage", standalone_mode=False
        )
        sys.stdout.flush()
        if result == _INTERRUPTED:  # Typer's word for a KeyboardInterrupt that it caught.
            raise KeyboardInterrupt
    except CollageError as error:
        sys.stderr.write(f"collage: {printable(str(error))}\n")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("collage: interrupted; what was measured is kept, the same command continues\n")
        return _INTERRUPTED
    except BrokenPipeError:
        sys.stdout = _nowhere()
        return 0
    except SystemExit as stop:
        if not isinstance(stop.__context__, BrokenPipeError):  # Typer and Rich catch it, and end with 1.
            raise
        sys.stdout = _nowhere()
        return 0
    except typer.Exit as stop:
        return stop.exit_code
    except OSError as error:
        if error.errno not in _OF_THE_USER:
            raise
        sys.stdout = _nowhere()  # What it still holds cannot be written.
        place = error.filename or "the output"
        sys.stderr.write(f"collage: {printable(str(place))}: {error.strerror}\n")
        return UsageError.exit_code
    except MemoryError as error:
        sys.stderr.write(f"collage: the memory of this machine does not suffice: {printable(str(error))}\n")
        return CollageError.exit_code
    except Exception as error:
        # Click's own usage errors know their message and their exit code (2).
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            sys.stderr.write(_usage_error(error) + "\n")
            return int(error.exit_code)
        raise
    return result if isinstance(result, int) else 0


_GUESSES: Mapping[str, str] = {
    "--int8": "--precision int8 --data FOLDER",
    "--quantize": "--precision int8 --data FOLDER",
    "--fp16": "--accuracy-budget 1%, which admits kernels in 16 bits",
    "--bf16": "--accuracy-budget 1%, which admits kernels in 16 bits",
    "--timeout": "--time-budget 2m",
    "--batch": "--fix batch=1",
    "--shape": "--fix NAME=LENGTH",
    "--provider": "-t onnxruntime",
}
"""Options that people try, and what they mean."""


# Messages of the library that reads numbers, and the same in words.
_IN_PLAIN_WORDS: Mapping[str, str] = {
    r"Input should be a valid integer.*": r"\1 takes a whole number",
    r"Input should be a valid number.*": r"\1 takes a number",
    r"Input should be greater than or equal to (\S+)": r"\1 takes a number of at least \2",
}


def _usage_error(error: Any) -> str:
    """Return the message of an error of the command line, with a way out on a line of its own."""
    context = getattr(error, "ctx", None)
    message = str(error.format_message()).replace("Value error, ", "")
    for told, words in _IN_PLAIN_WORDS.items():
        message = re.sub(rf"Invalid value for '([^']+)': {told}", words, message)
    if message.startswith("Usage:"):  # Without a command the message is the help itself.
        return message
    command = context.command_path if context else "collage"
    hint = f"{command} --help"
    if guess := _GUESSES.get(str(getattr(error, "option_name", "")).partition("=")[0]):
        message, hint = f"there is no option {error.option_name}", guess
    elif message.startswith("Got unexpected extra argument"):
        extra = message.rpartition("(")[2].rstrip(")")
        count = sum(each.param_type_name == "argument" for each in context.command.params) if context else 1
        most = {0: "no arguments", 1: "one argument"}.get(count, f"{count} arguments")
        most = "one model" if command.endswith("compile") else most
        message = f"{command} takes {most}; {extra} is one too many"
        if command.endswith("compile"):
            hint = "compile one after the other, or several with `collage fleet compile a.onnx b.onnx -o FOLDER`"
    return f"collage: {message}\nhint: {hint}"
