"""Measure what a kernel loses after a kernel of another toolchain, and what each toolchain pays for quiet threads.

::

    python -m benchmarks.handover [--models unet.onnx] [--targets llvm,onnxruntime,openvino,ncnn] [--rounds 300]

For each pair A, B in one process, as in a mix: the time of B after a call of A, over its time after a call of B (``after B``)
and over its time after the caller alone was busy for as long as A takes (``after work``). The second ratio tells what threads
of A take from B. The first also holds what any other work costs B: colder caches, and a helper that has gone to sleep.

For each toolchain: its kernel with the machine to itself (``alone``), and as a part of a mix (``polite``). Each is in a
process of its own, since threads that spin after a run would slow the other one down.

All of it on a quiet machine, beside a process of idle priority, and beside one of equal priority. Every time is of one call.
The ratios are medians over rounds in which the ways take turns, with their 95 % intervals.
Without ``--models``, a residual block.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from benchmarks._arguments import chosen_models, make_parser

from collage.cost.objective import NEIGHBOURS
from collage.cost.statistics import median_interval
from collage.frontend import make_inputs, read_model
from collage.measure.neighbour import neighbour
from collage.target import Target
from collage.testing import executable_of
from collage.testing._toolchain_kernels import kernel
from collage.toolchains import LoadOptions, registry

MODES = {"alone": True, "polite": False}
"""Ways to load a kernel: it may keep the machine to itself, or it rests after each run, as a part of a mix does."""


def block() -> ir.Model:
    """Return two convolutions with 64 channels at 64 x 64 and a sum."""
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((64, 64, 3, 3)).astype(np.float32) / 24 for name in ("v", "w")}
    body = "a = Conv <pads = [1,1,1,1]> (x, v) b = Relu (a) c = Conv <pads = [1,1,1,1]> (b, w) y = Add (c, x)"
    return kernel("block", f"(float[1,64,64,64] x) => (float[1,64,64,64] y) {{{body}}}", weights)


def models_of(options: argparse.Namespace) -> list[ir.Model]:
    """Return the models of ``--models``, or the residual block."""
    return [read_model(chosen.path) for chosen in chosen_models(options)] if options.models else [block()]


def loaded(model: ir.Model, target: str, *, exclusive: bool) -> Callable[[], object]:
    """Return a call of a model as one kernel of a target."""
    executable = executable_of(model, target)
    (record,) = executable.recipe.kernels
    feeds = make_inputs(model)
    options = LoadOptions(exclusive=exclusive)
    found = (
        registry()
        .get(record.compiled.toolchain)
        .load(record.compiled, Target.parse(record.target), executable.workspace, options)
    )
    inputs = [feeds[name] for name in record.inputs]
    return lambda: (executable, found(inputs))


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def busy(seconds: float) -> None:
    """Compute on the calling thread alone."""
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        pass


def in_turns(
    before: Sequence[Callable[[], object]], timed: Sequence[Callable[[], object]], rounds: int
) -> list[list[float]]:
    """Return the seconds of each call, made after its forerunner. The pairs take turns in a random order."""
    random, seconds = np.random.default_rng(0), [list[float]() for _ in timed]
    for number in range(rounds + 5):
        for i in random.permutation(len(timed)):
            before[i]()
            took_s = seconds_of(timed[i])
            if number >= 5:
                seconds[i].append(took_s)
    return seconds


def ratio(above: Sequence[float], below: Sequence[float]) -> str:
    """Return the median ratio of paired times, with its 95 % interval."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    low, high = median_interval(ratios).as_list()
    return f"{statistics.median(ratios):6.3f} [{low:.3f}, {high:.3f}]"


def pair(model: ir.Model, first: str, second: str, rounds: int) -> dict[str, list[str]]:
    """Return the columns of a pair, by neighbour."""
    a, b = (loaded(model, target, exclusive=False) for target in (first, second))
    found = {}
    for kind in NEIGHBOURS:
        with neighbour(kind):
            for call in (a, b) * 3:
                call()
            a_s = statistics.median(seconds_of(a) for _ in range(20))
            after_a, after_b, after_work = in_turns([a, b, lambda s=a_s: busy(s)], [b, b, b], rounds)
        found[kind] = [f"{statistics.median(after_a) * 1e3:8.3f}", ratio(after_a, after_b), ratio(after_a, after_work)]
    return found


def by_itself(model: ir.Model, target: str, mode: str, rounds: int) -> dict[str, list[str]]:
    """Return the milliseconds of one toolchain that has the process, by neighbour."""
    call, found = loaded(model, target, exclusive=MODES[mode]), {}
    for kind in NEIGHBOURS:
        with neighbour(kind):
            (seconds,) = in_turns([call], [call], rounds)
        found[kind] = [f"{statistics.median(seconds) * 1e3:8.3f}"]
    return found


def main() -> None:
    """Print the two tables."""
    parser = make_parser(__doc__, models="", targets=("llvm", "onnxruntime", "openvino", "ncnn"), rounds=300)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    targets = options.targets.split(",")
    models = models_of(options)
    if options.child:
        number, *names = options.child.split(",")
        model = models[int(number)]
        job = by_itself if names[1] in MODES else pair
        print(json.dumps(job(model, names[0], names[1], options.rounds)))
        return
    for number, model in enumerate(models):
        print(f"{model.graph.name}: ms of B; B after A over B after B; B after A over B after work of the caller")
        jobs = [*itertools.permutations(targets, 2), *itertools.product(targets, MODES)]
        for job in jobs:
            child = ["--child", ",".join([str(number), *job])]
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.handover", *sys.argv[1:], *child],
                check=False,
                capture_output=True,
                text=True,
                cwd=Path(__file__).parents[1],
            )
            label = (", " if job[1] in MODES else " then ").join(job)
            if done.returncode:
                print(f"{label:<34}{(done.stderr.strip().splitlines() or ['died'])[-1]}")
                continue
            for name, columns in json.loads(done.stdout.splitlines()[-1]).items():
                print(f"{label:<34}{name:<7}{'   '.join(columns)}", flush=True)


if __name__ == "__main__":
    main()
