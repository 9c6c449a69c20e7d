"""A hunt for models that Collage computes otherwise than ONNX Runtime does without optimisations.

::

    python -m tests.fuzz --seed 1 --time-limit 10m                     # all kinds in turns
    python -m tests.fuzz --kinds random,single-op --targets openvino   # some kinds, for some targets
    python -m tests.fuzz --case random:17 --shrink --save found        # one model, made smaller and written down

Each model becomes the largest kernels that each target takes, and is run on adversarial inputs (``inputs.py``). What is bad
so, and every fourth model, is compiled for that target alone: what counts is that. The reference is the original file
in ONNX Runtime without optimisations, or in ONNX's reference implementation where that does not take it. A case is named by
kind and number. Exit code 1 if an output differs and the report of the compilation does not name it, a run fails, or a
process dies or hangs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx

from tests.fuzz import sequences
from tests.fuzz.children import Child, outcomes
from tests.fuzz.draft import Sample
from tests.fuzz.kinds import KINDS
from tests.fuzz.shrink import shrunk, text_of
from tests.fuzz.verdicts import BAD, CAUGHT, DISPUTED, EDGE, NAMED, REFUSED, RIGHT, SKIPPED, Outcome

DEFAULT_KINDS = tuple(KINDS)
DEFAULT_TARGETS = "onnxruntime,openvino,llvm"
_UNITS = {"s": 1, "m": 60, "h": 3600, "": 1}


def seconds_of(text: str) -> float:
    """Return the seconds of a time such as 90s or 10m.

    Raises:
        argparse.ArgumentTypeError: It is no time.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s or 10m")
    return float(found[1]) * _UNITS[found[2]]


def kinds_of(text: str) -> Sequence[str]:
    """Return kinds by commas.

    Raises:
        argparse.ArgumentTypeError: There is no such kind.
    """
    kinds = text.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: kinds are {', '.join(KINDS)}")
    return kinds


def case_of(text: str) -> tuple[str, int]:
    """Return kind and number of a case.

    Raises:
        argparse.ArgumentTypeError: It names none.
    """
    kind, _, number = text.partition(":")
    if kind not in KINDS or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no KIND:NUMBER")
    return kind, int(number)


def jobs(kinds: Sequence[str], seed: int, count: int | None) -> Iterator[tuple[str, int]]:
    """Yield one case of each kind, then another of each, until all have so many or come to their end."""
    numbers = {kind: itertools.islice(KINDS[kind].numbers(seed), count) for kind in kinds}
    while numbers:
        for kind in list(numbers):
            number = next(numbers[kind], None)
            if number is None:
                del numbers[kind]
            else:
                yield kind, number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    told = "; ".join(f"{name}: {kind.about}" for name, kind in KINDS.items())
    parser.add_argument("--kinds", type=kinds_of, default=DEFAULT_KINDS, help=f"by commas. {told}")
    parser.add_argument("--seed", type=int, default=0, help="models of another seed are others")
    parser.add_argument("--time-limit", type=seconds_of, default=600.0, help="such as 10m")
    parser.add_argument("--count", type=int, help="models of each kind; as many as there is time for without it")
    parser.add_argument("--targets", default=DEFAULT_TARGETS, help="by commas")
    parser.add_argument("--timeout", type=seconds_of, default=180.0, help="for each model")
    parser.add_argument("--stop-at", type=int, help="stop after so many faults")
    parser.add_argument("--case", type=case_of, metavar="KIND:NUMBER", help="run and print one model")
    parser.add_argument("--shrink", action="store_true", help="make models that fail smaller")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write models that fail here")
    parser.add_argument("--json", action="store_true", help="print every outcome as a line of JSON")
    options = parser.parse_args(arguments)
    os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    with tempfile.TemporaryDirectory() as folder:
        return hunt(options, Path(folder))


def hunt(options: argparse.Namespace, folder: Path) -> int:
    """Judge models, print what is not right and a summary, and return the exit code."""
    until = time.monotonic() + options.time_limit
    targets = options.targets.split(",")
    if options.case is not None:
        chosen: Iterator[tuple[str, int]] = iter([options.case])
    else:
        chosen = jobs(options.kinds, options.seed, options.count)
    found: list[Outcome] = []
    bad = 0
    for outcome in outcomes(chosen, targets, folder, options.timeout, until):
        found.append(outcome)
        show(outcome, options)
        if outcome.worst.how in BAD or options.case is not None:
            keep(outcome, options, folder, until)
        bad += outcome.worst.how in BAD
        if options.stop_at is not None and bad >= options.stop_at:
            break
    if not options.json:
        summarise(found)
    return int(bad > 0)


def show(outcome: Outcome, options: argparse.Namespace) -> None:
    """Print an outcome where that was asked for or it is not right."""
    if options.json:
        print(json.dumps(asdict(outcome)), flush=True)
        return
    for verdict in outcome.verdicts:
        loud = verdict.how in BAD or (options.case is not None)
        if loud or verdict.how in (NAMED,):
            how = verdict.how.upper() if verdict.how in BAD else verdict.how
            print(f"{outcome.kind}:{outcome.number} {how} on {verdict.target}: {verdict.reason}", flush=True)


def keep(outcome: Outcome, options: argparse.Namespace, folder: Path, until: float) -> None:
    """Shrink, print and write a model, as far as that was asked for."""
    if not (options.shrink or options.save or options.case):
        return
    home = folder / f"{outcome.kind}{outcome.number}"
    child = Child(options.targets.split(","), home)
    given = child.draw(outcome.kind, outcome.number, options.timeout)
    child.close()
    if given is None:
        return
    if options.shrink and outcome.worst.how in BAD:
        given = smaller(given, outcome, options, home, until)
    script = sequences.script_of(outcome.number, given.steps, options.targets) if given.steps else ""
    if options.case is not None:
        print(text_of(given))
    if script and not options.json:
        print(script, flush=True)
    if options.save is not None:
        place = options.save / f"{outcome.kind}-{outcome.number}"
        write(given, outcome, place)
        if script:
            (place / "replay.py").write_text(script)


def smaller(given: Sample, outcome: Outcome, options: argparse.Namespace, home: Path, until: float) -> Sample:
    """Return the smallest model found that goes as badly on the target that went worst."""
    worst = outcome.worst
    targets = [worst.target] if worst.target and "," not in worst.target else options.targets.split(",")
    children: list[Child] = []

    def is_as_bad(candidate: Sample) -> bool:
        if not children or not children[-1].alive:
            children.append(Child(targets, home / f"{len(children)}"))
        found = children[-1].judge(outcome.kind, outcome.number, options.timeout, candidate)
        return found.worst.how == worst.how

    try:
        return shrunk(given, is_as_bad, until)
    finally:
        for child in children:
            child.close()


def write(given: Sample, outcome: Outcome, folder: Path) -> None:
    """Write a model, its inputs as far as they are tensors of numbers, and what is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(given.model, folder / "model.onnx")
    plain = {name: x for name, x in given.feeds.items() if isinstance(x, np.ndarray) and x.dtype.kind in "fiub"}
    np.savez(folder / "inputs.npz", **plain)
    (folder / "outcome.json").write_text(json.dumps(asdict(outcome), indent=1) + "\n")


def summarise(found: Sequence[Outcome]) -> None:
    """Print counts of each kind, and reasons of refusals."""
    hows = (RIGHT, EDGE, CAUGHT, NAMED, DISPUTED, REFUSED, SKIPPED, *BAD)
    print(f"{'kind':<22}{'models':>7}" + "".join(f"{how:>10}" for how in hows))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in found:
        counts[outcome.kind][outcome.worst.how] += 1
    for kind, counted in counts.items():
        print(f"{kind:<22}{counted.total():>7}" + "".join(f"{counted[how]:>10}" for how in hows))
    reasons = Counter(
        re.sub(r"['\"`].*?['\"`]|\d+", "…", verdict.reason)[:110]
        for outcome in found
        for verdict in outcome.verdicts
        if verdict.how in (REFUSED, SKIPPED)
    )
    for reason, count in reasons.most_common(12):
        print(f"{count:>5}  {reason}")


if __name__ == "__main__":
    sys.exit(main())
