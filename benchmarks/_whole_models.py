"""Whole models of the zoo through Collage against the vendors' own interfaces, each in a process of its own.

The model is one kernel through Collage: prepared and compiled in one process, loaded in another, to be alone there. The
vendor's own interfaces get the model's own file, with the vendor's defaults, at the same number of threads and in float32. The
first of them runs once more, which shows how much the machine itself differs from itself. All have the same inputs, at addresses
that suit vectors. Within a round they take turns in random order.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._vendors import WHOLE_MODEL, Call, Inputs

from collage.cost.statistics import ratio_of_medians
from collage.workers.idle_wait import until_quiet

BAR = 1.03
SAMPLES = 3
"""Runs of one turn; one more before them brings caches and threads back."""
QUIET_S = 0.5
"""Seconds that a turn may take to end: threads that spin for a while after it would slow down the next one."""
MEASURED_S = 8.0
"""Seconds that a model is measured on a toolchain, once it has its fewest rounds."""
FEWEST_ROUNDS = 8
FAR = 4.0
"""A vendor's interface that takes so many times as long is not looked at twice."""
TURN_S = 0.5
"""After so long a turn ends with the run that is going on, and 3 rounds must do where these take long."""
BUILD_TIMEOUT_S = 600.0
RUN_TIMEOUT_S = 120.0
ALIGNMENT = 64
"""Bytes; where arrays begin that Collage hands from kernel to kernel."""

Made = tuple[str, Any]
"""The answer of a child process: ``ok`` and a value, or ``problem`` and a sentence."""


def compiled_by_collage(name: str, folder: Path, threads: int, workspace: Path) -> Any:
    """The model as one kernel's files in ``workspace``."""
    from collage.frontend import place_weights, read_model
    from collage.toolchains import compile_for
    from collage.transform import prepare

    toolchain, target = toolchain_of(name, threads)
    kernel = place_weights(prepare(read_model(folder / "model.onnx")), workspace)
    kernel.graph.name = "whole"
    return compile_for(toolchain, kernel, target, workspace)


def loaded_by_collage(name: str, compiled: Any, inputs: Inputs, threads: int, workspace: Path) -> Call:
    """A kernel that is alone in its process."""
    from collage.toolchains import LoadOptions

    toolchain, target = toolchain_of(name, threads)
    run = toolchain.load(compiled, target, workspace, LoadOptions(threads, exclusive=True))
    arrays = [inputs[each] for each in compiled.inputs]
    return lambda: run(arrays)


def toolchain_of(name: str, threads: int) -> tuple[Any, Any]:
    """A toolchain, and its target with so many threads."""
    from collage.toolchains import registry

    toolchain = registry().get(name)
    return toolchain, registry().parse_target(f"{toolchain.targets[0]} -threads={threads}")


AGAIN = "again"


def read_inputs(folder: Path) -> Inputs:
    """A model's inputs, each at an address that suits vectors."""
    with np.load(folder / "inputs.npz") as stored:
        return {key: aligned(stored[key]) for key in stored.files}


def aligned(x: np.ndarray) -> np.ndarray:
    """A row-major copy that begins at a multiple of ``ALIGNMENT``."""
    block = np.empty(x.nbytes + ALIGNMENT, np.uint8)
    begin = -block.ctypes.data % ALIGNMENT
    copy = block[begin : begin + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def child(work: Callable[..., None], pipe: multiprocessing.connection.Connection, *what: Any) -> None:
    """A process without noise, which tells what its work fails of."""
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        work(pipe, *what)
    except Exception as error:
        pipe.send(("problem", " ".join(f"{type(error).__name__}: {error}".split())[:160]))


def build_kernel(pipe: multiprocessing.connection.Connection, *what: Any) -> None:
    """A process that compiles the model through Collage, and ends."""
    pipe.send(("ok", compiled_by_collage(*what)))


def serve_collage(
    pipe: multiprocessing.connection.Connection, name: str, compiled: Any, folder: Path, threads: int, workspace: Path
) -> None:
    """A process that runs the kernel when asked."""
    serve(loaded_by_collage(name, compiled, read_inputs(folder), threads, workspace), pipe)


def serve_vendor(
    pipe: multiprocessing.connection.Connection, name: str, vendor: str, folder: Path, threads: int
) -> None:
    """A process that runs the model through an interface of the vendor's when asked."""
    serve(WHOLE_MODEL[name][vendor](folder, read_inputs(folder), threads), pipe)


def serve(call: Call, pipe: multiprocessing.connection.Connection) -> None:
    """Answers each message with seconds, and seconds of processor time, of a few runs; of one where that is slow."""
    call()
    pipe.send(("ok", None))
    while pipe.recv():
        samples: list[float] = []
        call()
        cpu = time.process_time()
        while len(samples) < SAMPLES and sum(samples) < TURN_S:
            began = time.perf_counter()
            call()
            samples.append(time.perf_counter() - began)
        cpu = time.process_time() - cpu
        until_quiet(QUIET_S)
        pipe.send(("ok", (samples, cpu / len(samples))))


class Child:
    """The parent's side of such a process."""

    def __init__(self, work: Callable[..., None], *what: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=child, args=(work, theirs, *what), daemon=True)
        self._process.start()
        theirs.close()

    def turn(self) -> Made:
        """A few runs."""
        self._pipe.send(True)
        return self.answer(RUN_TIMEOUT_S)

    def answer(self, timeout_s: float = BUILD_TIMEOUT_S) -> Made:
        """Return the next answer, or the error that came instead."""
        try:
            return self._pipe.recv() if self._pipe.poll(timeout_s) else ("problem", f"took more than {timeout_s:g} s")
        except (EOFError, OSError):
            return "problem", "died"

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


def compare(name: str, folder: Path, threads: int, rounds: int) -> list[dict[str, Any]]:
    """Rows, in JSON values: the model through Collage against each of the vendor's own interfaces."""
    vendors = list(WHOLE_MODEL[name])
    head = [{"toolchain": name, "vendor": vendor, "model": folder.name, "threads": threads} for vendor in vendors]
    workspace = Path(tempfile.mkdtemp(prefix="collage_whole_models."))
    builder = Child(build_kernel, name, folder, threads, workspace)
    children = [builder]
    try:
        told, compiled = builder.answer()
        if told == "problem":
            return [row | {"problem": f"collage: {compiled}"} for row in head]
        runners = {vendor: Child(serve_vendor, name, vendor, folder, threads) for vendor in vendors}
        runners[AGAIN] = Child(serve_vendor, name, vendors[0], folder, threads)
        runners["collage"] = Child(serve_collage, name, compiled, folder, threads, workspace)
        children += runners.values()
        told_by = {label: runner.answer() for label, runner in runners.items()}
        problems = {label: why for label, (told, why) in told_by.items() if told == "problem"}
        running = {label: runner for label, runner in runners.items() if label not in problems}
        samples, broke = turns(running, rounds) if {"collage", AGAIN} <= set(running) else ({}, {})
        problems |= broke
        return [row | row_of(row["vendor"], vendors[0], samples, problems) for row in head]
    finally:
        for each in children:
            each.close()
        shutil.rmtree(workspace, ignore_errors=True)


def turns(runners: Mapping[str, Child], rounds: int) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Interleaved rounds of all; if one fails, why."""
    samples: dict[str, list[Any]] = {label: [] for label in runners}
    chance = np.random.default_rng(0)
    began = time.monotonic()
    for done in range(rounds):
        taken = time.monotonic() - began
        if taken > MEASURED_S and (done >= FEWEST_ROUNDS or (done >= 3 and taken > 3 * MEASURED_S)):
            break
        for label in chance.permutation(sorted(runners)):
            told, turn = runners[label].turn()
            if told == "problem":
                return {}, {str(label): turn}
            samples[label].append(turn)
        best = {label: min(turn[0]) for label, (turn, *_) in samples.items()}
        if FAR * best["collage"] < min(taken for label, taken in best.items() if label != "collage"):
            break  # One round tells, and may take a minute.
    return samples, {}


def row_of(vendor: str, first: str, samples: Mapping[str, list[Any]], problems: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures of one interface, from its rounds."""
    if vendor not in samples:
        label = vendor if vendor in problems else next(iter(problems))
        return {"problem": f"{label}: {problems[label]}"}
    seconds = {label: [taken for taken, _ in rounds] for label, rounds in samples.items()}
    cpu = {label: [[taken] for _, taken in rounds] for label, rounds in samples.items()}
    ratio, interval = ratio_of_medians(seconds["collage"], seconds[vendor])
    return {
        "collage_ms": 1e3 * float(np.median(np.concatenate(seconds["collage"]))),
        "vendor_ms": 1e3 * float(np.median(np.concatenate(seconds[vendor]))),
        "ratio": ratio,
        "interval": interval.as_list(),
        "cpu_ratio": ratio_of_medians(cpu["collage"], cpu[vendor])[0],
        "noise": ratio_of_medians(seconds[AGAIN], seconds[first])[0],
        "cpu_noise": ratio_of_medians(cpu[AGAIN], cpu[first])[0],
        "verdict": "within" if ratio <= BAR else "SLOWER" if interval.low > BAR else "unsure",
    }
