"""Score predictions of gains and times on models that they learned nothing from.

::

    python -m benchmarks.predict --collect [--models resnet50,bert] [--budget 100] --db zoo.sqlite
    python -m benchmarks.predict --db zoo.sqlite [--write]
    python -m benchmarks.predict

``--collect`` compiles the models into a database first. With ``--db``, a predictor learns from it, and ``--write`` makes it the
shipped one. Without ``--db``, the shipped one is scored. Each row is a model beside the prediction by one that learned from all
others: the gain with its range, the fastest toolchain alone, and the seconds of the compilation. The last lines say how often the
truth was in the range, and how large the median errors are.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks._arguments import chosen_models, make_parser

import collage
from collage.database import Database
from collage.prediction import Predictor, default_predictor, train, usual
from collage.system.codec import to_json

SHIPPED = Path(collage.__file__).parent / "prediction" / "default.json"


def print_score(predictor: Predictor) -> None:
    """Print each model beside its prediction, and what that comes to."""
    print(f"learned from {predictor.timings} timings by: {predictor.command}")
    print(f"{'model':28} {'gain':>6} {'expected':>22}  {'ms':>8} {'predicted':>9}  {'fastest':10} {'s':>5}")
    right, walls = 0, [held.wall_s for held in predictor.held if held.wall_s is not None]
    for held in predictor.held:
        expected = usual([other.gain for other in predictor.held if other is not held])
        fastest = min(held.singles_s, key=lambda name: held.singles_s[name][1])
        right += fastest == min(held.singles_s, key=lambda name: held.singles_s[name][0])
        predicted_s, true_s = held.singles_s[fastest]
        told = "" if expected is None else f"{expected.expected:.2f} ({expected.low:.2f} to {expected.high:.2f})"
        missed = " " if expected is not None and held.gain in expected else "*"
        wall = "" if held.wall_s is None else f"{held.wall_s:5.0f}"
        print(
            f"{held.model.removesuffix('/model.onnx')[-28:]:28} {held.gain:6.2f} {told:>22}{missed} {true_s * 1e3:8.2f} "
            f"{predicted_s * 1e3:9.2f}  {fastest.split('=')[-1][:10]:10} {wall}"
        )
    inside, of = predictor.score()
    print(f"the true gain was in the range of the others for {inside} of {of} models (* if not)")
    print(f"the fastest toolchain was predicted for {right} of {of} models")
    pairs = [pair for held in predictor.held for pair in held.singles_s.values()]
    print(
        f"seconds of a toolchain alone: median error {median_error(pairs):.2f}x, of {len(pairs)}; "
        f"a constant: {constant_error([true for _, true in pairs]):.2f}x"
    )
    for name, outcomes in (("gain", [held.gain for held in predictor.held]), ("seconds of a compilation", walls)):
        print(
            f"{name}, if every model were the median: median error {constant_error(outcomes):.2f}x, of {len(outcomes)}"
        )


def median_error(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the factor by which half of the predictions are off at most."""
    return math.exp(statistics.median(abs(math.log(true / predicted)) for predicted, true in pairs))


def constant_error(outcomes: Sequence[float]) -> float:
    """Return the same if every prediction were the median."""
    middle = statistics.median(outcomes)
    return median_error([(middle, true) for true in outcomes])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the script."""
    parser = make_parser(__doc__, models="")
    parser.add_argument("--db", help="database to learn from; without it, the shipped predictor is scored")
    parser.add_argument("--collect", action="store_true", help="compile the models into the database first")
    parser.add_argument("--budget", type=float, help="seconds for each of these compilations (default: no limit)")
    parser.add_argument("--write", action="store_true", help="make the predictor the shipped one")
    options = parser.parse_args(arguments)
    if options.db is None:
        if options.collect or options.write:
            parser.error("--collect and --write need --db")
        return print_score(default_predictor())
    for model in chosen_models(options) if options.collect else ():
        print(f"compiling {model.name}", flush=True)
        try:
            collage.compile(model.path, db=options.db, time_budget_s=options.budget, remeasure=True)
        except collage.CollageError as error:
            print(f"{model.name}: {error}")
    with Database(options.db) as database:
        predictor = train(database, "python -m benchmarks.predict --db FILE --write")
    if options.write:
        SHIPPED.write_text(json.dumps(to_json(predictor), separators=(",", ":")) + "\n", encoding="utf-8")
    print_score(predictor)


if __name__ == "__main__":
    main()
