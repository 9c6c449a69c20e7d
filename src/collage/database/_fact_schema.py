"""Facts: what is known besides timings, each kind with the form that its values must have.

A database may have been damaged, or come from anywhere; so a value is handed out, or imported, only if it has the form that
its readers expect. Kinds that are not listed here may be any JSON value of finite numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from collage.cost.outcome import Status

__all__ = ["is_finite", "is_valid_fact"]

_MOST_DEEP = 32
_MOST_NODES = 1 << 20


def is_valid_fact(name: Mapping[str, Any], value: Any) -> bool:
    """Whether a value may be kept under a name."""
    check = _FORMS.get(str(name.get("fact")))
    return _is_plain(value) and (check is None or check(value))


def is_finite(value: Any) -> bool:
    """Whether it is a number (no truth value) from zero on, and finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether it is JSON without NaN or infinity, and not nested beyond reason."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict | list):
        members = value.values() if isinstance(value, dict) else value
        return depth < _MOST_DEEP and all(_is_plain(member, depth + 1) for member in members)
    return value is None or isinstance(value, bool | int | str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_support(value: Any) -> bool:
    return isinstance(value, dict) and "reason" in value and _is_text_or_none(value["reason"])


def _is_profile(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_finite, value))


def _is_overheads(value: Any) -> bool:
    return isinstance(value, dict) and is_finite(value.get("dispatch_s")) and is_finite(value.get("launch_s"))


def _is_peak(value: Any) -> bool:
    rates: list[Any] = [value.get("flops_per_s"), value.get("bytes_per_s")] if isinstance(value, dict) else [None]
    return all(is_finite(rate) and rate > 0 for rate in rates)


def _is_verdict(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("ok"), bool) and _is_text_or_none(value.get("reason"))


def _is_quarantine(value: Any) -> bool:
    return isinstance(value, dict) and is_finite(value.get("since_s")) and isinstance(value.get("reason"), str)


def _is_summary(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and len(value) == 5 and all(map(is_finite, value)) and value[0] > 0
    )


def _is_standing(value: Any) -> bool:
    if not isinstance(value, list) or len(value) not in (5, 6, 7):  # Earlier versions told less.
        return False
    status, time_, reason, *figures = value
    known = isinstance(status, str) and status in tuple(Status)
    return known and _is_summary(time_) and _is_text_or_none(reason) and all(f is None or is_finite(f) for f in figures)


def _is_race(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("standings"), dict):
        return False
    speedup = value.get("speedup")
    known = speedup is None or (isinstance(speedup, list) and len(speedup) == 3 and all(map(is_finite, speedup)))
    finished = isinstance(value.get("time"), list) and _is_summary(value["time"])
    return (
        known
        and finished
        and value.get("winner") in value["standings"]
        and all(map(_is_standing, value["standings"].values()))
    )


def _is_race_at_a_pace(value: Any) -> bool:
    return _is_race(value) and is_finite(value.get("pace")) and value["pace"] >= 1.0


def _is_winner(value: Any) -> bool:
    kernels = value.get("kernels") if isinstance(value, dict) else None
    return isinstance(kernels, list) and all(map(_is_kernel, kernels))


def _is_search(value: Any) -> bool:
    candidates = value.get("candidates") if isinstance(value, dict) else None
    return isinstance(candidates, list) and all(map(_is_candidate, candidates)) and is_finite(value.get("asked"))


def _are_finalists(value: Any) -> bool:
    plans = value.get("plans") if isinstance(value, dict) else None
    return isinstance(plans, list) and all(map(_is_named_plan, plans))


def _is_named_plan(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], list):
        return False
    return isinstance(value[0], str) and all(map(_is_kernel, value[1]))


def _are_rejected(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("model"), str) and _is_winner(value)


def _is_candidate(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], list) or not value[1]:
        return False
    return _is_kernel(value[:2]) and all(isinstance(rule, str) for rule in value[2])


def _is_kernel(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], list):
        return False
    return isinstance(value[0], str) and all(isinstance(n, int) and 0 <= n < _MOST_NODES for n in value[1])


def _is_profile_by_node(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_node, value)) and all(map(is_finite, value.values()))


def _is_node(key: str) -> bool:
    return key.isdecimal() and len(key) <= len(str(_MOST_NODES)) and int(key) < _MOST_NODES


def _is_tuned_kernel(value: Any) -> bool:
    figures = ("took_s", "effort_s", "ratio")
    return (
        isinstance(value, dict)
        and value.keys() == {"records", *figures}
        and isinstance(value["records"], str)
        and all(is_finite(value[name]) for name in figures)
    )


def _is_correction(value: Any) -> bool:
    if not (isinstance(value, dict) and value.keys() == {"chain_s", "parts"} and all(map(is_finite, value.values()))):
        return False
    return bool(0 < value["parts"] <= 1)


def _are_lengths(value: Any) -> bool:
    taken = value.get("taken", 0) if isinstance(value, dict) else 0
    return taken is None or (isinstance(taken, dict) and all(map(is_finite, taken.values())))


def _is_hand_over(value: Any) -> bool:
    return isinstance(value, dict) and is_finite(value.get("latency_s")) and is_finite(value.get("s_per_byte"))


def _is_reckoning(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"parts", "whole_s"}:
        return False
    return is_finite(value["parts"]) and is_finite(value["whole_s"]) and value["whole_s"] > 0


def _is_verdict_on_preparation(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"left_out", "reasons"}:
        return False
    names, reasons = value["left_out"], value["reasons"]
    texts = isinstance(names, list) and isinstance(reasons, list) and all(isinstance(t, str) for t in names + reasons)
    return texts and len(names) == len(reasons)


_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "beside-1": _is_reckoning,
    "calibration-1": _is_correction,
    "calibration-2": _is_correction,
    "calm-1": lambda value: is_finite(value) and value > 0,
    "calm-2": lambda value: is_finite(value) and value > 0,
    "chain-1": is_finite,
    "finalists-1": _are_finalists,
    "hand-over-1": _is_hand_over,
    "keeps-1": _is_support,
    "lengths-1": _are_lengths,
    "machine": lambda value: isinstance(value, dict),
    "overheads-1": _is_overheads,
    "overheads-2": _is_overheads,
    "parts-1": _is_profile_by_node,
    "peak-1": _is_peak,
    "peak-2": _is_peak,
    "preparation-1": _is_verdict_on_preparation,
    "profile": _is_profile,
    "quarantine": _is_quarantine,
    "race-1": _is_race,
    "race-2": _is_race,
    "race-3": _is_race,
    "race-4": _is_race,
    "race-5": _is_race_at_a_pace,
    "rejected-1": _are_rejected,
    "search-2": _is_search,
    "share-1": _is_verdict,
    "support": _is_support,
    "tuned-1": _is_tuned_kernel,
    "tuning-1": lambda value: isinstance(value, str),
    "winner-1": _is_winner,
}
