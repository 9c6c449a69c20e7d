"""``collage report``: an artefact as a page, or as a file for another viewer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from collage._errors import UsageError
from collage.cli._early_checks import check_places
from collage.option_texts import read_dims, read_files
from collage.system.texts import printable

if TYPE_CHECKING:
    from collage.page import PageContents

__all__ = ["HELP", "report"]

HELP = """Show an artefact as a page: the gain, the partitioned model, and everything that was measured.

    The page is one HTML file that needs no network. It holds names and shapes of the model, no weights. Examples:

      collage report model.collage -o report.html

      collage report model.collage -o report.html --redact

      collage report model.collage -o model.svg

      collage report model.collage -o trace.json --format perfetto

      collage report model.collage -o attachment.json --format netron
"""

_Format = Literal["html", "svg", "dot", "perfetto", "netron"]

_BY_SUFFIX: Mapping[str, _Format] = {".html": "html", ".htm": "html", ".svg": "svg", ".dot": "dot", ".gv": "dot"}


def report(
    artefact: Annotated[Path, typer.Argument(help="An artefact: a folder, or a zip of it.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The output file; - is standard output.")
    ],
    format_: Annotated[
        _Format | None,
        typer.Option(
            "--format",
            help="The page; a picture; a graph for Graphviz; a trace of one run; metrics for Netron. "
            "Default: by the name's end.",
        ),
    ] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Replace names of operators, tensors and files.")] = False,
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE.npy", help="A tensor for the run of --format perfetto."),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=V", help="A length for the run of --format perfetto."),
    ] = None,
) -> None:
    """Write a report."""
    check_places(artefact)
    from collage.page import read_contents, redacted
    from collage.runtime import machine_lines, opened

    chosen = format_ or _BY_SUFFIX.get(output.suffix.lower())
    if chosen is None:
        raise UsageError(
            f"cannot derive the format from {output.name!r}; add --format html, svg, dot, perfetto or netron"
        )
    if (input_ or dim) and chosen != "perfetto":
        raise UsageError(f"--input and --dim are for --format perfetto, which runs the model; {chosen} does not")
    if redact and chosen == "netron":
        raise UsageError(
            "an attachment names the kernels of model.onnx, which holds all other names; leave --redact out"
        )
    if str(output) != "-" and not output.parent.exists():
        raise UsageError(f"cannot write {output}: the folder {output.parent} does not exist")
    if output.is_dir():
        raise UsageError(f"cannot write {output}: it is a folder")
    with opened(artefact) as found:
        contents = read_contents(found.folder, artefact.name, machine_lines(artefact))
    if redact:
        contents = redacted(contents)
    text = _text(chosen, contents, artefact, read_files(input_, "--input", "NAME=FILE.npy"), read_dims(dim))
    if str(output) == "-":
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from error
    typer.echo(printable(f"written to {output} ({len(text.encode()) / 1e3:,.0f} kB)"))


def _text(
    chosen: _Format, contents: PageContents, artefact: Path, files: Mapping[str, str], dims: Mapping[str, int]
) -> str:
    from collage.page import as_dot, as_html, as_netron_attachment, as_svg, as_trace

    if chosen == "perfetto":
        from collage.cli._run import profile_of

        return as_trace(contents, profile_of(artefact, files, dims))
    writers = {"html": as_html, "svg": as_svg, "dot": as_dot, "netron": as_netron_attachment}
    return writers[chosen](contents)
