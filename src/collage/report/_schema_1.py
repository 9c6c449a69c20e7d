"""Schema 1 of the report: reading what older versions wrote, and the old keys that are written for one release more.

Older versions validated nothing when they read a report. So whatever is malformed here is left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from collage._errors import TargetError
from collage.report._types import (
    KernelRow,
    ModelFacts,
    Numerics,
    Occasion,
    Ratio,
    ReferenceFacts,
    ReportValues,
    Row,
    SearchFacts,
    Times,
    Verdict,
)
from collage.system.codec import from_json, to_json
from collage.target import Target

__all__ = ["old_keys", "upgraded"]

_VERDICTS: Mapping[str, Verdict] = {
    "unsupported": "refused",
    "compile error": "failed",
    "crash": "crashed",
    "time-out": "time-out",
    "out of memory": "out of memory",
    "wrong": "wrong",
}
_STATUSES = {verdict: status for status, verdict in _VERDICTS.items()} | {
    "over budget": "wrong",
    "unavailable": "unsupported",
}


def upgraded(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``ReportValues`` that a report of schema 1 holds.

    Its times mix the rounds that chose with those that were reported. So rows have no ratios.
    The speed-up is of the rounds that were reported, and stays.
    """
    winner = _text(old.get("winner"))
    kernels = tuple(map(_kernel, _list(old.get("kernels"))))
    numerics = _mapping(old.get("numerics"))
    lengths = numerics.get("other_lengths")
    found: dict[str, Any] = {
        "model": _lenient(ModelFacts, old.get("model")),
        "menu": _texts(old.get("menu")),
        "winner": winner,
        "rows": tuple(_rows(old, winner)),
        "kernels": kernels,
        "estimate_us": _number(old.get("estimate_us")),
        "additive_error": _number(old.get("additive_error")),
        "search": _lenient(SearchFacts, old.get("search")),
        "numerics": _lenient(
            Numerics,
            {
                **numerics,
                "reference": to_json(_lenient(ReferenceFacts, numerics.get("reference"))),
                # The oldest reports have one set of lengths where later ones have several.
                "other_lengths": [lengths] if isinstance(lengths, Mapping) else lengths,
            },
        ),
        "warnings": _texts(old.get("warnings")),
        "occasions": tuple(filter(None, (_read(Occasion, each) for each in _list(old.get("occasions"))))),
    }
    for name in ("dims", "devices"):
        if isinstance(old.get(name), Mapping):
            found[name] = dict(old[name])
    return found


def _rows(old: Mapping[str, Any], winner: str) -> list[Row]:
    """Return a row for each finalist and each single target that was not raced."""
    menu = _texts(old.get("menu"))
    rows: dict[str, Row] = {}
    for each in map(_mapping, [*_list(old.get("finalists")), *_list(old.get("singles"))]):
        name = _text(each.get("name", each.get("target")))
        if not name or name in rows:
            continue
        status = _text(each.get("status"))
        time, reason = _read(Times, each.get("measured_us")), each.get("reason")
        kernels = each.get("kernels")
        verdict: Verdict = "returned" if name == winner else _VERDICTS.get(status, "not raced")
        rows[name] = Row(
            name,
            "single" if name in menu else "mix",
            verdict,
            name if name in menu else None,
            kernels if type(kernels) is int else None,
            _precision(name),
            measured_us=time,
            estimate_us=_number(each.get("estimate_us")),
            reason=reason if isinstance(reason, str) else None,
        )
    if winner in rows:
        rows[winner] = dataclasses.replace(rows[winner], ratio=Ratio(1.0, 1.0, 1.0))
        interval, value = old.get("speedup_interval"), _number(old.get("speedup_vs_best_single"))
        if value and isinstance(interval, list) and len(interval) == 2 and None not in map(_number, interval):
            _tell_speedup(rows, winner, Ratio(value, *map(float, interval)))
    return sorted(rows.values(), key=lambda row: row.measured_us.median if row.measured_us else math.inf)


def _tell_speedup(rows: dict[str, Row], winner: str, speedup: Ratio) -> None:
    """Give the fastest single its ratio to the winner, which is the speed-up that was reported."""
    singles = [row for row in rows.values() if row.kind == "single" and row.measured_us and row.verdict == "not raced"]
    if rows[winner].kind == "single" or not singles:
        return
    best = min(singles, key=lambda row: row.measured_us.median if row.measured_us else math.inf)
    rows[best.name] = dataclasses.replace(best, ratio=speedup, verdict="slower" if speedup.low > 1.0 else "tie")


def _kernel(told: Any) -> KernelRow:
    each = _mapping(told)
    return KernelRow(
        _text(each.get("name")),
        _text(each.get("target")),
        _text(each.get("operators")),
        _texts(each.get("nodes")),
        _text(each.get("rule")),
        _number(each.get("estimate_us")),
        _text(each.get("device")) or None,
    )


def _precision(name: str) -> str | None:
    try:
        target = Target.parse(name)
    except TargetError:
        return None
    return target.option("precision") if target.is_reduced else None


def _lenient(form: type[Any], data: Any) -> Any:
    """Return a dataclass whose fields are all optional, without those that are malformed."""
    given = {}
    for name, value in _mapping(data).items():
        try:
            given[name] = getattr(from_json(form, {name: value}), name)
        except (ValueError, AttributeError):
            continue
    return form(**given)


def _read(form: type[Any], data: Any) -> Any:
    try:
        return from_json(form, data)
    except ValueError:
        return None


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(value for value in _list(values) if isinstance(value, str))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def old_keys(report: ReportValues) -> dict[str, Any]:
    """Return the keys of schema 1 that schema 2 lacks; they go with the next release."""
    gain, returned = report.gain("best_single"), report.returned
    return {
        "measured_us": None if returned is None else _times(returned),
        "singles": [_single(row) for row in report.rows if row.kind == "single"],
        "finalists": [_finalist(row) for row in report.rows if row.kind != "baseline" and row.kernels is not None],
        "speedup_vs_best_single": None if gain is None else gain.ratio.value,
        "speedup_interval": None if gain is None else [gain.ratio.low, gain.ratio.high],
    }


def _single(row: Row) -> dict[str, Any]:
    return {
        "target": row.target,
        "status": _status(row),
        "raced": row.ratio is not None,
        "measured_us": _times(row),
        "reason": row.reason,
        **({} if row.unbound_us is None else {"unbound_us": asdict(row.unbound_us)}),
    }


def _finalist(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "kernels": row.kernels,
        "status": _status(row),
        "estimate_us": row.estimate_us,
        "measured_us": _times(row),
        "reason": row.reason,
    }


def _status(row: Row) -> str:
    return _STATUSES.get(row.verdict, "ok")


def _times(row: Row) -> dict[str, float] | None:
    time = row.measured_us
    return None if time is None else {"median": time.median, "p10": time.p10, "p90": time.p90}
