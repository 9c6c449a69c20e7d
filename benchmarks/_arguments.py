"""Arguments that benchmarks share: one way to say which models, targets, device, threads and rounds.

``--models A,B`` takes names of the zoo, which are built when they are first used, and ONNX files. ``paper`` stands for the five
models that the Collage paper measures.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.zoo import CATALOGUE, build, find

ROOT = Path(__file__).resolve().parents[1]
MENU = ("llvm", "onnxruntime", "openvino")
DEVICES = ("cpu", "cuda")
PAPER = "paper"


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a benchmark is run on.

    Attributes:
        name: Name in the zoo, or one after the file.
        path: ONNX file.
    """

    name: str
    path: Path


def make_parser(
    documentation: str | None,
    *,
    models: str | None = None,
    without_models: str = "all of the zoo",
    targets: Sequence[str] = (),
    device: bool = False,
    threads: int | None = None,
    rounds: int | None = None,
    json: bool = False,
) -> argparse.ArgumentParser:
    """Return a parser of the shared arguments that a benchmark takes.

    Args:
        documentation: Docstring of the script, which ``--help`` prints.
        models: Add ``--models`` with this default. The empty string stands for ``without_models``.
        without_models: Words for the models of a run without ``--models``.
        targets: Add ``--targets`` with this default.
        device: Add ``--device``.
        threads: Add ``--threads`` with this default. 0 is the number of processors that this process may use.
        rounds: Add ``--rounds`` with this default.
        json: Add ``--json``.
    """
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    if models is not None:
        default = models or without_models
        parser.add_argument(
            "--models",
            default=models,
            metavar="A,B",
            help=f"names in the zoo, ONNX files, or paper for the five of the Collage paper (default: {default})",
        )
        parser.add_argument("--zoo", type=Path, default=ROOT / ".cache" / "zoo", help="folder of the zoo")
    if targets:
        parser.add_argument(
            "--targets", default=",".join(targets), metavar="T,T", help="the menu (default: %(default)s)"
        )
    if device:
        parser.add_argument("--device", choices=DEVICES, default="cpu", help="default: %(default)s")
    if threads is not None:
        default_threads = threads or len(os.sched_getaffinity(0))
        parser.add_argument("--threads", type=int, default=default_threads, help="default: %(default)s")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help="default: %(default)s")
    if json:
        parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    return parser


def chosen_models(options: argparse.Namespace) -> Iterator[Model]:
    """Yield the models of ``--models``, each built when its turn comes.

    Raises:
        SystemExit: A name is neither in the zoo nor an ONNX file. Raised before anything is built.
    """
    given = options.models.split(",") if options.models else [entry.name for entry in CATALOGUE]
    papers = [entry.name for entry in CATALOGUE if entry.paper]
    names = [name for each in given for name in (papers if each == PAPER else [each])]
    known = {entry.name for entry in CATALOGUE}
    for name in names:
        if name not in known and not (name.endswith(".onnx") and Path(name).is_file()):
            raise SystemExit(f"no such model: {name}; python -m benchmarks.build_zoo --list names the zoo")
    return (_model(name, options.zoo) for name in names)


def _model(name: str, zoo: Path) -> Model:
    if name.endswith(".onnx"):
        path = Path(name).resolve()
        return Model(path.parent.name if path.stem == "model" else path.stem, path)
    (entry,) = find([name])
    build(entry, zoo)
    return Model(name, zoo.resolve() / name / "model.onnx")
