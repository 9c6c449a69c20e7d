"""Ablate a toolchain: compile models with it on the menu and without, and race the two plans of each.

::

    python -m benchmarks.ablation --without ncnn                           # the whole zoo, on an empty database each
    python -m benchmarks.ablation --without ncnn --models resnet50,speech

Both artefacts of a model race in turns, in clean processes. Prints the speed-up of the plan with the toolchain over the plan
without it, its 95 % interval, and the number of kernels of the toolchain. The last line says for how many models the
toolchain pays: its plan is faster beyond doubt. Exit code 1 if it pays for none, 2 if a model could not be compiled.

A toolchain that pays for no model, on each kind of machine, need not be on the default menu. Compilations without it measure what
those with it have measured already, so the database of each model is shared.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._arguments import Model, chosen_models, make_parser
from benchmarks.bench import compile_model

from collage._errors import CollageError
from collage.artefact_comparison import compare_artefacts
from collage.target import Target
from collage.toolchains import registry

MENU = ("llvm", "onnxruntime", "openvino", "ncnn")


def ablated(model: Model, menu: Sequence[str], without: str, scratch: Path, rounds: int) -> dict[str, Any]:
    """Return the speed-up by a toolchain for one model, its interval, and the number of its kernels; or an error."""
    database = f"sqlite:///{scratch / 'timings.sqlite'}"
    menus = {"with": menu, "without": [text for text in menu if toolchain_of(text) != without]}
    reports = {}
    for name, targets in menus.items():
        row = compile_model(model, scratch / f"{name}.collage", targets, database)
        if "error" in row:
            return {"model": model.name, "error": f"{name}: {row['error']}"}
        reports[name] = row["report"]
    own = [each for each in reports["with"]["kernels"] if Target.parse(each["target"]).toolchain == without]
    try:
        told = compare_artefacts(scratch / "without.collage", scratch / "with.collage", model.path, rounds=rounds)
    except CollageError as error:
        return {"model": model.name, "error": str(error)}
    return {
        "model": model.name,
        "kernels": len(own),
        "speedup": told["speedup"],
        "interval": told["speedup_interval"],
        "winners": {name: report["winner"] for name, report in reports.items()},
    }


def toolchain_of(text: str) -> str:
    """Return the toolchain of a target."""
    return registry().parse_target(text).toolchain


def pays(row: dict[str, Any]) -> bool:
    """Return True if the plan with the toolchain has a kernel of it, and is faster beyond doubt."""
    return bool(row.get("kernels") and row["interval"] and row["interval"][0] > 1)


def line(row: dict[str, Any]) -> str:
    """Return the line of a model."""
    if "error" in row:
        return f"{row['model']:20} {row['error']}"
    if row["speedup"] is None:
        return f"{row['model']:20} one of the plans failed in the race"
    low, high = row["interval"]
    return f"{row['model']:20} {row['speedup']:.3f} [{low:.3f} {high:.3f}]  {row['kernels']} kernels" + (
        "  pays" if pays(row) else ""
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script."""
    parser = make_parser(__doc__, models="", targets=MENU, rounds=15, json=True)
    parser.add_argument("--without", required=True, metavar="TOOLCHAIN", help="the toolchain to leave out")
    options: argparse.Namespace = parser.parse_args(arguments)
    menu = options.targets.split(",")
    if options.without not in map(toolchain_of, menu):
        parser.error(f"no target of {options.targets} is of {options.without}")
    rows = []
    for model in chosen_models(options):
        with tempfile.TemporaryDirectory(prefix="collage-ablation-") as scratch:
            rows.append(ablated(model, menu, options.without, Path(scratch), options.rounds))
        print(line(rows[-1]), flush=True)
    print(f"{options.without} pays for {sum(map(pays, rows))} of {len(rows)} models")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if any("error" in row for row in rows):
        return 2
    return int(not any(map(pays, rows)))


if __name__ == "__main__":
    sys.exit(main())
