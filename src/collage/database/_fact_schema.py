"""Facts: knowledge other than timings. Each kind has a schema for its values.

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
    """Return True if a value may be kept under a name."""
    check = _FORMS.get(str(name.get("fact")))
    return _is_plain(value) and (check is None or check(value))


def is_finite(value: Any) -> bool:
    """Return True if it is a number (no truth value) from zero on, and finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Return True if it is JSON without NaN or infinity, and not nested beyond reason."""
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
        isinstance(value, list) and len(value) == 5 and all(map(is_finite, value)) and all(s > 0 for s in value[:3])
    )


def _is_standing(value: Any) -> bool:
    return _has(_STANDING, value)


def _is_finite_or_none(value: Any) -> bool:
    return value is None or is_finite(value)


def _are_nodes(value: Any) -> bool:
    return isinstance(value, list) and all(type(node) is int and 0 <= node < _MOST_NODES for node in value)


def _is_part(value: Any) -> bool:
    """Return True if it is a labelled part of a kernel, with parts of its own."""
    if not isinstance(value, dict) or value.keys() != {"nodes", "label", "parts"}:
        return False
    nodes, label, parts = value["nodes"], value["label"], value["parts"]
    return (
        _are_nodes(nodes)
        and bool(nodes)
        and isinstance(label, str)
        and isinstance(parts, list)
        and all(map(_is_part, parts))
    )


def _are_bodies(value: Any) -> bool:
    """Return True if it is the plan of the bodies of an operator, or None."""
    return value is None or (
        isinstance(value, list)
        and all(
            isinstance(kernels, list) and all(_has(_BODY_KERNEL, kernel) for kernel in kernels) for kernels in value
        )
    )


_BODY_KERNEL: Mapping[str, Callable[[Any], bool]] = {
    "target": lambda value: isinstance(value, str),
    "nodes": lambda value: _are_nodes(value) and bool(value),
    "parts": lambda value: isinstance(value, list) and all(map(_is_part, value)),
    "rule": lambda value: isinstance(value, str),
    "bodies": _are_bodies,
}

_PLANNED: Mapping[str, Callable[[Any], bool]] = {
    "target": lambda value: isinstance(value, str),
    "nodes": _are_nodes,
    "parts": lambda value: isinstance(value, list) and all(map(_is_part, value)),
    "bodies": _are_bodies,
    "rule": lambda value: isinstance(value, str),
    "device": _is_text_or_none,
    "branch": lambda value: value is None or (type(value) is int and value > 0),
    "tuned": _is_text_or_none,
    "estimate_s": _is_finite_or_none,
}

_PLAN: Mapping[str, Callable[[Any], bool]] = {
    "name": lambda value: isinstance(value, str),
    "single": _is_text_or_none,
    "kernels": lambda value: isinstance(value, list) and all(_has(_PLANNED, kernel) for kernel in value),
    "predicted_s": _is_finite_or_none,
    "standing": lambda value: value is None or _is_standing(value),
}

_SEARCH: Mapping[str, Callable[[Any], bool]] = {
    "stopped_by": lambda value: isinstance(value, str),
    "candidates": is_finite,
    "keys": is_finite,
    "states": is_finite,
    "rounds": is_finite,
    "caps": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "notes": lambda value: isinstance(value, list) and all(isinstance(note, str) for note in value),
    "optimal": lambda value: isinstance(value, bool),
    "gap": _is_finite_or_none,
    "strategy": lambda value: isinstance(value, str),
    "tuning": lambda value: isinstance(value, str),
}

_STANDING: Mapping[str, Callable[[Any], bool]] = {
    "status": lambda value: isinstance(value, str) and value in tuple(Status),
    "time": _is_summary,
    "reason": _is_text_or_none,
    "errors": lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_finite_or_none, value)),
    "paired_s": _is_finite_or_none,
    "ratio": lambda value: value is None or _are_figures(value, 3),
    "rounds_s": lambda value: isinstance(value, list) and all(map(is_finite, value)),
    "slower": lambda value: isinstance(value, list) and all(map(is_finite, value)),
    "lost": lambda value: isinstance(value, bool),
}

_BASELINE: Mapping[str, Callable[[Any], bool]] = {"target": _is_text_or_none, "standing": _is_standing}

_RESULT: Mapping[str, Callable[[Any], bool]] = {
    "winner": lambda value: isinstance(value, str),
    "plans": lambda value: isinstance(value, list) and all(_has(_PLAN, plan) for plan in value),
    "time": _is_summary,
    "speedup": lambda value: value is None or _are_figures(value, 3),
    "rivals": lambda value: isinstance(value, dict) and all(_are_figures(each, 2) for each in value.values()),
    "baseline": lambda value: value is None or _has(_BASELINE, value),
    "overruled": _is_text_or_none,
    "shares": lambda value: isinstance(value, list) and all(map(is_finite, value)),
    "additive_error": lambda value: value is None or (isinstance(value, int | float) and type(value) is not bool),
    "kernels_ok": lambda value: value is None or isinstance(value, bool),
    "kernels_error": _is_finite_or_none,
    "search": lambda value: _has(_SEARCH, value),
}


def _has(forms: Mapping[str, Callable[[Any], bool]], value: Any) -> bool:
    """Return True if it is an object of exactly these members, each of its form."""
    return isinstance(value, dict) and value.keys() == forms.keys() and all(forms[k](v) for k, v in value.items())


def _are_figures(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(map(is_finite, value))


def _is_result(value: Any) -> bool:
    """Return True if it has the form that ``collage.compiler.result_store`` writes: unique names, the winner among them."""
    if isinstance(value, dict):
        value = {name: part for name, part in value.items() if name != "pace"}  # Earlier releases kept it.
    if not _has(_RESULT, value):
        return False
    names = [plan["name"] for plan in value["plans"]]
    return len(set(names)) == len(names) and value["winner"] in names


def _is_tuned_kernel(value: Any) -> bool:
    figures = ("took_s", "effort_s", "ratio")
    return (
        isinstance(value, dict)
        and value.keys() == {"records", *figures}
        and isinstance(value["records"], str)
        and all(is_finite(value[name]) for name in figures)
    )


def _are_lengths(value: Any) -> bool:
    taken = value.get("taken", 0) if isinstance(value, dict) else 0
    return taken is None or (isinstance(taken, dict) and all(map(is_finite, taken.values())))


def _is_hand_over(value: Any) -> bool:
    return isinstance(value, dict) and is_finite(value.get("latency_s")) and is_finite(value.get("s_per_byte"))


def _is_verdict_on_preparation(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"left_out", "reasons"}:
        return False
    names, reasons = value["left_out"], value["reasons"]
    texts = isinstance(names, list) and isinstance(reasons, list) and all(isinstance(t, str) for t in names + reasons)
    return texts and len(names) == len(reasons)


_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "bench-1": lambda value: isinstance(value, list) and all(isinstance(target, str) for target in value),
    "calm-2": lambda value: is_finite(value) and value > 0,
    "hand-over-1": _is_hand_over,
    "lengths-1": _are_lengths,
    "machine": lambda value: isinstance(value, dict),
    "overheads-2": _is_overheads,
    "peak-2": _is_peak,
    "plan-4": _is_result,
    "preparation-1": _is_verdict_on_preparation,
    "profile": _is_profile,
    "quarantine": _is_quarantine,
    "share-2": _is_verdict,
    "support": _is_support,
    "tuned-1": _is_tuned_kernel,
    "tuning-1": lambda value: isinstance(value, str),
}
