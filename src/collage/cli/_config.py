"""Options of ``collage compile`` from a file: ``collage.toml`` in the current folder, or the one that ``--config`` names."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import typer

from collage._errors import UsageError

__all__ = ["apply_config"]

_DEFAULT = "collage.toml"
_TABLE = "compile"
_MAX_BYTES = 1 << 20
_NOT_IN_FILES = ("config", "help")
_PLAIN = (str, int, float, bool)


def apply_config(context: typer.Context, path: Path | None) -> Path | None:
    """Use the values of a file as defaults of the options of a command; the command line has precedence.

    Args:
        context: The context of the command, whose other options are not read yet.
        path: The file; None is ``collage.toml`` in the current folder, if there is one.

    Raises:
        UsageError: The file cannot be read, or holds an option that the command does not have.
    """
    if path is None and not Path(_DEFAULT).is_file():
        return None
    told = _read(path or Path(_DEFAULT))
    options = {
        spelling.lstrip("-"): parameter
        for parameter in context.command.params
        for spelling in parameter.opts
        if spelling.startswith("--") and parameter.name not in _NOT_IN_FILES
    }
    defaults: dict[str, Any] = {}
    for name, value in told.items():
        parameter = options.get(name.replace("_", "-"))
        if parameter is None:
            raise UsageError(f"{path or _DEFAULT}: {_unknown(name, options)}")
        shown = f"{path or _DEFAULT}: {name}"
        if getattr(parameter, "multiple", False):
            value = value if isinstance(value, list) else [value]
            if not all(isinstance(each, _PLAIN) for each in value):
                raise UsageError(f"{shown} is not a list of plain values")
            value = [str(each) for each in value]
        elif not isinstance(value, _PLAIN):
            raise UsageError(f"{shown} is not a plain value")
        elif getattr(parameter, "is_flag", False) != isinstance(value, bool):
            form = "takes a value, not true or false" if isinstance(value, bool) else "is a switch: write true or false"
            raise UsageError(f"{shown} {form}")
        defaults[str(parameter.name)] = value if isinstance(value, bool | list) else str(value)
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise UsageError(f"{path} is too large for a file of options")
        data = tomllib.loads(text.decode("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {str(error)[:200]}") from error
    if unknown := sorted(set(data) - {_TABLE}):
        raise UsageError(f"{path}: {unknown[0]!r} is not known: options belong into the table [{_TABLE}]")
    table = data.get(_TABLE, {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {_TABLE!r} is not a table")
    return table


def _unknown(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name.replace("_", "-"), known, 1)
    meant = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}"
    return f"{name!r} is not an option of collage {_TABLE}{meant}"
