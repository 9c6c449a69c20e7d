"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Db", "Dims", "Fixed", "Inputs", "Json", "Occasions", "Quiet", "Targets", "Threads", "Verbose"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show every step, a line each.")]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        "-t",
        metavar="T",
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
