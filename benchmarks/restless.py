"""Compile many times on a machine with a load that comes and goes, and look for reports that contradict themselves.

Each compilation begins with an empty database. Every number of a report is computed again from the rounds that it holds. The
claimed gain over ONNX Runtime is then compared with an independent race of the artefact, at which nothing of Collage measures.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import _independent

import collage
from collage.cost.statistics import median_interval
from collage.report import gain_lines

_NEAR = 1e-9


def contradictions(report: dict[str, Any]) -> list[str]:
    """Return what in a report, as JSON of schema 2, does not follow from its rounds or contradicts what was returned."""
    rows, found = report["rows"], list[str]()
    (returned,) = (row for row in rows if row["verdict"] == "returned")
    own_rounds = returned["rounds_us"] or []
    for row in rows:
        if row is returned or row["ratio"] is None:
            continue
        ratio = row["ratio"]
        ratios = [a / b for a, b in zip(row["rounds_us"], own_rounds, strict=True)]
        low, high = median_interval(ratios).as_list()
        told = (ratio["value"], ratio["low"], ratio["high"])
        if any(abs(a - b) > _NEAR for a, b in zip(told, (statistics.median(ratios), low, high), strict=True)):
            found.append(f"{row['name']}: the ratio does not follow from the rounds")
        if row["kind"] != "baseline" and ratio["high"] < 1.0:
            found.append(f"{row['name']}: faster beyond doubt than what is returned")
        if row["kind"] == "single" and returned["kind"] == "mix" and ratio["low"] <= 1.0:
            found.append(f"{row['name']}: a mix is returned that is not faster beyond doubt")
        word = "slower" if ratio["low"] > 1.0 else "tie" if ratio["high"] >= 1.0 else "undecided"
        if row["kind"] != "baseline" and row["verdict"] != word:
            found.append(f"{row['name']}: called {row['verdict']}, but its interval says {word}")
    by_name = {row["name"]: row for row in rows}
    for gain in report["gains"]:
        if gain["ratio"] != by_name[gain["row"]]["ratio"]:
            found.append(f"the gain over {gain['over']} is not the ratio of its row")
    return found


def untold(executable: collage.Executable) -> list[str]:
    """Return the ratios of the first lines that are not those of the report's gains."""
    values = [gain.ratio for gain in executable.report.gains if gain.ratio is not None]
    said = re.findall(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)", "\n".join(gain_lines(executable.report)))
    numbers = [tuple(map(float, each)) for each in said]
    return [
        str(told)
        for told in numbers
        if not any(
            all(abs(a - b) <= 0.01 * b for a, b in zip(told, (v.value, v.low, v.high), strict=True)) for v in values
        )
    ]


def _spin(seed: int) -> None:
    draw = random.Random(seed)
    while True:
        until = time.monotonic() + draw.expovariate(1 / 3)
        while time.monotonic() < until:
            pass
        time.sleep(draw.expovariate(1 / 5))


@contextmanager
def restless(processes: int) -> Iterator[None]:
    """Keep processes alive that compute for some seconds, and sleep for some."""
    running = [multiprocessing.Process(target=_spin, args=(i,), daemon=True) for i in range(processes)]
    for process in running:
        process.start()
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.join()


def main() -> None:
    """Compile each model in turn until the number is reached; print a line for each, and a summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restless", description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--compiles", type=int, default=50)
    parser.add_argument("--time-budget", type=float, help="seconds of each")
    parser.add_argument("--load", type=int, default=2, help="processes of the load")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each independent race; 0 for none")
    parser.add_argument("--reports", type=Path, help="folder for the reports, as JSON")
    options = parser.parse_args()
    contradicting = agreeing = raced = late = 0
    for number in range(options.compiles):
        model = options.models[number % len(options.models)]
        with tempfile.TemporaryDirectory() as folder, restless(options.load):
            settings = collage.CompileOptions(db=f"{folder}/db", time_budget_s=options.time_budget)
            began = time.monotonic()
            executable = collage.compile(model, options=settings)
            took_s = time.monotonic() - began
            late += options.time_budget is not None and took_s > 1.1 * options.time_budget
            report = executable.report.as_json()
            wrong = [*contradictions(report), *untold(executable)]
            contradicting += bool(wrong)
            text = f"{number + 1:3} {model.parent.name:18} {took_s:5.1f} s  {'; '.join(wrong) or 'consistent'}"
            if options.reports is not None:
                options.reports.mkdir(parents=True, exist_ok=True)
                (options.reports / f"{number:02}-{model.parent.name}.json").write_text(json.dumps(report))
            gain = executable.report.gain("baseline")
            if options.rounds and gain is not None and gain.ratio is not None:
                artefact = Path(folder) / "m.collage"
                executable.save(artefact)
                found, ours = _against_onnxruntime(model, artefact, options.rounds)
                overlap = found[0] <= gain.ratio.high and gain.ratio.low <= found[1]
                raced, agreeing = raced + 1, agreeing + overlap
                claim = f"{gain.ratio.value:.2f} ({gain.ratio.low:.2f} to {gain.ratio.high:.2f})"
                text += f"; claimed {claim}, independently {ours:.2f} ({found[0]:.2f} to {found[1]:.2f})"
        print(text, flush=True)
    print(
        f"{options.compiles} compilations: {contradicting} contradict themselves, {late} over the time budget by a tenth"
    )
    print(f"{agreeing} of {raced} claims overlap with an independent race")


def _against_onnxruntime(model: Path, artefact: Path, rounds: int) -> tuple[list[float], float]:
    """Return the interval and the value of ONNX Runtime's time over the artefact's."""
    seconds: dict[str, list[float]] = {tool: [] for tool in ("onnxruntime", _independent.OURS)}
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **_independent.made(str(model)))
        paths = {"onnxruntime": str(model), _independent.OURS: str(artefact)}
        _independent.run_leg(paths, inputs, rounds, seconds)
    ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
    return median_interval(ratios).as_list(), statistics.median(ratios)


if __name__ == "__main__":
    main()
