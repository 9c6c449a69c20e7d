"""One model of the board: every contender in a process of its own, in turns, and a row for each."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collage.cost.statistics import median_interval

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("contenders")
# ONNX Runtime runs twice: what it differs from itself is the noise of the board.
AGAIN = "onnxruntime again"
CONTENDERS: Mapping[str, Sequence[str]] = {
    "onnxruntime": ("with_onnxruntime.py",),
    AGAIN: ("with_onnxruntime.py",),
    "openvino": ("with_openvino.py",),
    "ncnn": ("with_ncnn.py",),
    "tvm": ("with_tvm.py",),
    "inductor": ("with_inductor.py",),
    "collage": ("with_collage.py",),
    "collage within 2e-2": ("with_collage.py", "--accuracy-budget", "2e-2"),
}
PLAIN = ("with_onnxruntime.py", "--plain")
_TURN_S, _PAUSE_S = 0.15, 0.1  # Threads of ONNX Runtime spin for 50 ms after a run.
_PREPARED_WITHIN_S, _ANSWERED_WITHIN_S = 1200.0, 120.0


@dataclass
class Contender:
    """A process that runs one model.

    Attributes:
        name: Its name on the board.
        process: The process.
        outputs: File of its outputs.
        facts: Its first answer; None until it is ready.
        rounds: Median seconds of each round.
        fault: Reason why it has no time.
    """

    name: str
    process: subprocess.Popen[bytes]
    outputs: Path
    facts: Mapping[str, Any] | None = None
    rounds: list[float] = field(default_factory=list)
    fault: str = ""

    @classmethod
    def start(cls, name: str, script: Sequence[str], model: Path, inputs: Path, folder: Path) -> Contender:
        """Start a contender, and wait until it is ready or has failed."""
        outputs, log = folder / f"{name}.npz", folder / f"{name}.log"
        command = [sys.executable, str(SCRIPTS / script[0]), str(model), str(inputs), str(outputs), *script[1:]]
        with log.open("wb") as errors:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
            process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, bufsize=0, **pipes)
        made = cls(name, process, outputs)
        made.facts = made._answer(_PREPARED_WITHIN_S)
        if made.facts is None:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            made.fault = (lines[-1] if lines else f"no answer within {_PREPARED_WITHIN_S:.0f} s")[:200]
            made.end()
        return made

    def turn(self, runs: int) -> list[float]:
        """Return the seconds of some runs; none if the process does not answer, which ends it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(b"%d\n" % runs)
        found = self._answer(_ANSWERED_WITHIN_S)
        if not isinstance(found, list):
            self.fault = "it ended or hung while it ran"
            self.end()
            return []
        return found

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()

    def _answer(self, within_s: float) -> Any:
        assert self.process.stdout is not None
        line, end = b"", time.monotonic() + within_s
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            if not part:
                return None
            line += part
        return json.loads(line)


def race(model: Path, feeds: Mapping[str, np.ndarray], names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Return a row for each contender: its time with its interval, its error, and what it took to prepare."""
    with tempfile.TemporaryDirectory(prefix="board-") as scratch:
        folder = Path(scratch)
        np.savez(folder / "inputs.npz", **feeds)
        started = [Contender.start("reference", PLAIN, model, folder / "inputs.npz", folder)]
        started[0].end()
        try:
            for name in names:
                print(f"  preparing {name}", file=sys.stderr, flush=True)
                started.append(Contender.start(name, CONTENDERS[name], model, folder / "inputs.npz", folder))
            _turns([each for each in started if each.facts is not None and each.name != "reference"], rounds)
        finally:
            for each in started:
                each.end()
        return [_row(each, started[0]) for each in started[1:]]


def _turns(contenders: Sequence[Contender], rounds: int) -> None:
    runs = {each.name: max(1, int(_TURN_S / max(min(each.turn(3) or [1.0]), 1e-6))) for each in contenders}
    for _ in range(rounds):
        alive = [each for each in contenders if not each.fault]
        for each in random.sample(alive, len(alive)):
            time.sleep(_PAUSE_S)
            if samples := each.turn(runs[each.name]):
                each.rounds.append(statistics.median(samples))


def _row(contender: Contender, reference: Contender) -> dict[str, Any]:
    facts = contender.facts or {}
    row: dict[str, Any] = {"contender": contender.name, "status": contender.fault or "ok", **facts}
    if contender.fault or not contender.rounds:
        return row
    interval = median_interval(contender.rounds)
    row |= {
        "ms": statistics.median(contender.rounds) * 1e3,
        "interval_ms": [end * 1e3 for end in interval.as_list()],
        "rounds_ms": [round(seconds * 1e3, 6) for seconds in contender.rounds],
        "error": error(contender.outputs, reference.outputs),
    }
    return row


def error(outputs: Path, expected: Path) -> float | None:
    """Return the largest difference of any output, relative to its largest magnitude; None if they cannot be compared."""
    if not outputs.exists() or not expected.exists():
        return None
    found, right = dict(np.load(outputs)), dict(np.load(expected))
    if len(found) < len(right) or any(found[name].size != y.size for name, y in right.items()):
        return None
    worst = 0.0
    for name, y in right.items():
        expected_y, found_y = (np.ravel(each).astype(np.float64) for each in (y, found[name]))
        if expected_y.size and not np.array_equal(expected_y, found_y, equal_nan=True):
            worst = max(worst, float(np.max(np.abs(found_y - expected_y)) / (np.max(np.abs(expected_y)) or 1.0)))
    return worst if np.isfinite(worst) else None
