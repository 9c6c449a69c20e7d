"""Race artefacts against toolchains that are used directly: nothing of Collage times, loads or feeds the toolchains here.

ONNX Runtime and OpenVINO run the original file with their vendors' defaults (float32 computed as float32), the artefact runs
by ``collage.load``. Each lives in a process of its own. Within a round they take turns in random order, and every leg starts
new processes.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
BLOCK_S = 0.12
PAUSE_S = 0.1
"""Before each turn: ONNX Runtime's threads spin for 50 ms after a run, which must not slow down whoever comes next."""
OURS = "collage"
TOOLS = ("onnxruntime", "openvino", OURS)


def serve(tool: str, path: str, inputs: str) -> None:
    """Build a runner, and time as many runs as each line of the standard input says."""
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


def race(model: Path, artefact: Path, legs: int, rounds: int) -> dict[str, Any]:
    """Race one artefact: rows of name, median, p10 and p90 in µs, the ratio best single / ours, and its 95 % interval."""
    medians: dict[str, list[float]] = {tool: [] for tool in TOOLS}
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **made(str(model)))
        for _ in range(legs):
            run_leg({tool: str(artefact if tool == OURS else model) for tool in TOOLS}, inputs, rounds, medians)
    finished = {tool: np.array(times) for tool, times in medians.items() if len(times) == legs * rounds}
    singles = [tool for tool in finished if tool != OURS]
    if OURS not in finished or not singles:
        missing = ", ".join(tool for tool in TOOLS if tool not in finished)
        return {"error": f"did not run {model} on the inputs that were made up here: {missing}"}
    best = min(singles, key=lambda tool: float(np.median(finished[tool])))
    from collage.cost.statistics import median_interval

    ratios = finished[best] / finished[OURS]
    interval = median_interval(ratios.tolist())
    return {
        "rows": [_row(tool, finished.get(tool)) for tool in (OURS, *(tool for tool in TOOLS if tool != OURS))],
        "best_single": best,
        "ratio": float(np.median(ratios)),
        "interval": interval.as_list(),
    }


def _row(tool: str, seconds: np.ndarray | None) -> dict[str, Any]:
    if seconds is None:
        return {"name": tool, "status": "did not run", "median_us": None}
    median, p10, p90 = (float(value) * 1e6 for value in np.percentile(seconds, (50, 10, 90)))
    return {"name": tool, "status": "ok", "median_us": median, "p10_us": p10, "p90_us": p90}


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
    # Several artefacts have names such as "collage, fixed".
    command = [sys.executable, "-m", "benchmarks._independent", tool.partition(",")[0], path, str(inputs)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=ROOT, text=True, **pipes)


def answer(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def timed(child: subprocess.Popen[str], runs: int) -> list[float]:
    assert child.stdin is not None
    child.stdin.write(f"{runs}\n")
    child.stdin.flush()
    return list(json.loads(answer(child)))


if __name__ == "__main__":
    serve(*sys.argv[1:])
