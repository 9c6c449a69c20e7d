"""Race artefacts under load against the vendors' own settings for throughput. Nothing of Collage runs the vendors here.

``python -m benchmarks.throughput model.onnx model.collage``. The artefact is called by as many threads as there are cores, by
``collage.load``. OpenVINO has its THROUGHPUT hint and a queue of requests. ONNX Runtime has a session of one thread for each
core. All compute in float32. Each lives in a process of its own, and they take turns in random order.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._independent import OURS, PAUSE_S, ROOT, made

Feeds = dict[str, np.ndarray]
Serve = Callable[[float], int]
CORES = len(os.sched_getaffinity(0))


def by_threads(runs: list[Callable[[], Any]]) -> Serve:
    """Serve with one thread for each function, which calls it again and again."""

    def serve(seconds: float) -> int:
        done, end = [0] * len(runs), time.perf_counter() + seconds

        def caller(number: int) -> None:
            while time.perf_counter() < end:
                runs[number]()
                done[number] += 1

        threads = [threading.Thread(target=caller, args=(number,)) for number in range(len(runs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(done)

    return serve


def onnxruntime_sessions(path: str, feeds: Feeds) -> Serve:
    import onnxruntime

    def session() -> Callable[[], Any]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        made = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda: made.run(None, feeds)

    return by_threads([session() for _ in range(CORES)])


def openvino_hint(path: str, feeds: Feeds) -> Serve:
    import openvino

    config = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
    queue = openvino.AsyncInferQueue(openvino.Core().compile_model(path, "CPU", config))

    def serve(seconds: float) -> int:
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            queue.start_async(feeds, share_inputs=True)
            done += 1
        queue.wait_all()
        return done

    return serve


def collage_artefact(path: str, feeds: Feeds) -> Serve:
    import collage

    executable = collage.load(path)
    executable.warm_up(feeds)
    return by_threads([lambda: executable.run(feeds)] * CORES)


TOOLS: dict[str, Callable[[str, Feeds], Serve]] = {
    "onnxruntime, a session for each core": onnxruntime_sessions,
    "openvino, THROUGHPUT": openvino_hint,
    OURS: collage_artefact,
}


def work(tool: str, path: str, inputs: str) -> None:
    """Serve for as many seconds as each line of the standard input says, and print the runs per second."""
    serve = TOOLS[tool](path, dict(np.load(inputs)))
    serve(0.1)
    print("ready", flush=True)
    for line in sys.stdin:
        before = time.perf_counter()
        done = serve(float(line))
        print(json.dumps(done / (time.perf_counter() - before)), flush=True)


def race(model: Path, artefact: Path, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return the runs per second of each contestant in each round."""
    rates: dict[str, list[float]] = {tool: [] for tool in TOOLS}
    order = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **made(str(model)))
        processes = {}
        for tool in TOOLS:
            command = [sys.executable, "-m", "benchmarks.throughput", "--work", tool]
            told = [str(artefact if tool == OURS else model), str(inputs)]
            processes[tool] = subprocess.Popen(
                [*command, *told], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
        try:
            for tool in [tool for tool, process in processes.items() if _line(process) != "ready"]:
                print(f"{tool} does not run")
                processes.pop(tool).kill()
            for _ in range(rounds):
                turns = list(processes)
                order.shuffle(turns)
                for tool in turns:
                    time.sleep(PAUSE_S)
                    process = processes[tool]
                    assert process.stdin is not None
                    process.stdin.write(f"{seconds}\n")
                    process.stdin.flush()
                    rates[tool].append(float(_line(process)))
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
    return rates


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def main() -> None:
    """Print runs per second, and the artefact's ratio to each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("artefact", type=Path)
    parser.add_argument("--work", choices=TOOLS, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    options = parser.parse_args()
    if options.work:
        return work(options.work, str(options.model), str(options.artefact))
    rates = race(options.model.resolve(), options.artefact.resolve(), options.rounds, options.seconds)
    from collage.cost.statistics import median_interval

    for tool, found in rates.items():
        if not found or not rates[OURS]:
            continue
        ratios = [ours / theirs for ours, theirs in zip(rates[OURS], found, strict=True)]
        low, high = median_interval(ratios).as_list()
        print(
            f"{tool:40} {statistics.median(found):10.1f} runs/s   collage over it {statistics.median(ratios):.3f} "
            f"({low:.3f} to {high:.3f})"
        )


if __name__ == "__main__":
    main()
