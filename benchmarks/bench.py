"""Compare Collage with every single toolchain: by this the project judges itself.

::

    python -m benchmarks.bench --models resnet50,speech           # timings are kept: a second run measures what is new
    python -m benchmarks.bench --models paper --table             # the five models of the Collage paper, as a table in Markdown
    python -m benchmarks.bench --device cuda                      # on a machine with an NVIDIA GPU
    python -m benchmarks.bench --independent --models m.onnx      # no line of Collage on the toolchains' side
    python -m benchmarks.bench --independent --repeat 10          # ten compilations from nothing of each model

Compiles each model, and races the artefact in interleaved rounds. The contestants are the single toolchains with their
vendors' defaults, and each toolchain's greedy ``partition_for`` where it takes a model only in parts. Prints medians,
intervals, the ratio best single / ours with its 95 % interval, the plan's kernels, their additive error, the number of
workload keys that were measured, and the geometric mean of the ratios. Exit code 1 if an interval lies below 0.98.

``--independent`` races against ONNX Runtime and OpenVINO in processes that Collage neither times nor loads nor feeds.
``--repeat N`` compiles each model N times, each time on an empty database. ``--artefacts`` compiles nothing. On ``cuda`` the
menu is every target of the device that can be used, and inputs and outputs are on the host for all.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _independent
from benchmarks._arguments import MENU, Model, chosen_models, make_parser

import collage.benchmark

ENOUGH = 0.98
QUICK = "mobilenet_v2,super_resolution,ocr"
"""Models that fit into ten minutes of a borrowed device."""


def cuda_menu() -> list[str]:
    """Return the usable targets of the device, and print what each other one misses.

    Raises:
        SystemExit: There is no device, or nothing can use it.
    """
    from collage.inspection import describe_targets
    from collage_cuda import cuda_support

    gpu = cuda_support.find_gpu()
    if isinstance(gpu, cuda_support.Absence):
        print(f"no device: {gpu.reason}; {gpu.remedy}", file=sys.stderr)
        raise SystemExit(2)
    print(gpu)
    menu = []
    for row in (target for toolchain in describe_targets() for target in toolchain["by_target"]):
        if row["target"].split()[0] != "cuda":
            continue
        print(f"  {row['target']:32} " + ("usable" if row["available"] else f"{row['reason']}; {row['remedy']}"))
        if row["available"]:
            menu.append(row["target"])
    if not menu:
        print("none of them can be used", file=sys.stderr)
        raise SystemExit(2)
    return menu


def compile_model(model: Model, artefact: Path, menu: Sequence[str], database: str | None) -> dict[str, Any]:
    """Compile a model in a process of its own: seconds and report, or an error."""
    command = [sys.executable, "-c", "import sys; from collage.cli import main; sys.exit(main())"]
    arguments = ["compile", str(model.path), "-o", str(artefact), "--json"]
    arguments += [word for target in menu for word in ("-t", target)]
    arguments += ["--db", database] if database else []
    started = time.monotonic()
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        return {
            "error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        }
    return {"compile_s": time.monotonic() - started, "report": json.loads(done.stdout)}


def race(model: Model, artefact: Path, menu: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Race an artefact: rows of name, median, p10 and p90 in µs, the ratio best single / ours, and its interval."""
    if options.independent:
        return _independent.race(model.path, artefact, options.legs, options.rounds)
    table = collage.benchmark.bench(artefact, menu, rounds=options.rounds)
    return {"ratio": table["speedup_vs_best_single"], "interval": table["speedup_interval"], "rows": table["rows"]}


def results(options: argparse.Namespace, menu: Sequence[str], scratch: Path) -> list[dict[str, Any]]:
    """Compile and race all models, and print a line for each time."""
    rows: list[dict[str, Any]] = []
    artefacts = options.artefacts.split(",") if options.artefacts else ()
    for number, model in enumerate(chosen_models(options)):
        for turn in range(options.repeat or 1):
            name = f"{number}.{turn}"
            if artefacts:
                artefact, row = Path(artefacts[number]).resolve(), dict[str, Any]()
            else:
                artefact = scratch / f"{name}.collage"
                database = str(scratch / f"{name}.sqlite") if options.repeat else options.db
                row = compile_model(model, artefact, menu, database)
            if "error" not in row:
                row |= race(model, artefact, menu, options)
            rows.append({"model": model.name, "turn": turn} | row)
            print(line(rows[-1]), flush=True)
    return rows


def line(row: Mapping[str, Any]) -> str:
    """Return the lines of one compilation."""
    if "error" in row:
        return f"{row['model']:17} {row['error']}"
    times = "  ".join(
        f"{r['name']} {r['median_us'] / 1e3:.2f} [{r['p10_us'] / 1e3:.2f} {r['p90_us'] / 1e3:.2f}]"
        if r["median_us"]
        else f"{r['name']} {r['status']}"
        for r in row["rows"]
    )
    ratio = f"{row['ratio']:.3f} [{row['interval'][0]:.3f} {row['interval'][1]:.3f}]" if row["ratio"] else "-"
    if "report" not in row:
        return f"{row['model']:17} {'':>8}  ratio {ratio}  {times}"
    report = row["report"]
    greedy = "".join(
        f"  {r['name']} {r['measured_us']['median'] / 1e3:.2f}"
        for r in report["rows"]
        if r["name"].startswith("partition_for") and r["measured_us"]
    )
    targets = Counter(kernel["target"] for kernel in report["kernels"])
    kernels = ", ".join(f"{count} {target}" for target, count in sorted(targets.items()))
    keys, error = report["search"], report["additive_error"]
    about = f"{report['winner']}; kernels: {kernels}; {keys['measured']} of {keys['keys']} keys measured"
    about += f"; additive error {error:+.1%}" if error is not None and len(report["kernels"]) > 1 else ""
    return f"{row['model']:17} {row['compile_s']:7.1f}s  ratio {ratio}  {times}{greedy}\n{'':28}{about}"


def in_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of plans and ratios for a document."""
    lines = ["| model | plan | ms | times as fast as the best single toolchain |", "|---|---|---|---|"]
    for row in rows:
        if "error" in row or "report" not in row or not row["ratio"]:
            lines.append(f"| {row['model']} | {row.get('error', 'not compared')} | | |")
            continue
        targets = Counter(kernel["target"] for kernel in row["report"]["kernels"])
        short = {target: target.rpartition("=")[2].split()[0] for target in targets}
        plan = ", ".join(f"{count} x {short[target]}" for target, count in targets.most_common())
        ours = next((r["median_us"] for r in row["rows"] if r["name"] == "collage" and r["median_us"]), None)
        low, high = row["interval"]
        time = "" if ours is None else f"{ours / 1e3:.2f}"
        lines.append(f"| {row['model']} | {plan} | {time} | {row['ratio']:.3f} ({low:.3f} to {high:.3f}) |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script."""
    parser = make_parser(__doc__, models="", targets=MENU, device=True, rounds=15, json=True)
    parser.add_argument("--db", help="timing database; the user's own by default")
    parser.add_argument("--independent", action="store_true", help="race against the vendors' own interfaces")
    parser.add_argument(
        "--legs", type=int, default=3, help="with --independent: how often all processes are started anew"
    )
    parser.add_argument("--repeat", type=int, metavar="N", help="compile each model N times, each on an empty database")
    parser.add_argument("--table", action="store_true", help="end with a table in Markdown")
    parser.add_argument("--artefacts", metavar="A,B", help="race these, in the order of the models")
    options = parser.parse_args(arguments)
    menu = options.targets.split(",")
    if options.independent and options.device != "cpu":
        parser.error("--independent is for the CPU")
    if options.repeat is not None and (options.repeat < 1 or options.db or options.artefacts):
        parser.error("--repeat takes a positive number, and neither --db nor --artefacts")
    if options.artefacts and options.artefacts.count(",") != options.models.count(","):
        parser.error("--artefacts takes one artefact for each of --models")
    if options.device == "cuda":
        menu = cuda_menu() if options.targets == ",".join(MENU) else menu
        options.models = options.models or QUICK
    print(f"{'model':17} {'compile':>8}  ours and theirs in ms, [p10 p90]; ratio = best single / ours")
    with tempfile.TemporaryDirectory(prefix="collage-bench-") as scratch:
        rows = results(options, menu, Path(scratch))
    ratios = [row["ratio"] for row in rows if row.get("ratio")]
    slower = sum(row["interval"][1] < ENOUGH for row in rows if row.get("ratio"))
    if ratios:
        print(f"\ngeometric mean of {len(ratios)} ratios: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")
        print(f"{slower} slower than the best single toolchain beyond doubt")
    if options.table:
        print(f"\n{in_markdown(rows)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
