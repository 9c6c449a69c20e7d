"""Us against every single toolchain, on the model zoo: how the project judges itself.

::

    python benchmarks/bench.py --models resnet50,speech

Compiles each model (timings are kept, so that a second run measures only what is new) and then races the artefact, in one
interleaved run, against each single toolchain with its vendor's defaults and against each toolchain's greedy
``partition_for`` where it takes a model only in parts. Prints medians, intervals, the ratio to the best single, and the
geometric mean.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # The zoo is no part of the installed package.

from benchmarks.zoo import CATALOGUE, build, find  # noqa: E402

import collage  # noqa: E402
from collage.benchmark import bench  # noqa: E402

MENU = ("llvm", "onnxruntime", "openvino")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description="Collage against every single toolchain.")
    parser.add_argument("--zoo", type=Path, default=ROOT / ".cache" / "zoo", help="folder of the zoo")
    parser.add_argument("--models", help="some of them, separated by commas; all without it")
    parser.add_argument("--menu", default=",".join(MENU), help="targets, separated by commas")
    parser.add_argument("--db", help="timing database; the user's own by default")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args(arguments)
    entries = find(options.models.split(",")) if options.models else CATALOGUE
    results = []
    print(f"{'model':17} {'compile':>8}  ours and theirs in ms, [p10 p90]; ratio = best single / ours")
    for entry in entries:
        built, _ = build(entry, options.zoo)
        results.append(race(built.name, options))
        print(line(results[-1]), flush=True)
    ratios = [row["ratio"] for row in results if row.get("ratio")]
    if ratios:
        print(f"\ngeometric mean of {len(ratios)} ratios: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def race(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Compiles one model of the zoo and races it."""
    menu = options.menu.split(",")
    started = time.monotonic()
    try:
        settings = collage.CompileOptions(db=options.db)
        executable = collage.compile(options.zoo / name / "model.onnx", menu, options=settings)
        artefact = executable.save(options.zoo / name / "model.collage")
    except collage.CollageError as error:
        return {"model": name, "error": str(error)}
    seconds = time.monotonic() - started
    report = dict(executable.report)
    del executable
    table = bench(artefact, menu, rounds=options.rounds)
    return {
        "model": name,
        "compile_s": seconds,
        "ratio": table["speedup_vs_best_single"],
        "interval": table["speedup_interval"],
        "rows": table["rows"],
        "report": report,
    }


def line(row: Mapping[str, Any]) -> str:
    """One line of the table."""
    if "error" in row:
        return f"{row['model']:17} {row['error']}"
    times = "  ".join(
        f"{r['name']} {r['median_us'] / 1e3:.2f} [{r['p10_us'] / 1e3:.2f} {r['p90_us'] / 1e3:.2f}]"
        if r["median_us"]
        else f"{r['name']} {r['status']}"
        for r in row["rows"]
    )
    ratio = f"{row['ratio']:.3f} [{row['interval'][0]:.3f} {row['interval'][1]:.3f}]" if row["ratio"] else "-"
    report = row["report"]
    greedy = "  ".join(
        f"{f['name']} {f['measured_us']['median'] / 1e3:.2f}"
        for f in report["finalists"]
        if f["name"].startswith("partition_for") and f["measured_us"]
    )
    error = report["additive_error"]
    about = f"{report['winner']}, {len(report['kernels'])} kernels"
    about += f", additive error {error:+.1%}" if error is not None else ""
    return f"{row['model']:17} {row['compile_s']:7.1f}s  ratio {ratio}  {times}  {greedy}\n{'':28}{about}"


if __name__ == "__main__":
    main()
