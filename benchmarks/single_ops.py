"""Single operators and small groups on every CPU toolchain: who wins, and by how much.

::

    python -m benchmarks.single_ops [--only conv] [--toolchains onnxruntime,tvm] [--threads 2] [--fresh]

One command, at most 34 minutes (``--budget-s``): what does not fit is named, and measured when the command is given
again, since every finished row is kept (``--state``; ``--fresh`` begins anew). A quiet machine is a must.

Each toolchain builds and runs its kernels in a process of its own, with its vendor's best settings; that process is
replaced when it dies or hangs. The toolchains build a case side by side, and are timed one after the other, in rounds of
random order, while all others wait, each round when the machine is calm. Prints medians in milliseconds, the winner, by
how much it beats the second with the 95 % interval of that ratio, and in the end what each toolchain wins. A win counts
if the whole interval lies at 1.05 or above. The ratio is taken within rounds: what slows the machine for a while slows
both, and moves the two medians but not the ratio. ``extern`` takes part where it calls a library: else its code is TVM's.
Wrong answers are named, and never win. Exit code 1 if a toolchain wins nothing.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._arguments import make_parser
from benchmarks._single_op_cases import CASES

from collage.cost.statistics import ratio_of_medians
from collage.testing._toolchain_kernels import KernelCase, kernel
from collage.toolchains import LoadOptions, registry
from collage.transform import InferType
from collage.workers.idle_wait import until_quiet

WIN = 1.05
TURN_S = 0.003
"""How long a toolchain runs in its turn: short kernels run many times."""
QUIET_S = 0.5
"""Seconds that a turn may take to end: threads that spin for a while after it would slow down the next one."""
MOST_SAMPLES = 50
FEWEST_ROUNDS = 12
CASE_S = 4.0
"""How long a case is measured, once it has its fewest rounds."""
"""How long rounds may wait in all for the machine to be calm."""
HOPELESS = {1: 20.0, 4: 4.0}
"""After so many rounds, who takes so many times as long as the second is not measured further."""
BUILD_TIMEOUT_S = 180.0
RUN_TIMEOUT_S = 20.0


def serve(target_text: str, threads: int, pipe: multiprocessing.connection.Connection) -> None:
    """A process of one toolchain: builds kernels, and runs the current one when asked."""
    os.setsid()  # so that a C++ compiler at work ends with it
    toolchains = registry()
    target = toolchains.parse_target(target_text)
    toolchain = toolchains.for_target(target)
    with tempfile.TemporaryDirectory() as folder:
        while (request := pipe.recv()) is not None:
            if isinstance(request, int):
                current = CASES[request]
                try:
                    model = InferType()(kernel(f"case{request}", current.text, current.weights))
                    compiled = toolchain.compile(model, target, Path(folder))
                    if compiled.metadata.get("calls") == []:
                        pipe.send("calls no function: the same code as TVM's")
                        continue
                    run = toolchain.load(compiled, target, Path(folder), LoadOptions(threads, exclusive=True))
                    outputs = [np.array(y) for y in run(current.inputs)]
                    pipe.send(outputs[0])
                except Exception as error:
                    pipe.send(" ".join(f"{type(error).__name__}: {error}".split())[:110])
            else:
                samples = timed(run, current.inputs)
                until_quiet(QUIET_S)
                pipe.send(samples)


def timed(run: Any, inputs: Sequence[np.ndarray]) -> list[float]:
    """Seconds of each run of one turn; the first brings caches and threads back, and is not among them."""
    samples: list[float] = []
    run(inputs)
    ends = time.perf_counter() + TURN_S
    while not samples or (time.perf_counter() < ends and len(samples) < MOST_SAMPLES):
        began = time.perf_counter()
        run(inputs)
        samples.append(time.perf_counter() - began)
    return samples


class Server:
    """The parent's side of a toolchain's process. One that died or hung answers with why, and is replaced when next asked."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self._threads = threads
        self._process: Any = None

    def send(self, request: Any) -> None:
        """Sends a request, to a new process if there is none."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            target = registry().get(self.name).targets[0]
            self._process = context.Process(target=serve, args=(target, self._threads, theirs), daemon=True)
            self._process.start()
            theirs.close()
        self._pipe.send(request)

    def answer(self, timeout_s: float) -> Any:
        """The answer to the last request, or a sentence about what came instead."""
        try:
            if self._pipe.poll(timeout_s):
                return self._pipe.recv()
            why = f"took more than {timeout_s:g} s"
        except (EOFError, OSError):
            self._process.join()
            why = f"died with exit code {self._process.exitcode}"
        self.close()
        return why

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join()
            self._process = None


def wrong(outputs: Mapping[str, Any]) -> set[str]:
    """Toolchains whose answer is far from the answer most of them are near to."""
    answers = {name: y for name, y in outputs.items() if not isinstance(y, str)}

    def near(a: np.ndarray, b: np.ndarray) -> bool:
        return a.shape == b.shape and bool(np.abs(a - b).max() <= 1e-3 * np.abs(b).max())

    votes = {name: sum(near(y, other) for other in answers.values()) for name, y in answers.items()}
    return {name for name, count in votes.items() if 2 * count < len(answers)}


def measure(index: int, servers: Sequence[Server], rounds: int) -> dict[str, Any]:
    """Builds one case on every toolchain, and times it, interleaved: a row, in JSON values."""
    for server in servers:
        server.send(index)
    outputs = {server.name: server.answer(BUILD_TIMEOUT_S) for server in servers}
    bad = wrong(outputs)
    racing = [server for server in servers if not isinstance(outputs[server.name], str) and server.name not in bad]
    samples: dict[str, list[list[float]]] = {server.name: [] for server in racing}
    chance = np.random.default_rng(index)
    spent_s = 0.0
    for done in range(rounds):
        if done >= FEWEST_ROUNDS and spent_s > CASE_S:
            break
        if done in HOPELESS and racing:
            medians = {s.name: np.median(np.concatenate(samples[s.name])) for s in racing}
            second = sorted(medians.values())[:2][-1]
            racing = [s for s in racing if medians[s.name] <= HOPELESS[done] * second]
        began = time.monotonic()
        for place in chance.permutation(len(racing)):
            server = racing[place]
            server.send("run")
            turn = server.answer(RUN_TIMEOUT_S)
            if isinstance(turn, str):
                outputs[server.name] = turn
            else:
                samples[server.name].append(turn)
        spent_s += time.monotonic() - began
        racing = [s for s in racing if not isinstance(outputs[s.name], str)]
    whole = [s.name for s in racing]
    return {
        "case": CASES[index].name,
        "median_ms": {name: 1e3 * float(np.median(np.concatenate(turns))) for name, turns in samples.items() if turns},
        "wrong": sorted(bad),
        "refused": {name: why for name, why in outputs.items() if isinstance(why, str)},
        **verdict({name: samples[name] for name in whole}),
    }


def verdict(samples: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """The fastest against the second: the ratio and its interval, and whether that is a win."""
    middles = {name: [float(np.median(turn)) for turn in turns] for name, turns in samples.items()}
    ranked = sorted(middles, key=lambda name: np.median(middles[name]))
    if len(ranked) < 2:
        return {"first": ranked[0] if ranked else None, "second": None, "ratio": None, "win": False}
    first, second = ranked[:2]
    ratio, interval = ratio_of_medians(samples[second], samples[first])
    return {
        "first": first,
        "second": second,
        "ratio": ratio,
        "interval": interval.as_list(),
        "win": interval.low >= WIN,
    }


def line(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """A row as text."""
    times, bad = row["median_ms"], row["wrong"]
    cells = "".join(f"{'wrong' if n in bad else f'{times[n]:.3f}' if n in times else '-':>12}" for n in names)
    if row["ratio"] is None:
        found = f"only {row['first']}"
    else:
        low, high = row["interval"]
        against = f"x{row['ratio']:.2f} [{low:.2f}, {high:.2f}] before {row['second']}"
        found = f"{row['first'] if row['win'] else '(close)'} {against}"
    refused = "".join(f"\n    {name}: {why}" for name, why in row["refused"].items())
    return f"{row['case']:<42}{cells}  {found}{refused}"


def print_wins(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> bool:
    """What each toolchain wins; whether each wins something."""
    won = {name: [row for row in rows if row["win"] and row["first"] == name] for name in names}
    print()
    for name, own in won.items():
        best = sorted(own, key=lambda row: -row["ratio"])
        told = "; ".join("{} x{:.2f} [{:.2f}, {:.2f}]".format(r["case"], r["ratio"], *r["interval"]) for r in best)
        print(f"{name} wins {len(own)}: {told}")
    return all(won.values())


def main() -> None:
    """Entry point of the script."""
    began = time.monotonic()
    parser = make_parser(__doc__, threads=0, rounds=40, json=True)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--toolchains", metavar="A,B", help="all available ones without it")
    parser.add_argument(
        "--budget-s", type=float, default=2000.0, help="begin no case after so many seconds, less a case"
    )
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir()) / "collage_single_ops.jsonl")
    parser.add_argument("--fresh", action="store_true", help="forget the rows that are kept")
    options = parser.parse_args()
    found = [t.name for t in registry() if t.targets[0].startswith("llvm") and t.name != "host"]
    available = [name for name in found if registry().get(name).availability().available]
    names = options.toolchains.split(",") if options.toolchains else available
    if options.fresh:
        options.state.unlink(missing_ok=True)
    setting = {"threads": options.threads, "toolchains": sorted(names)}
    kept = kept_rows(options.state, setting)
    servers = [Server(name, options.threads) for name in names]
    print(f"{f'milliseconds, {options.threads} threads':<42}{''.join(f'{name:>12}' for name in names)}  winner")
    chosen = [(index, each) for index, each in enumerate(CASES) if options.only in each.name]
    left_out: list[KernelCase] = []
    longest = 0.0
    for index, each in chosen:
        started = time.monotonic()
        if each.name not in kept:
            if started - began + longest > options.budget_s:
                left_out.append(each)
                continue
            kept[each.name] = measure(index, servers, options.rounds)
            longest = max(longest, time.monotonic() - started)
            with options.state.open("a") as file:
                file.write(json.dumps({**kept[each.name], **setting}) + "\n")
        print(line(kept[each.name], names), flush=True)
    for server in servers:
        server.close()
    rows = [kept[each.name] for _, each in chosen if each.name in kept]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    all_win = print_wins(rows, names)
    if left_out:
        print(f"no time for {', '.join(each.name for each in left_out)}: the same command again measures them")
    sys.exit(not all_win)


def kept_rows(path: Path, setting: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Rows of an earlier run of the same toolchains at the same number of threads, by case."""
    if not path.exists():
        return {}
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    return {row["case"]: row for row in rows if all(row[key] == value for key, value in setting.items())}


if __name__ == "__main__":
    main()
