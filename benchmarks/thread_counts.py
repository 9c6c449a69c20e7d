"""Gains of one thread over all: whole models on each toolchain, with one thread and with its default, in turns.

Justifies the two thresholds of ``collage.compiler.thread_counts``: up to which time of the whole model one thread is tried, and
how much slower it may be for its kernels to stay on the menu. A ratio above 1 says how many times as fast one thread is.

::

    python -m benchmarks.thread_counts [--models A,B] [--targets T,...] [--rounds N]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks._arguments import chosen_models, make_parser

from collage import CollageError
from collage.artefact_comparison import compare_artefacts
from collage.testing import executable_of


def main() -> int:
    parser = make_parser(__doc__, models="", targets=("onnxruntime", "openvino"), rounds=12)
    given = parser.parse_args()
    print("| model | toolchain | all threads, ms | one thread, ms | one is faster by |\n|---|---|---|---|---|")
    for model in chosen_models(given):
        for target in given.targets.split(","):
            with tempfile.TemporaryDirectory() as scratch:
                made = [Path(scratch) / name for name in ("all.collage", "one.collage")]
                try:
                    for path, options in zip(made, ("", " -threads=1"), strict=True):
                        executable_of(model.path, f"{target}{options}").save(path)
                    found = compare_artefacts(*made, rounds=given.rounds)
                except CollageError as error:
                    print(f"| {model.name} | {target} | refused: {str(error)[:80]} |||", flush=True)
                    continue
            times = [f"{row['median_us'] / 1e3:.3f}" for row in found["rows"]]
            low, high = found["speedup_interval"]
            ratio = f"{found['speedup']:.2f} ({low:.2f} to {high:.2f})"
            print(f"| {model.name} | {target} | {times[0]} | {times[1]} | {ratio} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
