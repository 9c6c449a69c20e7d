"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from collage.target import DEVICE_TYPES, HOST_TOOLCHAIN, NATIVE_TOOLCHAIN

__all__ = ["Db", "Dims", "Fixed", "Inputs", "Json", "Occasions", "Quiet", "Targets", "Threads", "Verbose"]


def _targets(incomplete: str) -> list[str]:
    """Return the names that complete a target: kinds and toolchains, without importing any."""
    from importlib.metadata import entry_points

    names = {point.name for point in entry_points(group="collage.toolchains")} - {HOST_TOOLCHAIN, NATIVE_TOOLCHAIN}
    return sorted(name for name in {*names, *DEVICE_TYPES} if name.startswith(incomplete))


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show every step, a line each.")]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        "-t",
        metavar="T",
        autocompletion=_targets,
        help="A target or alias; may be repeated. Default: all that are usable and quick to build.",
    ),
]
Threads = Annotated[
    int, typer.Option("--threads", min=0, help="Threads per kernel; 0 is each toolchain's own default.")
]
Db = Annotated[str | None, typer.Option("--db", metavar="URL", help="Timing database: a file or an SQLAlchemy URL.")]
Dims = Annotated[
    list[str] | None, typer.Option("--dim", metavar="NAME=V", help="Length of a symbolic dimension of made-up inputs.")
]
Occasions = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=V[:W,V:W...]",
        help="Representative length of a symbolic dimension, or several with weights.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=FILE.npy", help="A real input, to measure and check on; may be repeated."),
]
Fixed = Annotated[
    list[str] | None,
    typer.Option("--fix", metavar="NAME=V", help="Fixed length of a symbolic dimension; often faster."),
]
