"""The time of a run, kernel by kernel."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.runtime._executor import Span
from collage.runtime._recipe import KernelRecord

__all__ = ["KernelTime", "Profile"]


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel's part of the run.

    Attributes:
        name: Its global symbol.
        target: The target that runs the kernel.
        median_us: Median over the runs.
        p10_us: Tenth percentile.
        p90_us: Ninetieth percentile.
        share: Share of the whole run, 0 to 1, with the hand-over of values to the next kernel. The shares of kernels that run
            one after the other add up to 1.
    """

    name: str
    target: str
    median_us: float
    p10_us: float
    p90_us: float
    share: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The result of ``Executable.profile``, measured with all caches warm and all kernels in their places.

    Attributes:
        kernels: Its kernels, in the order in which they run.
        total_us: Median time of the whole run.
        overhead_us: Time of a run outside kernels, in µs: checking inputs and passing values on.
        runs: Each run's spans, one for each kernel, in ns of a clock of their own.
    """

    kernels: tuple[KernelTime, ...]
    total_us: float
    overhead_us: float
    runs: tuple[tuple[Span, ...], ...]

    @classmethod
    def of(cls, records: Sequence[KernelRecord], runs: Sequence[Sequence[Span]], totals_ns: Sequence[int]) -> Profile:
        """Sum up runs.

        Args:
            records: The kernels.
            runs: Span of each kernel, in each run.
            totals_ns: Duration of each run.
        """
        total_us = statistics.median(totals_ns) * 1e-3
        kernels = []
        parts = [_shares(run, total) for run, total in zip(runs, totals_ns, strict=True)]
        for position, record in enumerate(records):
            times = sorted((run[position][1] - run[position][0]) * 1e-3 for run in runs)
            median_us = statistics.median(times)
            low, high = times[len(times) // 10], times[-1 - len(times) // 10]
            share = statistics.median(part[position] for part in parts)
            kernels.append(KernelTime(record.name, record.target, median_us, low, high, share))
        spent = (total - _covered(run) for run, total in zip(runs, totals_ns, strict=True))
        overhead_us = statistics.median(spent) * 1e-3
        return cls(tuple(kernels), total_us, overhead_us, tuple(tuple(run) for run in runs))

    def as_json(self) -> dict[str, Any]:
        """JSON values only, without the single spans."""
        rows = [
            {
                "name": kernel.name,
                "target": kernel.target,
                "median_us": kernel.median_us,
                "p10_us": kernel.p10_us,
                "p90_us": kernel.p90_us,
                "share": kernel.share,
            }
            for kernel in self.kernels
        ]
        return {"total_us": self.total_us, "overhead_us": self.overhead_us, "runs": len(self.runs), "kernels": rows}

    def to_chrome_trace(self, path: str | Path) -> Path:
        """Write the runs as a trace that ``chrome://tracing`` and Perfetto open; one row for each target.

        Returns:
            The path.
        """
        rows = {target: row for row, target in enumerate(dict.fromkeys(kernel.target for kernel in self.kernels), 1)}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": {"name": target}}
            for target, row in rows.items()
        ]
        start = min((began for run in self.runs for began, _ in run), default=0)
        for number, run in enumerate(self.runs):
            for kernel, (began, end) in zip(self.kernels, run, strict=True):
                event = {"ph": "X", "name": kernel.name, "cat": "kernel", "pid": 1, "tid": rows[kernel.target]}
                event |= {"ts": (began - start) * 1e-3, "dur": (end - began) * 1e-3, "args": {"run": number}}
                events.append(event)
        file = Path(path)
        file.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))
        return file

    def __repr__(self) -> str:
        count, total_ms = len(self.kernels), self.total_us * 1e-3
        return f"<Profile: {total_ms:.3f} ms a run, kernels: {count}, runs: {len(self.runs)}>"

    def __str__(self) -> str:
        width = max((len(kernel.name) for kernel in self.kernels), default=0)
        lines = [
            f"{kernel.name:<{width}}  {kernel.median_us:>10.1f} µs  {kernel.share:>6.1%}  {kernel.target}"
            for kernel in self.kernels
        ]
        whole = f"{'whole run':<{width}}  {self.total_us:>10.1f} µs"
        return "\n".join([*lines, f"{whole}  of which {self.overhead_us:.1f} µs between kernels"])


def _shares(spans: Sequence[Span], total_ns: int) -> list[float]:
    """Return the share of each kernel in one run: of one after the other, from its start to the start of the next one."""
    starts = [began for began, _ in spans]
    if any(ended > following for (_, ended), following in zip(spans, starts[1:], strict=False)):
        return [(ended - began) / total_ns for began, ended in spans]
    # What lies outside all kernels is mostly before the first one: reading the caller's inputs.
    bounds = [spans[-1][1] - total_ns, *starts[1:], spans[-1][1]] if spans else []
    return [(after - before) / total_ns for before, after in itertools.pairwise(bounds)]


def _covered(spans: Sequence[Span]) -> int:
    """Return the ns during which at least one span lasted. Spans of kernels that ran at once overlap."""
    covered = end = 0
    for began, ended in sorted(spans):
        covered += max(0, ended - max(began, end))
        end = max(end, ended)
    return covered
