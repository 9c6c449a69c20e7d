"""The record of artefacts that were made before records were kept, rebuilt from their report.

A report may hold anything, so what is not of the expected type counts as not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collage.explain._nodes import NodeRanges
from collage.explain._record import ChosenKernel, KernelStatus, TargetAnswer, TriedKernel, TriedPlan, TriedRecord

__all__ = ["record_of_report"]

_UNKNOWN = "?"
_MOST = 20_000
_TEXT = 500
_SMALLEST, _LARGEST = 1e-9, 1e15
_NOTE = (
    "this artefact has no record of what was tried, as it was made by an earlier version or without a compilation: "
    "kernels that were not chosen are not known"
)
_ENDS = {
    "wrong": KernelStatus.WRONG,
    "refused": KernelStatus.REFUSED,
    "unavailable": KernelStatus.REFUSED,
    "failed": KernelStatus.FAILED,
    "crashed": KernelStatus.FAILED,
}


def record_of_report(report: Mapping[str, Any], kernels: Sequence[tuple[str, str]]) -> TriedRecord:
    """Return a record with the facts that a report holds.

    Args:
        report: The report of an artefact.
        kernels: Name and target of each kernel, which the artefact itself tells.
    """
    told = {_text(each.get("name")): each for each in _mappings(report.get("kernels"))}
    names: list[str] = []
    types: list[str] = []
    chosen = []
    for name, target in kernels:
        entry = told.get(name, {})
        nodes = [_text(node) for node in _items(entry.get("nodes"))] or [name]
        begin = len(names)
        names += nodes
        types += _types(_text(entry.get("operators")), len(nodes))
        time_us = _number(entry.get("estimate_us"))
        status = KernelStatus.NOT_MEASURED if time_us is None else KernelStatus.MEASURED
        row = TriedKernel(
            NodeRanges(((begin, len(names) - 1),)), target, status, time_us, rule=_text(entry.get("rule"))
        )
        branch = entry.get("branch")
        chosen.append(ChosenKernel(name, row, branch=branch if type(branch) is int else None))
    winner, rows = _text(report.get("winner")), _mappings(report.get("rows"))
    return TriedRecord(
        tuple(names),
        tuple(types),
        winner or "the plan",
        _number(report.get("estimate_us")),
        tuple(chosen),
        plans=tuple(
            _plan(row, winner) for row in rows if row.get("kind") != "baseline" and _is_count(row.get("kernels"))
        ),
        targets=tuple(_answer(row) for row in rows if row.get("kind") == "single"),
        tried=tuple(kernel.kernel for kernel in chosen),
        notes=(_NOTE,),
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _plan(told: Mapping[str, Any], winner: str) -> TriedPlan:
    name, count = _text(told.get("name")), told.get("kernels")
    return TriedPlan(
        name,
        (),
        count if type(count) is int and count >= 0 else 0,
        _text(told.get("verdict")),
        _number(told.get("estimate_us")),
        _median(told.get("measured_us") or told.get("alone_us")),
        _text(told.get("reason")),
        is_returned=name == winner,
    )


def _answer(told: Mapping[str, Any]) -> TargetAnswer:
    status = _ENDS.get(_text(told.get("verdict")), KernelStatus.MEASURED)
    return TargetAnswer(
        _text(told.get("target")),
        True,
        _text(told.get("reason")),
        "",
        status,
        _median(told.get("measured_us") or told.get("alone_us")),
    )


def _types(operators: str, count: int) -> list[str]:
    """Return the types of a kernel's operators, as far as a short text names them."""
    named = operators.split(", ") if operators else []
    if len(named) == count:
        return named
    ends = operators.partition(" (")[0].split(" … ")
    types = [_UNKNOWN] * count
    if len(ends) == 2:
        types[0], types[-1] = ends
    return types


def _items(value: Any) -> list[Any]:
    return value[:_MOST] if isinstance(value, list) else []


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in _items(value) if isinstance(each, Mapping)]


def _text(value: Any) -> str:
    return value[:_TEXT] if isinstance(value, str) else ""


def _median(value: Any) -> float | None:
    return _number(value.get("median")) if isinstance(value, Mapping) else None


def _number(value: Any) -> float | None:
    is_number = type(value) in (int, float) and _SMALLEST <= value <= _LARGEST
    return float(value) if is_number else None
