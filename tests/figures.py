"""Figures of a report that many tests look at."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from collage.report import Report, Row, Times
from collage.status import OUTCOMES, Status


def figures(report: Report) -> dict[str, Any]:
    """Return the single toolchains, the plans, the time and the speed-up of a report."""
    gain, returned = report.gain("best_single"), report.returned
    plans = [row for row in report.rows if row.kind != "baseline" and row.kernels is not None]
    return {
        "measured_us": None if returned is None else _times(returned),
        # Small models are tried on one thread too, where there are several processors.
        "singles": [
            _single(row) for row in report.rows if row.kind == "single" and "-threads=1" not in str(row.target)
        ],
        "finalists": [{**_single(row), "name": row.name, "kernels": row.kernels} for row in plans],
        "speedup_vs_best_single": None if gain is None else gain.ratio.value,
        "speedup_interval": None if gain is None else [gain.ratio.low, gain.ratio.high],
    }


def _single(row: Row) -> dict[str, Any]:
    return {
        "target": row.target,
        "status": _status(row.verdict),
        "raced": row.ratio is not None,
        "measured_us": _times(row),
        "reason": row.reason,
        **({} if row.unbound_us is None else {"unbound_us": asdict(row.unbound_us)}),
    }


def _times(row: Row) -> dict[str, float] | None:
    time: Times | None = row.measured_us
    return None if time is None else {"median": time.median, "p10": time.p10, "p90": time.p90}


def _status(verdict: Status) -> Status:
    """Return the status of a measurement that a verdict tells of."""
    others = {Status.OVER_BUDGET: Status.WRONG, Status.UNAVAILABLE: Status.REFUSED}
    return others.get(verdict, verdict if verdict in OUTCOMES else Status.OK)
