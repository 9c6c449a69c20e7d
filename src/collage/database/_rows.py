"""Conversion between outcomes and rows of the database, with the validation of rows."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any

from collage.cost.outcome import Outcome
from collage.cost.statistics import Summary
from collage.cost.workload_key import WorkloadKey, digest_of
from collage.status import OUTCOMES, Status
from collage.system.codec import check_bounds, read_text

__all__ = [
    "MOST_TEXT",
    "clean_text",
    "fact_row",
    "is_finite",
    "outcome_of",
    "parts_of",
    "read_json",
    "timing_row",
    "valid_row",
    "value_of",
    "why_no_key",
]

_MOST_TEXT = 2000
# Characters of a text inside a fact, such as the record of a tuner.
MOST_TEXT = 16 << 20
_NEEDED = frozenset({"kernel", "target", "build", "machine"})
_TIMES = ("median_s", "p10_s", "p90_s", "samples", "spread")


def timing_row(key: WorkloadKey, outcome: Outcome, origin: str) -> dict[str, Any]:
    """The row of an outcome. Numbers that are not finite become NULL on every engine."""
    measured = outcome.time
    figures = (measured.median_s, measured.p10_s, measured.p90_s, measured.count, measured.spread) if measured else ()
    return {
        "digest": key.digest,
        "parts": json.dumps(key.parts(), sort_keys=True),
        "status": outcome.status.value,
        **dict.fromkeys(_TIMES),
        **dict(zip(_TIMES, figures, strict=False)),
        "error": outcome.error if outcome.error is not None and math.isfinite(outcome.error) else None,
        "reason": None if outcome.reason is None else clean_text(outcome.reason),
        "build_s": outcome.build_s,
        "made_at_s": time.time(),
        "origin": origin,
    }


def fact_row(name: Mapping[str, Any], value: Any, origin: str) -> dict[str, Any]:
    """The row of a fact."""
    return {
        "digest": digest_of(name),
        "name": json.dumps(name, sort_keys=True),
        "value": json.dumps(value, allow_nan=False),
        "made_at_s": time.time(),
        "origin": origin,
    }


def parts_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The named parts of a row's key; None if they are not bytes of a row, or do not fit its key."""
    parts = read_json(row["parts"])
    return parts if why_no_key(parts) is None and digest_of(parts) == row["digest"] else None


def why_no_key(parts: Any) -> str | None:
    """Return the reason why these are not the parts of a key, None if they are."""
    if not isinstance(parts, dict) or not parts.keys() >= _NEEDED:
        return f"the parts of a key are missing: {', '.join(sorted(_NEEDED))} must be there"
    if not all(isinstance(part, str if name in _NEEDED else str | int) for name, part in parts.items()):
        return "the parts of a key are text and integers"
    return None


def outcome_of(row: Mapping[str, Any]) -> Outcome | None:
    """Return the outcome in a row; None if it is not valid: its status, a time or its digest is wrong."""
    if parts_of(row) is None or not isinstance(row["status"], str) or row["status"] not in OUTCOMES:
        return None
    status = Status(row["status"])
    measured = _summary(row) if row["median_s"] is not None else None
    if measured is None and (status is Status.OK or row["median_s"] is not None):
        return None
    reason = clean_text(row["reason"]) if isinstance(row["reason"], str) else None
    error = float(row["error"]) if is_finite(row["error"]) else None
    build_s = float(row["build_s"]) if is_finite(row["build_s"]) else 0.0
    return Outcome(status, reason, measured, error, build_s, recorded=True)


def valid_row(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the row of a timing with columns of the right types only, None if it has no valid outcome."""
    outcome = outcome_of(row)
    if outcome is None:
        return None
    figures = {} if outcome.time else dict.fromkeys(_TIMES)
    return {**row, **figures, "reason": outcome.reason, "error": outcome.error, "build_s": outcome.build_s}


def value_of(row: Mapping[str, Any]) -> Any:
    """The JSON value of a fact, or None if it is damaged. Its form is checked where the fact is read, see ``FactKind``."""
    name = read_json(row["name"])
    return read_json(row["value"]) if isinstance(name, dict) and digest_of(name) == row["digest"] else None


def read_json(text: Any) -> Any:
    """A JSON value, or None if the text is none, or one that is not bounded. NaN and infinity are none."""
    try:
        value = read_text(text) if isinstance(text, str) else None
        check_bounds(value, "a row", MOST_TEXT)
    except ValueError:
        return None
    return value


def is_finite(value: Any) -> bool:
    """Return True if it is a number (no truth value) from zero on, and finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def clean_text(text: str) -> str:
    """Text that every engine takes: no NUL, no half of a character, not too long."""
    return text[:_MOST_TEXT].replace("\x00", "").encode(errors="replace").decode()


def _summary(row: Mapping[str, Any]) -> Summary | None:
    figures = [row[name] for name in _TIMES]
    if not all(map(is_finite, figures)):
        return None
    median, p10, p90, samples, spread = figures
    if not 0 < p10 <= median <= p90 or samples < 1 or samples != int(samples):
        return None
    return Summary(float(median), float(p10), float(p90), int(samples), float(spread))
