"""The sentences on an objective other than the latency, and on limits. All of it follows from the report alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collage.report._types import ReportValues, Row
from collage.system.texts import counted

__all__ = ["by_runs", "objective_lines", "of_streams", "runs_per_s"]

_BYTES = {"memory": ("rss_bytes", "largest resident set"), "size": ("size_bytes", "artefact")}


def by_runs(report: ReportValues) -> bool:
    """Return True if the comparison was one of runs per second, with several runs at once."""
    return report.objective.get("name") == "throughput"


def of_streams(row: Row) -> str:
    """Return the words on a row's streams; nothing if it has none."""
    if row.streams is None:
        return ""
    return f", {counted(row.streams, 'stream')} of {counted(row.threads or 1, 'thread')}"


def runs_per_s(us: float | None) -> str:
    """Return the runs per second for this time of a run, as text; empty if it is not known."""
    return "" if not us else f"{1e6 / us:.1f}"


def objective_lines(report: ReportValues) -> list[str]:
    """Return the headline, and a line on the limits; nothing if the latency alone decides."""
    section = report.objective
    name, returned = section.get("name"), _mapping(section.get("returned"))
    lines = []
    if name == "throughput":
        lines += _throughput(section, returned)
    elif isinstance(name, str) and name in _BYTES:
        lines += _bytes(report, section, returned, *_BYTES[name])
    limits = [str(text) for text in _list(section.get("limits"))]
    if limits:
        lines.append(f"limits kept: {', '.join(limits)}{_figures(returned)}")
    return lines


def _throughput(section: Mapping[str, Any], returned: Mapping[str, Any]) -> list[str]:
    rate = _number(returned.get("runs_per_s"))
    if rate is None:
        return []
    line = f"throughput: {rate:.1f} runs/s"
    streams, threads = section.get("streams"), section.get("threads")
    if isinstance(streams, int) and isinstance(threads, int):
        line += f" with {counted(streams, 'run')} at once on {counted(threads, 'thread')} each"
    latencies = [
        f"{name} {value * 1e3:.3f} ms"
        for name in ("p50", "p95", "p99")
        if (value := _number(returned.get(f"{name}_s"))) is not None
    ]
    lines = [f"{line}; latency meanwhile: {', '.join(latencies)}" if latencies else line]
    batched = _mapping(section.get("batch"))
    if (batch := _number(batched.get("batch"))) is not None:
        rates = [_number(batched.get(key)) or 0.0 for key in ("rows_per_s", "rows_per_s_at_1")]
        told = f"batch {batch:.0f} ({batched.get('dimension')}): {rates[0]:.1f} rows/s"
        lines.append(f"{told}; one row at a time: {rates[1]:.1f}")
    return lines


def _bytes(
    report: ReportValues, section: Mapping[str, Any], returned: Mapping[str, Any], key: str, words: str
) -> list[str]:
    value = _number(returned.get(key))
    if value is None:
        return []
    rows = {str(row.get("name")): row for row in map(_mapping, _list(section.get("rows")))}
    own = _number(rows.get(report.winner, {}).get(key)) or value
    others = [
        (other, str(row.get("title")))
        for name, row in rows.items()
        if row.get("kind") == "single" and name != report.winner and (other := _number(row.get(key))) is not None
    ]
    other = _number(_mapping(section.get("baseline")).get(key))
    told = [] if other is None else [("what you have (the original file)", other)]
    told += [(f"the least of the other single toolchains ({name})", other) for other, name in sorted(others)[:1]]
    lines = [f"{words}: {_megabytes(value)}"]
    if own != value and key == "size_bytes":
        lines[0] += f", of which {_megabytes(value - own)} are its report and the record of the search"
    return lines + [f"{own / other:.3f} times {name}, {_megabytes(other)}" for name, other in told]


def _figures(returned: Mapping[str, Any]) -> str:
    """Return the figures of the returned plan that limits may be about."""
    told = []
    for name in ("p50", "p90", "p95", "p99"):
        if (value := _number(returned.get(f"{name}_s"))) is not None:
            told.append(f"{name} {value * 1e3:.3f} ms")
    for name, key in (("rss", "rss_bytes"), ("size", "size_bytes")):
        if (value := _number(returned.get(key))) is not None:
            told.append(f"{name} {_megabytes(value)}")
    if (value := _number(returned.get("runs_per_s"))) is not None:
        told.append(f"{value:.1f} runs/s")
    return f" ({', '.join(told)})" if told else ""


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.3f} MB" if value < 1e7 else f"{value / 1e6:.1f} MB"


def _mapping(data: Any) -> Mapping[str, Any]:
    return data if isinstance(data, Mapping) else {}


def _list(data: Any) -> Sequence[Any]:
    return data if isinstance(data, list | tuple) else ()


def _number(data: Any) -> float | None:
    return float(data) if isinstance(data, int | float) and not isinstance(data, bool) and data > 0 else None
