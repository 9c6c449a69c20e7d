"""Options of ``collage compile`` that follow from ``CompileOptions``, and help in groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer
import typer.core

from collage.options import BASIC, GROUPS, CommandOption, command_options

__all__ = ["GroupedCommand", "settings_of", "with_compile_options"]


class GroupedCommand(typer.core.TyperCommand):
    """A command whose help lists options by group, and leaves the lines of its text as they are."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the text of the command; a line of an example is never broken."""
        formatter.write("\n")
        for line in inspect.cleandoc(self.help or "").splitlines():
            formatter.write(f"  {line}\n" if line else "\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, a section for each group."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{group: [] for group in GROUPS}}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            group = "Arguments" if parameter.param_type_name == "argument" else BASIC
            groups.setdefault(getattr(parameter, "rich_help_panel", None) or group, []).append(record)
        for group, records in groups.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)


def with_compile_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that also has every option of ``command_options``; it gets them as keywords if they are given.

    Args:
        command: A function whose last parameter is ``**settings``.
    """

    def generated(**values: Any) -> Any:
        return command(**values)

    own = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(each), annotation=_annotation(each))
        for name, each in command_options().items()
    ]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    signature = inspect.Signature([*own, *more])
    generated.__signature__ = signature  # type: ignore[attr-defined]
    generated.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    generated.__name__, generated.__doc__ = command.__name__, command.__doc__
    return generated


def _default(told: CommandOption) -> Any:
    return False if told.kind is bool and "/" not in told.flag else None


def _annotation(told: CommandOption) -> Any:
    kind: Any = Literal[tuple(told.choices)] if told.choices else told.kind
    text = told.help + (" May be repeated." if told.repeated else "")
    more: dict[str, Any] = {"min": 0} if told.kind is int else {}
    info = typer.Option(told.flag, help=text, metavar=told.metavar, rich_help_panel=told.group, **more)
    kind = list[kind] if told.repeated else kind
    if told.kind is not bool or "/" in told.flag:
        kind = kind | None
    return Annotated[kind, info]


def settings_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of ``CompileOptions`` for the options that were given; the others keep their defaults."""
    return {
        name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if v not in (None, False, [])
    } | {name: False for name, each in command_options().items() if values.get(name) is False and "/" in each.flag}
