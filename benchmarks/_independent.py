"""Artefacts against toolchains used directly: nothing of Collage times, loads or feeds the toolchains here.

::

    python benchmarks/independent.py MODEL.onnx ARTEFACT [MODEL.onnx ARTEFACT ...] [--legs 3] [--rounds 9] [--json FILE]

ONNX Runtime and OpenVINO run the original file with their vendors' defaults (float32 computed as float32), the artefact runs
by ``collage.load``. Each lives in a process of its own; within a round they take turns in random order, and every leg starts
new processes. Prints medians in milliseconds, the best of the two over the artefact, and the 95 % interval of that ratio.
Exit code 1 if an interval lies below 0.98: slower than the best single toolchain by more than two hundredths, beyond doubt.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ENOUGH = 0.98
BLOCK_S = 0.12
PAUSE_S = 0.1
"""Before each turn: ONNX Runtime's threads spin for 50 ms after a run, which must not slow down whoever comes next."""
OURS = "collage"
TOOLS = ("onnxruntime", "openvino", OURS)


def serve(tool: str, path: str, inputs: str) -> None:
    """The child: builds a runner, and times as many runs as each line of its input says."""
    feeds = dict(np.load(inputs))
    run = {"onnxruntime": by_onnxruntime, "openvino": by_openvino, OURS: by_collage}[tool](path, feeds)
    for _ in range(3):
        run()
    print("ready", flush=True)
    for line in sys.stdin:
        run()
        samples = []
        for _ in range(int(line)):
            before = time.perf_counter()
            run()
            samples.append(time.perf_counter() - before)
        print(json.dumps(samples), flush=True)


def by_onnxruntime(path: str, feeds: dict[str, np.ndarray]) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    return lambda: session.run(None, feeds)


def by_openvino(path: str, feeds: dict[str, np.ndarray]) -> Any:
    import openvino

    model = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda: model(feeds)


def by_collage(path: str, feeds: dict[str, np.ndarray]) -> Any:
    import collage

    executable = collage.load(path)
    return lambda: executable.run(feeds)


def made(model: str) -> dict[str, np.ndarray]:
    """Inputs of a model: ``inputs.npz`` beside it; else normal numbers, and indices below a hundred; symbolic lengths are 1."""
    import onnxruntime

    ports, beside = onnxruntime.InferenceSession(model).get_inputs(), Path(model).with_name("inputs.npz")
    if beside.exists() and {port.name for port in ports} == set(stored := dict(np.load(beside))):
        return stored
    random_ = np.random.default_rng(0)
    feeds = {}
    for port in ports:
        shape = [size if isinstance(size, int) and size > 0 else 1 for size in port.shape]
        if "float" in port.type:
            dtype = np.float16 if "16" in port.type else np.float64 if "double" in port.type else np.float32
            feeds[port.name] = random_.standard_normal(shape).astype(dtype)
        else:
            name = port.type.removeprefix("tensor(").removesuffix(")")
            feeds[port.name] = random_.integers(0, 2 if name == "bool" else 100, shape).astype(name)
    return feeds


def race(model: str, artefact: str, legs: int, rounds: int) -> dict[str, Any]:
    """Medians of every round, by tool."""
    medians: dict[str, list[float]] = {tool: [] for tool in TOOLS}
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **made(model))
        for _ in range(legs):
            run_leg({tool: artefact if tool == OURS else model for tool in TOOLS}, inputs, rounds, medians)
    finished = {tool: np.array(times) for tool, times in medians.items() if len(times) == legs * rounds}
    if OURS not in finished:
        sys.exit(
            f"{artefact} did not run {model} on the inputs that were made up here; see what `collage run` says of it"
        )
    singles = [tool for tool in finished if tool != OURS]
    best = min(singles, key=lambda tool: float(np.median(finished[tool])))
    from collage.cost.statistics import median_interval

    ratios = finished[best] / finished[OURS]
    interval = median_interval(ratios.tolist())
    return {
        "model": model,
        "medians_ms": {tool: round(float(np.median(times)) * 1e3, 3) for tool, times in finished.items()},
        "best_single": best,
        "ratio": float(np.median(ratios)),
        "interval": interval.as_list(),
    }


def run_leg(paths: dict[str, str], inputs: Path, rounds: int, medians: dict[str, list[float]]) -> None:
    """Starts a process for each tool and has them take turns."""
    children = {tool: start(tool, path, inputs) for tool, path in paths.items()}
    alive = {tool: child for tool, child in children.items() if answer(child).strip() == "ready"}
    first = {tool: float(np.median(timed(child, 2))) for tool, child in alive.items()}
    for _ in range(rounds):
        for tool in random.sample(list(alive), len(alive)):
            block = max(2, int(BLOCK_S / first[tool]))
            time.sleep(PAUSE_S)
            medians[tool].append(float(np.median(timed(alive[tool], block))))
    for child in children.values():
        child.kill()
        child.wait()


def start(tool: str, path: str, inputs: Path) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--serve", tool, path, str(inputs)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def answer(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def timed(child: subprocess.Popen[str], runs: int) -> list[float]:
    assert child.stdin is not None
    child.stdin.write(f"{runs}\n")
    child.stdin.flush()
    return list(json.loads(answer(child)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="MODEL ARTEFACT")
    parser.add_argument("--legs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for model, artefact in zip(arguments.pairs[::2], arguments.pairs[1::2], strict=True):
        row = race(model, artefact, arguments.legs, arguments.rounds)
        low, high = row["interval"]
        print(f"{Path(model).stem:24} {row['medians_ms']} {row['ratio']:.3f} [{low:.3f}, {high:.3f}]", flush=True)
        rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return int(any(row["interval"][1] < ENOUGH for row in rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3], sys.argv[4])
    else:
        sys.exit(main())
