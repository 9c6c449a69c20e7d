"""Many threads on one executable, for a long time: are the outputs right throughout, and is memory flat?

A model is built as kernels of several toolchains, every thread runs it on inputs of its own, and compares each output with
what a single thread got. Resident memory is read once a second; after a tenth of the time it must not grow any more.

::

    python -m benchmarks.soak [--models MODEL] [--minutes M] [--threads N] [--contexts N] [--asyncio]
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from benchmarks._arguments import chosen_models, make_parser
from benchmarks.overhead import small_models

from collage.frontend import make_inputs, read_model
from collage.graph import DataflowGraph
from collage.runtime import Executable
from collage.testing import executable_of
from collage.transform import prepare

GROWTH = 0.02
GROWTH_BYTES = 16 << 20
"""Resident memory may end so much above where it was after a tenth of the time; allocators are not silent."""

RTOL = 1e-4


class Soak:
    """Threads that run one executable and compare."""

    def __init__(self, exe: Executable, feeds: list[dict[str, np.ndarray]]) -> None:
        self.exe = exe
        self.feeds = feeds
        self.expected = [exe.run(feed) for feed in feeds]
        self.runs = [0] * len(feeds)
        self.failures: list[str] = []
        self.stop = threading.Event()

    def work(self, number: int) -> None:
        while not self.stop.is_set():
            try:
                outputs = self.exe.run(self.feeds[number])
            except Exception as error:
                self.fail(f"thread {number}: {error}")
                return
            self.check(number, outputs)

    def work_in_a_loop(self) -> None:
        """All runs from one thread."""

        async def work(number: int) -> None:
            while not self.stop.is_set():
                self.check(number, await self.exe.arun(self.feeds[number]))

        async def together() -> None:
            await asyncio.gather(*map(work, range(len(self.feeds))))

        try:
            asyncio.run(together())
        except Exception as error:
            self.fail(f"event loop: {error}")

    def check(self, number: int, outputs: dict[str, np.ndarray]) -> None:
        for name, value in outputs.items():
            expected = self.expected[number][name]
            largest = np.abs(expected).max(initial=0)
            if not np.allclose(value, expected, rtol=RTOL, atol=RTOL * largest):
                self.fail(f"inputs {number}, run {self.runs[number]}: {name} is wrong")
        self.runs[number] += 1

    def fail(self, reason: str) -> None:
        self.failures.append(reason)
        self.stop.set()

    def last(self, seconds: float, *, in_a_loop: bool = False) -> list[tuple[float, int]]:
        """Runs for so long; returns resident memory by time."""
        process, began = psutil.Process(), time.monotonic()
        threads = [threading.Thread(target=self.work, args=(i,)) for i in range(len(self.feeds))]
        if in_a_loop:
            threads = [threading.Thread(target=self.work_in_a_loop)]
        for thread in threads:
            thread.start()
        samples = []
        while time.monotonic() - began < seconds and not self.failures:
            time.sleep(min(1.0, seconds / 20))
            samples.append((time.monotonic() - began, process.memory_info().rss))
        self.stop.set()
        for thread in threads:
            thread.join()
        return samples


def build(path: Path | None, kernels: int, targets: list[str], contexts: int | None) -> Executable:
    model = prepare(read_model(path if path is not None else small_models()[1]))
    count = len(DataflowGraph(model))
    kernels = min(kernels, count)
    borders = [i * count // kernels for i in range(kernels + 1)]
    parts = [(range(borders[i], borders[i + 1]), targets[i % len(targets)]) for i in range(kernels)]
    return executable_of(model, parts, contexts=contexts)


def main() -> int:
    menu = ("onnxruntime", "openvino", "llvm")
    parser = make_parser(__doc__, models="", without_models="a small convolutional network", targets=menu, threads=8)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--contexts", type=int, help="default: as many as an executable has by itself")
    parser.add_argument("--kernels", type=int, default=6)
    parser.add_argument("--asyncio", action="store_true", help="await all runs in one event loop")
    arguments = parser.parse_args()
    if "," in arguments.models:
        parser.error("one model at a time")
    path = next(chosen_models(arguments)).path if arguments.models else None
    exe = build(path, arguments.kernels, arguments.targets.split(","), arguments.contexts)
    model = read_model(exe.workspace / exe.recipe.model_file)
    soak = Soak(exe, [make_inputs(model, seed) for seed in range(arguments.threads)])
    samples = soak.last(arguments.minutes * 60, in_a_loop=arguments.asyncio)
    for at_s, rss in samples[:: max(1, len(samples) // 10)]:
        print(f"{at_s:>8.0f} s {rss / 2**20:>10.1f} MiB")
    settled = next(rss for at_s, rss in samples if at_s >= samples[-1][0] / 10)
    growth = samples[-1][1] - settled
    flat = growth <= GROWTH * settled + GROWTH_BYTES
    per_thread = f"{min(soak.runs)} to {max(soak.runs)} a thread"
    print(f"{sum(soak.runs)} runs, {per_thread}; grew by {growth / 2**20:.1f} MiB; {'flat' if flat else 'NOT FLAT'}")
    for failure in soak.failures:
        print(failure)
    return 0 if flat and not soak.failures and min(soak.runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
