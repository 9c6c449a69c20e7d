"""Single operators and small groups on every CPU toolchain: who wins, and by how much.

::

    python benchmarks/single_ops.py --rounds 30 [--only conv] [--target onnxruntime --target onednn] [--threads 2]

Each toolchain runs in a process of its own, with its vendor's best settings; within a round the processes take turns,
and only one of them is awake. Prints medians in milliseconds, the winner, and by how much it beats the second, with the
95 % interval of that ratio: a win counts if its interval lies above 1.05. Wrong answers are named, and never win.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage.cost.statistics import Interval, ratio_of_medians
from collage.testing._toolchain_kernels import KernelCase, kernel
from collage.toolchains import LoadOptions, registry

WIN = 1.05
SAMPLES = 3


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def weights(*shape: int, seed: int = 1) -> np.ndarray:
    return numbers(*shape, seed=seed) / np.float32(np.sqrt(np.prod(shape[1:]) or 1))


def case(name: str, shape: Sequence[int], rank: int, body: str, **constants: np.ndarray) -> KernelCase:
    """A kernel of one input ``x`` and one output ``y`` of the given rank."""
    sizes, unknown = ",".join(map(str, shape)), ",".join("ABCDE"[:rank])
    return KernelCase(name, f"(float[{sizes}] x) => (float[{unknown}] y) {{{body}}}", [numbers(*shape)], constants)


def convolution(
    name: str, shape: Sequence[int], filters: Sequence[int], attributes: str, after: str = "y = Identity (c)"
) -> KernelCase:
    body = f"c = Conv <{attributes}> (x, w, b) {after}"
    return case(name, shape, len(shape), body, w=weights(*filters), b=numbers(filters[0], seed=2))


def recurrent(name: str, op_type: str, gates: int, steps: int, inner: int, hidden: int, more: str) -> KernelCase:
    body = f"y = {op_type} <hidden_size = {hidden}{more}> (x, w, r, b)"
    ways = 2 if "bidirectional" in more else 1
    shapes = {"w": (ways, gates * hidden, inner), "r": (ways, gates * hidden, hidden), "b": (ways, 2 * gates * hidden)}
    made = {k: numbers(*v, seed=i) / np.float32(np.sqrt(hidden)) for i, (k, v) in enumerate(shapes.items())}
    return case(name, (steps, 1, inner), 4, body, **made)


SWISH = "s = Sigmoid (c) y = Mul (c, s)"
CASES = [
    recurrent("GRU 512, 50 steps", "GRU", 3, 50, 512, 512, ", linear_before_reset = 1"),
    recurrent("LSTM 256, 100 steps", "LSTM", 4, 100, 256, 256, ""),
    recurrent("BiLSTM 256, 80 steps", "LSTM", 4, 80, 128, 256, ', direction = "bidirectional"'),
    case("Softmax [12,512,512]", (12, 512, 512), 3, "y = Softmax (x)"),
    case("LayerNorm [197,768]", (197, 768), 2, "y = LayerNormalization (x, s, b)", s=numbers(768), b=numbers(768)),
    case(
        "GroupNorm+SiLU [1,320,64,64]",
        (1, 320, 64, 64),
        4,
        f"c = GroupNormalization <num_groups = 32> (x, s, b) {SWISH.replace('s = ', 'g = ').replace(', s)', ', g)')}",
        s=numbers(320, seed=1),
        b=numbers(320, seed=2),
    ),
    case("GELU [512,3072]", (512, 3072), 2, "y = Gelu (x)"),
    case(
        "linear+GELU 128x768x3072",
        (128, 768),
        2,
        "m = MatMul (x, w) a = Add (m, b) y = Gelu (a)",
        w=weights(768, 3072),
        b=numbers(3072),
    ),
    case("MatMul 16x1024x4096", (16, 1024), 2, "y = MatMul (x, w)", w=weights(1024, 4096)),
    convolution("conv1d 512 k3, length 1500", (1, 512, 1500), (512, 512, 3), "pads = [1,1]"),
    convolution("conv 64 3x3 56x56+ReLU", (1, 64, 56, 56), (64, 64, 3, 3), "pads = [1,1,1,1]", "y = Relu (c)"),
    convolution("conv 64 3x3 56x56+SiLU", (1, 64, 56, 56), (64, 64, 3, 3), "pads = [1,1,1,1]", SWISH),
    convolution("conv3d 64 [8,28,28]", (1, 64, 8, 28, 28), (64, 64, 3, 3, 3), "pads = [1,1,1,1,1,1]"),
    convolution("depthwise 7x7, 96, 56x56", (1, 96, 56, 56), (96, 1, 7, 7), "pads = [3,3,3,3], group = 96"),
    convolution(
        "depthwise 3x3, 144, 56x56+ReLU",
        (1, 144, 56, 56),
        (144, 1, 3, 3),
        "pads = [1,1,1,1], group = 144",
        "y = Relu (c)",
    ),
    case(
        "conv transpose 256-128 k4 s2",
        (1, 256, 16, 16),
        4,
        "y = ConvTranspose <strides = [2,2], pads = [1,1,1,1]> (x, w)",
        w=weights(256, 128, 4, 4),
    ),
    case(
        "Resize bicubic x2 [1,64,64,64]",
        (1, 64, 64, 64),
        4,
        'y = Resize <mode = "cubic"> (x, , scales)',
        scales=np.array([1, 1, 2, 2], np.float32),
    ),
    case("Sort [64,4096]", (64, 4096), 2, "y, i = TopK (x, k)", k=np.array([4096])),
    case("CumSum [64,4096]", (64, 4096), 2, "y = CumSum (x, k)", k=np.array(1)),
    case(
        "scatter add 20000x64 into 2000",
        (20000, 64),
        2,
        'y = ScatterElements <axis = 0, reduction = "add"> (z, i, x)',
        z=np.zeros((2000, 64), np.float32),
        i=np.repeat(np.random.default_rng(0).integers(0, 2000, (20000, 1)), 64, axis=1),
    ),
    case("chain of 6 elementwise [1,256,64,64]", (1, 256, 64, 64), 4, "a = Exp (x) b = Add (a, x) c = Tanh (b) "
         "d = Mul (c, x) e = Sqrt (a) y = Sub (d, e)"),
]  # fmt: skip


def serve(target_text: str, threads: int, pipe: multiprocessing.connection.Connection) -> None:
    """A process of one toolchain: builds kernels, and runs the current one when asked."""
    toolchains = registry()
    target = toolchains.parse_target(target_text)
    toolchain = toolchains.for_target(target)
    with tempfile.TemporaryDirectory() as folder:
        while (request := pipe.recv()) is not None:
            if isinstance(request, int):
                current = CASES[request]
                try:
                    model = kernel(f"case{request}", current.text, current.weights)
                    compiled = toolchain.compile(model, target, Path(folder))
                    run = toolchain.load(compiled, target, Path(folder), LoadOptions(threads, exclusive=True))
                    for _ in range(3):
                        outputs = run(current.inputs)
                    pipe.send(np.array(outputs[0]))
                except Exception as error:
                    pipe.send(f"{type(error).__name__}: {error}"[:100])
            else:
                samples = []
                for _ in range(SAMPLES):
                    began = time.perf_counter()
                    run(current.inputs)
                    samples.append(time.perf_counter() - began)
                pipe.send(samples)


class Server:
    """The parent's side of a toolchain's process; a dead one answers with why."""

    def __init__(self, target: str, threads: int) -> None:
        self.target = target
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(target, threads, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, request: Any, timeout_s: float = 240.0) -> Any:
        """Sends a request and waits for its answer."""
        try:
            self._pipe.send(request)
            if self._pipe.poll(timeout_s):
                return self._pipe.recv()
        except (EOFError, OSError):
            return f"died with exit code {self._process.exitcode}"
        self._process.kill()
        return f"took more than {timeout_s:g} s"


def wrong(outputs: dict[str, Any]) -> set[str]:
    """Targets whose answer is far from the answer most of them are near to."""
    answers = {t: y for t, y in outputs.items() if not isinstance(y, str)}

    def near(a: np.ndarray, b: np.ndarray) -> bool:
        return a.shape == b.shape and bool(np.abs(a - b).max() <= 1e-3 * np.abs(b).max())

    votes = {t: sum(near(y, other) for other in answers.values()) for t, y in answers.items()}
    return {t for t, count in votes.items() if 2 * count < len(answers)}


def row(index: int, servers: Sequence[Server], rounds: int) -> str:
    """Measures one case on every toolchain, interleaved, and formats its line."""
    outputs = {server.target: server.ask(index) for server in servers}
    bad = wrong(outputs)
    able = [server for server in servers if not isinstance(outputs[server.target], str)]
    samples: dict[str, list[list[float]]] = {server.target: [] for server in able}
    order = np.random.default_rng(index)
    for _ in range(rounds):
        for place in order.permutation(len(able)):
            answer = able[place].ask("run")
            if not isinstance(answer, str):
                samples[able[place].target].append(answer)
    medians = {t: float(np.median(s)) for t, s in samples.items() if len(s) == rounds}
    ranked = sorted((t for t in medians if t not in bad), key=medians.__getitem__)
    cells = "".join(
        f"{'wrong' if s.target in bad else f'{medians[s.target] * 1e3:.3f}' if s.target in medians else '-':>14}"
        for s in servers
    )
    refused = "".join(f"\n    {t}: {why}" for t, why in outputs.items() if isinstance(why, str))
    return f"{CASES[index].name:<38}{cells}  {verdict(ranked, samples)}{refused}"


def verdict(ranked: Sequence[str], samples: dict[str, list[list[float]]]) -> str:
    """The winner against the second, with the interval of the ratio."""
    if len(ranked) < 2:
        return f"only {ranked[0]}" if ranked else "nobody"
    ratio, interval = ratio_of_medians(samples[ranked[1]], samples[ranked[0]])
    sure = isinstance(interval, Interval) and interval.low > WIN
    return f"{ranked[0] if sure else '(close)'} x{ratio:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description="Single operators on every CPU toolchain.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--target", action="append", help="toolchains to compare; all with a CPU build without it")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    found = [t for t in registry() if t.targets[0].startswith("llvm") and t.name != "host"]
    targets = options.target or ["llvm" if t.name == "tvm" else t.name for t in found if t.availability().available]
    servers = [Server(target, options.threads) for target in targets]
    print(f"{'milliseconds, ' + str(options.threads) + ' threads':<38}{''.join(f'{t:>14}' for t in targets)}  winner")
    for index, each in enumerate(CASES):
        if options.only in each.name:
            print(row(index, servers, options.rounds), flush=True)


if __name__ == "__main__":
    main()
