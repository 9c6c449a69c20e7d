"""Objectives of a compilation, and limits that its result must keep: values, and their texts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from collage._errors import UsageError

__all__ = ["NEIGHBOURS", "OBJECTIVES", "QUANTITIES", "Figures", "Limit", "amount", "read_limits"]

OBJECTIVES = ("latency", "throughput", "memory", "size")
"""The figures that a compilation may optimise; see ``CompileOptions.objective``."""

NEIGHBOURS = ("none", "idle", "equal")
"""Processes beside which plans are compared: none, one of idle priority, and one of equal priority."""

QUANTITIES: Mapping[str, str] = {
    "p50": "p50_s",
    "p90": "p90_s",
    "p95": "p95_s",
    "p99": "p99_s",
    "rss": "rss_bytes",
    "size": "size_bytes",
    "throughput": "runs_per_s",
}
"""The quantities that limits are about, each with its field of ``Figures``."""

_UNITS: Mapping[str, Mapping[str, float]] = {
    "s": {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0},
    "bytes": {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
    "per_s": {"/s": 1.0},
}
_FORM = re.compile(
    r"\s*([A-Za-z0-9]+)\s*(<=|>=)\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]+)\s*", re.ASCII
)
_EXAMPLES = '"p99<=20ms", "rss<=400MB", "size<=10MB" or "throughput>=50/s"'
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one plan, measured as it is used. None if it was not measured.

    Attributes:
        runs_per_s: Runs per second of all streams together.
        p50_s: Median latency of a run while all streams are busy, in seconds.
        p90_s: Ninetieth percentile.
        p95_s: Ninety-fifth percentile.
        p99_s: Ninety-ninth percentile.
        rss_bytes: Largest resident set of a fresh process that loads the artefact and runs it.
        size_bytes: Bytes of the files of the artefact.
    """

    runs_per_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    rss_bytes: float | None = None
    size_bytes: float | None = None

    def of(self, quantity: str) -> float | None:
        """Return the figure that a limit with this quantity is about."""
        found: float | None = getattr(self, QUANTITIES[quantity])
        return found

    def as_json(self) -> dict[str, float]:
        """Return the figures that are known, by the names of their fields."""
        known = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in known if value is not None}


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on one quantity.

    Attributes:
        quantity: One of ``QUANTITIES``.
        value: Limit in seconds, bytes or runs per second: a lower bound of the throughput, an upper bound of other quantities.
        text: The text that the user wrote.
    """

    quantity: str
    value: float
    text: str

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Read a limit such as ``p99<=20ms``.

        Raises:
            UsageError: The text is not a limit, in one sentence.
        """
        found = _FORM.fullmatch(text)
        shown = ascii(text if len(text) <= _LONGEST else text[:_LONGEST] + "...")
        if found is None:
            raise UsageError(f"cannot read the limit {shown}; write for example {_EXAMPLES}")
        quantity, relation, number, unit = found.groups()
        if quantity not in QUANTITIES:
            raise UsageError(f"limit {shown}: {quantity!r} is not one of {', '.join(QUANTITIES)}")
        wanted = ">=" if quantity == "throughput" else "<="
        if relation != wanted:
            raise UsageError(f"limit {shown}: a limit of {quantity} is written with {wanted}")
        units = _UNITS[_kind(quantity)]
        if unit not in units:
            raise UsageError(f"limit {shown}: {unit!r} is not a unit of {quantity}, which are {', '.join(units)}")
        value = float(number) * units[unit]
        if not 0 < value < math.inf:
            raise UsageError(f"limit {shown}: it takes a positive number")
        return cls(quantity, value, f"{quantity}{relation}{number}{unit}")

    def excess(self, figures: Figures) -> float | None:
        """Return how many times the limit is missed: at most 1 if it is kept; None if its quantity was not measured."""
        value = figures.of(self.quantity)
        if value is None:
            return None
        if self.quantity != "throughput":
            return value / self.value
        return self.value / value if value > 0 else math.inf

    def is_kept(self, figures: Figures) -> bool:
        """Return True if the limit is known to be kept."""
        excess = self.excess(figures)
        return excess is not None and excess <= 1.0


def read_limits(limits: Iterable[str | Limit]) -> tuple[Limit, ...]:
    """Return limits, read where they are texts.

    Raises:
        UsageError: One of them is not a limit.
    """
    if isinstance(limits, str):
        limits = (limits,)
    return tuple(limit if isinstance(limit, Limit) else Limit.parse(_text(limit)) for limit in limits)


def _text(limit: Any) -> str:
    if not isinstance(limit, str):
        raise UsageError(f"a limit is a text such as {_EXAMPLES}, not {type(limit).__name__}")
    return limit


def amount(quantity: str, value: float) -> str:
    """Return a figure with its unit: ``18.2 ms``, ``395 MB``, ``1543 runs/s``."""
    kind = _kind(quantity)
    if kind == "s":
        return f"{value * 1e3:.3f} ms"
    if kind == "per_s":
        return f"{value:.4g} runs/s" if value < 1000 else f"{value:.0f} runs/s"
    return f"{value / 1e6:.3f} MB" if value < 1e7 else f"{value / 1e6:.1f} MB"


def _kind(quantity: str) -> str:
    return {"rss": "bytes", "size": "bytes", "throughput": "per_s"}.get(quantity, "s")
