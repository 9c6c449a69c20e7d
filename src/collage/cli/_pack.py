"""``collage pack`` and ``collage unpack``, and what an artefact says of its machines. Thin, like the other commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from collage._errors import UsageError
from collage.cli._console import print_json
from collage.store import shown
from collage.system.texts import counted, printable

__all__ = ["PACK_HELP", "UNPACK_HELP", "pack", "show_machines", "unpack"]

_SCHEMA = 1

PACK_HELP = """Pack artefacts of one model, each compiled on another machine or for other lengths, into one artefact.

    Every file is verified, and equal files, such as weights, are stored once. `load` and the other commands take the plan
    that fits the machine they run on. Examples:

      collage pack avx2.collage avx512.collage -o model.collage

      collage pack model.collage arm.collage -o model.collage.zip
"""
UNPACK_HELP = """Write one plan of a pack as the artefact that was packed.

    `collage inspect model.collage` shows the fingerprints. Example:

      collage unpack model.collage --machine 3f2a90 -o avx2.collage
"""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Output = Annotated[Path, typer.Option("-o", "--output", help="The output: a folder, a .zip, or a URL.")]


def pack(
    artefacts: Annotated[list[Path], typer.Argument(metavar="ARTEFACT...", help="Artefacts or packs of one model.")],
    output: Output,
    json: Json = False,
) -> None:
    """Pack artefacts."""
    from collage.runtime import check_destination
    from collage.runtime import pack as pack_

    check_destination(output)
    plans = pack_(artefacts, output)
    if json:
        told = [{"machine": str(plan.made_on), "fingerprint": plan.made_on.fingerprint or None} for plan in plans]
        print_json({"schema": _SCHEMA, "artefact": shown(output), "plans": told})
        return
    for plan in plans:
        _print(f"  {plan}")
    _print(f"{counted(len(plans), 'plan')} written to {shown(output)}")


def unpack(
    artefact: Annotated[Path, typer.Argument(help="A pack.")],
    machine: Annotated[
        str, typer.Option("--machine", metavar="FINGERPRINT", help="First characters of the machine's fingerprint.")
    ],
    output: Output,
    json: Json = False,
) -> None:
    """Unpack a plan."""
    from collage.runtime import check_destination, unpack_plan

    check_destination(output)
    plan = unpack_plan(artefact, output, machine)
    if json:
        print_json({"schema": _SCHEMA, "artefact": shown(output), "machine": str(plan.made_on)})
    else:
        _print(f"{plan}\nwritten to {shown(output)}")


def show_machines(artefact: Path, *, has_options: bool, json: bool) -> None:
    """Print which machines an artefact has plans for, and which plan this machine takes.

    Raises:
        UsageError: Options are given that ask about a model.
    """
    from collage.runtime import machine_rows

    if has_options:
        raise UsageError(f"{artefact} is an artefact: these options ask about models, such as its model.onnx")
    found = machine_rows(artefact)
    if json:
        print_json({"schema": _SCHEMA, "artefact": shown(artefact), **found})
        return
    kind = f"a pack of {counted(len(found['plans']), 'plan')}" if found["pack"] else "an artefact"
    _print(f"{shown(artefact)}: {kind} of {found['model'] or 'a model'} ({(found['sha256'] or 'no digest')[:12]})")
    for row in found["plans"]:
        gain = "" if row["speedup"] is None else f", {row['speedup']:.2f}x what you had"
        code = "native code" if row["native_code"] else "no native code"
        used = ", used here" if row["used_here"] else ""
        _print(f"  {row['machine']}{'' if row['lengths'] is None else ', only for ' + row['lengths']}")
        _print(f"    {counted(row['kernels'], 'kernel')} on {', '.join(row['targets'])}, {code}{gain}{used}")
    if found["note"] is not None:
        _print(f"here: {found['note']}")


def _print(text: str) -> None:
    sys.stdout.write(printable(text) + "\n")
