"""The board: Collage against ONNX Runtime, OpenVINO, ncnn, TVM and Inductor, each used without any code of Collage.

::

    python -m benchmarks.board run --models "super_resolution;model.onnx;real:voice, fixed"
    python -m benchmarks.board page board-*.json -o board.html

``run`` writes one dated file of rows for this machine, which can be sent. ``page`` makes one static page of files of any
machines.
Contenders that are not installed are named with the reason. ``ncnn`` needs ``pip install pnnx``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._arguments import Model, chosen_models
from benchmarks._independent import made
from benchmarks.board.page import page
from benchmarks.board.race import CONTENDERS, race

SCHEMA = 1


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="race the contenders on this machine, and write their rows")
    run.add_argument("--models", default="super_resolution;mobilenet_v2;speech", help="zoo, files, real:NAME")
    run.add_argument("--contenders", default=",".join(CONTENDERS), help="default: %(default)s")
    run.add_argument("--rounds", type=int, default=21, help="default: %(default)s")
    run.add_argument("--zoo", type=Path, default=Path(".cache/zoo"), help="folder of the zoo")
    run.add_argument("-o", "--output", type=Path, help="default: board-DATE-MACHINE.json")
    run.set_defaults(command=_run)
    show = commands.add_parser("page", help="make the page")
    show.add_argument("files", type=Path, nargs="+", help="files of rows")
    show.add_argument("-o", "--output", type=Path, default=Path("board.html"), help="default: %(default)s")
    show.set_defaults(command=_page)
    given = parser.parse_args(arguments)
    return int(given.command(given))


def _run(given: argparse.Namespace) -> int:
    from collage.system.machine import this_machine

    names = given.contenders.split(",")
    if unknown := [name for name in names if name not in CONTENDERS]:
        raise SystemExit(f"no such contender: {unknown[0]}; there are {', '.join(CONTENDERS)}")
    machine, day = this_machine(), time.strftime("%Y-%m-%d", time.gmtime())
    facts = {"cpu": machine.cpu, "cores": machine.cores, "memory_bytes": machine.memory_bytes, "system": machine.system}
    output = given.output or Path(f"board-{day}-{machine.fingerprint[:8]}.json")
    found: dict[str, Any] = {"schema": SCHEMA, "date": day, "machine": facts, "models": []}
    for model in _models(given):
        print(model.name, file=sys.stderr, flush=True)
        rows = race(model.path.resolve(), _feeds(model), names, given.rounds)
        digest = hashlib.sha256(model.path.read_bytes()).hexdigest()
        found["models"].append({"name": model.name, "sha256": digest, "rows": rows})
        output.write_text(json.dumps(found, indent=1))  # After each model, so that nothing is lost.
    print(f"written to {output}")
    return 0


def _models(given: argparse.Namespace) -> list[Model]:
    from benchmarks.real_models import MODELS, fetched

    real = [name.removeprefix("real:") for name in given.models.split(";") if name.startswith("real:")]
    if unknown := [name for name in real if name not in MODELS]:
        raise SystemExit(f"no such real model: {unknown[0]}; there are {'; '.join(MODELS)}")
    others = ",".join(name for name in given.models.split(";") if not name.startswith("real:"))
    found = list(chosen_models(argparse.Namespace(models=others, zoo=given.zoo))) if others else []
    folder = given.zoo.resolve() / "real"
    return [*found, *(Model(f"real:{name}", fetched(MODELS[name], folder)) for name in real)]


def _feeds(model: Model) -> dict[str, np.ndarray]:
    from benchmarks.real_models import MODELS

    real = MODELS.get(model.name.removeprefix("real:"))
    return dict(real.feeds()) if model.name.startswith("real:") and real else made(str(model.path))


def _page(given: argparse.Namespace) -> int:
    given.output.write_text(page([json.loads(file.read_text()) for file in given.files]), encoding="utf-8")
    print(f"written to {given.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
