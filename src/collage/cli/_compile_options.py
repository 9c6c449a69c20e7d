"""Options of the command line that say which kernels there may be, and which passes run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collage._errors import UsageError
from collage.option_texts import read_pairs
from collage.options import EXPERTS

if TYPE_CHECKING:
    from collage.fusion import FusionOptions
    from collage.transform import PassContext

__all__ = [
    "DisabledPasses",
    "FusionStyles",
    "MaxCandidates",
    "MaxDepth",
    "NativeMaxDepth",
    "OptLevel",
    "PassConfig",
    "read_context",
    "read_fusion",
]

FusionStyles = Annotated[
    list[str] | None,
    typer.Option(
        "--fusion-style",
        rich_help_panel=EXPERTS,
        metavar="TOOLCHAIN=STYLE",
        help="Fusion style of a toolchain: none, classic, arbitrary or regions; may be repeated.",
    ),
]
MaxDepth = Annotated[
    int | None,
    typer.Option(
        min=0,
        rich_help_panel=EXPERTS,
        help="Largest depth of a kernel of a toolchain, in operators; 0 removes the limit.",
    ),
]
NativeMaxDepth = Annotated[
    int | None,
    typer.Option(
        min=0,
        rich_help_panel=EXPERTS,
        help="Largest depth of a kernel of native code, in operators; 0 removes the limit.",
    ),
]
MaxCandidates = Annotated[
    int | None,
    typer.Option(
        min=0, rich_help_panel=EXPERTS, help="Largest number of candidates of several operators for a target."
    ),
]
OptLevel = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=3,
        help="Highest level of passes that run. Default: 2.",
        rich_help_panel=EXPERTS,
    ),
]
DisabledPasses = Annotated[
    list[str] | None,
    typer.Option(
        "--disable-pass", rich_help_panel=EXPERTS, metavar="NAME", help="A pass that must not run; may be repeated."
    ),
]
PassConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--pass-config",
        rich_help_panel=EXPERTS,
        metavar="KEY=VALUE",
        help="A configuration key of passes; may be repeated.",
    ),
]


def read_fusion(
    styles: Sequence[str] | None, native_max_depth: int | None, max_depth: int | None, max_candidates: int | None
) -> FusionOptions | None:
    """Read the options of fusion; None if none is given, so that the configuration of passes decides."""
    if not styles and native_max_depth is None and max_depth is None and max_candidates is None:
        return None
    from collage.fusion import FusionOptions

    named: Any = read_pairs(styles, "--fusion-style", "TOOLCHAIN=STYLE")
    told = FusionOptions(native_max_depth, max_depth, named)
    return (
        told
        if max_candidates is None
        else FusionOptions(native_max_depth, max_depth, named, max_candidates=max_candidates)
    )


def read_context(
    opt_level: int | None, disabled: Sequence[str] | None, config: Sequence[str] | None, **others: Any
) -> PassContext:
    """Return the context in which passes run: the current one, changed as the options say.

    Args:
        opt_level: The level; None keeps the current one.
        disabled: Names of passes.
        config: ``KEY=VALUE`` each.
        others: Further arguments of the context.

    Raises:
        ConfigError: An unknown pass or key.
        UsageError: A value that is not of its key's type.
    """
    from collage.transform import PassContext, get_pass, list_passes

    known = set(list_passes())
    for name in disabled or ():
        if name in known:
            get_pass(name)  # A package's pass is known by its name once it was made.
    now = PassContext.current()
    return PassContext(
        now.opt_level if opt_level is None else opt_level,
        now.fallback_device,
        now.required_pass,
        [*now.disabled_pass, *(disabled or ())],
        {**now.config, **_config(read_pairs(config, "--pass-config", "KEY=VALUE"))},
        **others,
    )


def _config(pairs: Mapping[str, str]) -> dict[str, Any]:
    from collage.transform import config_option

    read: dict[type, Any] = {int: int, float: float, str: str, bool: {"true": True, "false": False}.__getitem__}
    values = {}
    for key, text in pairs.items():
        kind = config_option(key).type
        try:
            values[key] = read[kind](text.lower() if kind is bool else text)
        except (KeyError, ValueError):
            raise UsageError(f"--pass-config {key}={text}: {text!r} is not of type {kind.__name__}") from None
    return values
