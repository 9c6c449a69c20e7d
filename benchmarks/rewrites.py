"""Gains of rewrites that ``compile`` leaves out by default: whole models prepared with each of them and without, in turns.

A model that a rewrite leaves as it is has no row. A ratio above 1 says how many times as fast the model is with the rewrite. It
counts as a gain, or as a loss, if its whole interval is on one side of 1.

::

    python -m benchmarks.rewrites [--models A,B] [--targets T,...] [--rounds N] [--passes "prepare, MergeParallel, prepare"]
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from benchmarks._arguments import chosen_models, make_parser

from collage import CollageError
from collage.artefact_comparison import LEAST_ROUNDS, compare_artefacts
from collage.frontend import read_model
from collage.testing import executable_of
from collage.transform import parse_pipeline

WITHOUT = "prepare"
REWRITES = (
    "prepare, FoldScaleAxis",
    "prepare, MergeParallel, prepare",
    "prepare, AlterOpLayout",
    "prepare, RecogniseOperators",
    "prepare, RaiseOpset, RecogniseOperators",
    "prepare, RaiseOpset, RecogniseOperators, RecogniseAttention",
)


def main() -> int:
    parser = make_parser(__doc__, models="", targets=("llvm", "onnxruntime", "openvino"), rounds=12)
    parser.add_argument("--passes", action="append", help="a pipeline to measure; may be given several times")
    given = parser.parse_args()
    if given.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds: no interval follows from fewer than {LEAST_ROUNDS}")
    verdicts: Counter[tuple[str, str]] = Counter()
    print("| model | passes | toolchain | without, ms | with, ms | ratio | |\n|---|---|---|---|---|---|---|")
    for model in chosen_models(given):
        before = written(model.path, WITHOUT)
        for passes in given.passes or REWRITES:
            try:
                if written(model.path, passes) == before:
                    continue
            except CollageError as error:
                print(f"| {model.name} | {passes} | refused: {str(error)[:80]} |||||", flush=True)
                continue
            for target in given.targets.split(","):
                row, verdict = measured(model.path, passes, target, given.rounds)
                verdicts[passes, verdict] += 1
                print(f"| {model.name} | {passes} | {target} | {row} | {verdict} |", flush=True)
    print("\n| passes | gains | losses | undecided | refused |\n|---|---|---|---|---|")
    for passes in given.passes or REWRITES:
        counts = " | ".join(str(verdicts[passes, each]) for each in ("gain", "loss", "undecided", "refused"))
        print(f"| {passes} | {counts} |")
    return 0


def written(path: Path, passes: str) -> Counter[str]:
    """Return the operators of a model that was prepared: rewrites that are measured here change some."""
    return Counter(f"{node.domain}.{node.op_type}" for node in parse_pipeline(passes)(read_model(path)).graph)


def measured(path: Path, passes: str, target: str, rounds: int) -> tuple[str, str]:
    """Return the cells of one comparison, and if the rewrite gains."""
    with tempfile.TemporaryDirectory() as scratch:
        made = [Path(scratch) / name for name in ("without.collage", "with.collage")]
        try:
            for artefact, pipeline in zip(made, (WITHOUT, passes), strict=True):
                executable_of(path, target, passes=pipeline).save(artefact)
            found = compare_artefacts(*made, rounds=rounds)
        except CollageError as error:
            return f"{str(error)[:80]} ||", "refused"
    if found["speedup"] is None:
        return "one of both failed ||", "refused"
    low, high = found["speedup_interval"]
    without, with_ = (f"{row['median_us'] / 1e3:.3f}" for row in found["rows"])
    verdict = "gain" if low > 1 else "loss" if high < 1 else "undecided"
    return f"{without} | {with_} | {found['speedup']:.3f} ({low:.3f} to {high:.3f})", verdict


if __name__ == "__main__":
    raise SystemExit(main())
