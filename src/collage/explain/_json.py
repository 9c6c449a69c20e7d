"""The record of what was tried as a file of an artefact: compact, bounded, and read with suspicion.

Texts that occur often (targets, reasons, rules) are in one table. Candidate kernels are rows of fixed length. An artefact
may come from anywhere, so every size and type is checked when a record is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from collage._errors import ArtefactError
from collage.explain._nodes import NodeRanges
from collage.explain._record import (
    Border,
    ChosenKernel,
    KernelStatus,
    TargetAnswer,
    TriedKernel,
    TriedPlan,
    TriedRecord,
)

__all__ = ["MAX_BYTES", "SCHEMA", "TRIED", "as_json", "from_json", "read_record", "trimmed", "write_record"]

TRIED = "tried.json"
"""File of an artefact that holds the record."""

SCHEMA = 1
"""Version of the record."""

MAX_BYTES = 16 << 20
"""A file larger than this is refused."""

_TABLE_BYTES = 1 << 20
"""Room for the rows of candidate kernels."""

_NAMES_BYTES = 8 << 20
"""Room for the names of operators. A model with longer names has a record without names."""

_TEXT = 500
"""Characters of a text."""

_MOST_ROWS = 20_000
_MOST_LISTED = 20_000
"""Kernels, borders, plans, targets and notes of a record, and reasons of a target."""
_MOST_VALUES = 8
_SMALLEST, _LARGEST = 1e-9, 1e15
"""Bounds of numbers, so that the ratio of any two fits a float. Smaller ones count as zero."""


def write_record(record: TriedRecord, folder: Path) -> None:
    """Write a record into a workspace, from where it gets into artefacts."""
    (folder / TRIED).write_text(json.dumps(as_json(record), separators=(",", ":"), allow_nan=False), encoding="utf-8")


def read_record(folder: Path) -> TriedRecord | None:
    """Return the record of an unpacked artefact; None if it has none.

    Raises:
        ArtefactError: The file is not a record, or too large to be one.
    """
    path = folder / TRIED
    if not path.exists() and not path.is_symlink():
        return None
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise ArtefactError(f"{path} is not a record of what was tried: it is not a plain file, or too large")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        return from_json(json.loads(data.decode("utf-8"), parse_constant=_refuse_constant))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        told = " ".join(str(error).split())[:200]
        raise ArtefactError(f"{path} is not a record of what was tried: {type(error).__name__}: {told}") from error


def trimmed(record: TriedRecord, room: int = _TABLE_BYTES) -> TriedRecord:
    """Return the record with as many candidate kernels as there is room for, the first ones; the rest is counted."""
    kept: list[TriedKernel] = []
    used, dropped = 0, dict(record.dropped)
    for row in record.tried:
        used += 48 + len(str(row.nodes)) + len(row.reason[:_TEXT]) // 4
        if used <= room and len(kept) < _MOST_ROWS:
            kept.append(row)
        else:
            dropped[row.status.value] = dropped.get(row.status.value, 0) + 1
    return replace(record, tried=tuple(kept), dropped=dropped)


def as_json(record: TriedRecord) -> dict[str, Any]:
    """Return a record as JSON values, trimmed to the size limit."""
    record, texts = trimmed(record), _Texts()
    names = [_short(name) for name in record.names]
    return {
        "schema": SCHEMA,
        "names": names if sum(map(len, names)) <= _NAMES_BYTES else [],
        "op_types": [texts.add(op_type) for op_type in record.op_types],
        "plan": record.plan,
        "predicted_us": record.predicted_us,
        "kernels": [
            {
                "name": kernel.name,
                "kernel": _row(kernel.kernel, texts),
                "launch_us": kernel.launch_us,
                "device": kernel.device,
                **({} if kernel.branch is None else {"branch": kernel.branch}),
            }
            for kernel in record.kernels[:_MOST_LISTED]
        ],
        "borders": [
            {
                **{field.name: getattr(border, field.name) for field in fields(border)},
                "values": [_short(name) for name in border.values[:_MOST_VALUES]],
            }
            for border in record.borders[:_MOST_LISTED]
        ],
        "plans": [
            {
                **{field.name: getattr(plan, field.name) for field in fields(plan)},
                "targets": list(plan.targets),
                "reason": _short(plan.reason),
                "differs": str(plan.differs),
            }
            for plan in record.plans[:_MOST_LISTED]
        ],
        "targets": [
            {
                "target": answer.target,
                "is_available": answer.is_available,
                "reason": _short(answer.reason),
                "build": _short(answer.build),
                "whole": None if answer.whole is None else answer.whole.value,
                "whole_us": answer.whole_us,
                "takes": str(answer.takes),
                "refuses": [
                    [_short(reason), str(nodes)] for reason, nodes in list(answer.refuses.items())[:_MOST_LISTED]
                ],
            }
            for answer in record.targets[:_MOST_LISTED]
        ],
        "tried": [_row(row, texts) for row in record.tried],
        "dropped": dict(record.dropped),
        "stopped_by": record.stopped_by,
        "min_gain": record.min_gain,
        "notes": [_short(note) for note in record.notes[:_MOST_LISTED]],
        "texts": texts.listed,
    }


def from_json(data: Mapping[str, Any]) -> TriedRecord:
    """Parse the output of ``as_json``.

    Raises:
        ValueError: A number, text or list is out of bounds, or the schema is not known.
        KeyError: Something is missing.
        TypeError: Something is of another type.
    """
    if not isinstance(data, dict) or type(data["schema"]) is not int or data["schema"] != SCHEMA:
        raise ValueError(f"this version reads records of schema {SCHEMA}")
    texts = [_text(text) for text in _list(data["texts"], 2 * MAX_BYTES)]
    types = [texts[_count(index, len(texts) - 1)] for index in _list(data["op_types"], MAX_BYTES)]
    count = len(types)
    names = [_text(name) for name in _list(data["names"], MAX_BYTES)] or [f"#{i}" for i in range(count)]
    if len(names) != count:
        raise ValueError(f"{len(names)} names of {count} operators")
    reader = _Reader(texts, count)
    dropped = {_text(KernelStatus(status).value): _count(n) for status, n in dict(data["dropped"]).items()}
    chosen = tuple(
        ChosenKernel(
            _text(each["name"]),
            reader.row(each["kernel"]),
            _known(each["launch_us"]),
            None if each["device"] is None else _text(each["device"]),
            None if each.get("branch") is None else _count(each["branch"]),
        )
        for each in _list(data["kernels"])
    )
    if sum(len(kernel.kernel.nodes) for kernel in chosen) > count:
        raise ValueError("kernels of the plan share operators")
    return TriedRecord(
        tuple(names),
        tuple(types),
        _text(data["plan"]),
        _number(data["predicted_us"]),
        chosen,
        tuple(map(_border, _list(data["borders"]))),
        tuple(map(reader.plan, _list(data["plans"]))),
        tuple(map(reader.answer, _list(data["targets"]))),
        tuple(map(reader.row, _list(data["tried"], _MOST_ROWS))),
        dropped,
        _text(data["stopped_by"]),
        _known(data["min_gain"]),
        tuple(map(_text, _list(data["notes"]))),
    )


class _Texts:
    """The table of texts of a record that is written."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self._places: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Return the place of a text in the table."""
        text = _short(text)
        if text not in self._places:
            self._places[text] = len(self.listed)
            self.listed.append(text)
        return self._places[text]


def _row(kernel: TriedKernel, texts: _Texts) -> list[Any]:
    return [
        str(kernel.nodes),
        texts.add(kernel.target),
        list(KernelStatus).index(kernel.status),
        *(_rounded(us) for us in (kernel.time_us, kernel.low_us, kernel.high_us)),
        _rounded(kernel.error),
        texts.add(kernel.reason),
        texts.add(kernel.rule),
        _rounded(kernel.build_s),
        int(kernel.is_recorded),
        _rounded(kernel.limit_us),
        int(kernel.limit_is_expected),
    ]


class _Reader:
    """Reads fields that refer to the operators and to the table of texts of one record."""

    def __init__(self, texts: Sequence[str], count: int) -> None:
        self._texts = texts
        self._count = count

    def nodes(self, text: Any) -> NodeRanges:
        if type(text) is not str:
            raise TypeError(f"{str(text)[:80]!r} is not a set of operators")
        return NodeRanges.parse(text, self._count) if text else NodeRanges()

    def row(self, row: Any) -> TriedKernel:
        nodes, target, status, time, low, high, error, reason, rule, build, recorded, limit, expected = _list(row)
        found = self.nodes(nodes)
        if not found.ranges:
            raise ValueError("a kernel without operators")
        text = [self._texts[_count(place, len(self._texts) - 1)] for place in (target, reason, rule)]
        return TriedKernel(
            found,
            text[0],
            list(KernelStatus)[_count(status, len(KernelStatus) - 1)],
            _number(time),
            _number(low),
            _number(high),
            _number(error),
            text[1],
            text[2],
            _number(build),
            bool(_count(recorded, 1)),
            _number(limit),
            bool(_count(expected, 1)),
        )

    def plan(self, told: Any) -> TriedPlan:
        return TriedPlan(
            _text(told["name"]),
            tuple(map(_text, _list(told["targets"]))),
            _count(told["kernels"]),
            _text(told["status"]),
            _number(told["predicted_us"]),
            _number(told["measured_us"]),
            _text(told["reason"]),
            _flag(told["is_returned"]),
            _flag(told["is_single"]),
            self.nodes(told["differs"]),
        )

    def answer(self, told: Any) -> TargetAnswer:
        refuses = [_list(pair) for pair in _list(told["refuses"])]
        return TargetAnswer(
            _text(told["target"]),
            _flag(told["is_available"]),
            _text(told["reason"]),
            _text(told["build"]),
            None if told["whole"] is None else KernelStatus(told["whole"]),
            _number(told["whole_us"]),
            self.nodes(told["takes"]),
            {_text(reason): self.nodes(nodes) for reason, nodes in refuses},
        )


def _border(told: Any) -> Border:
    return Border(
        _text(told["before"]),
        _text(told["after"]),
        tuple(map(_text, _list(told["values"]))),
        _count(told["count"]),
        None if told["nbytes"] is None else _count(told["nbytes"], 1 << 60),
        _number(told["cost_us"]),
        _text(told["joined_target"]),
        _number(told["joined_us"]),
        _flag(told["joined_is_measured"]),
        _number(told["saves_us"], least=-_LARGEST),
    )


def _list(data: Any, most: int = _MOST_LISTED) -> list[Any]:
    if type(data) is not list or len(data) > most:
        raise TypeError(f"{str(data)[:80]!r} is not a list, or too long")
    return data


def _text(data: Any) -> str:
    if type(data) is not str or len(data) > _TEXT:
        raise TypeError(f"{str(data)[:80]!r} is not a text, or too long")
    data.encode()  # Halves of characters cannot be printed.
    return data


def _flag(data: Any) -> bool:
    if type(data) is not bool:
        raise TypeError(f"{str(data)[:80]!r} is neither true nor false")
    return data


def _count(data: Any, most: int = MAX_BYTES) -> int:
    if type(data) is not int or not 0 <= data <= most:
        raise ValueError(f"{str(data)[:80]!r} is not a number from 0 to {most}")
    return data


def _number(data: Any, least: float = 0.0) -> float | None:
    if data is None:
        return None
    if type(data) not in (int, float) or not least <= data <= _LARGEST:
        raise ValueError(f"{str(data)[:80]!r} is not a number from {least:g} to {_LARGEST:g}")
    return float(data) if abs(data) >= _SMALLEST else 0.0


def _known(data: Any) -> float:
    if (number := _number(data)) is None:
        raise ValueError("a number is missing")
    return number


def _rounded(number: float | None) -> float | None:
    """Return a number in six digits, which is more than any measurement has."""
    return None if number is None or not math.isfinite(number) else float(f"{number:.6g}")


def _short(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= _TEXT else f"{clean[: _TEXT - 1]}…"


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
