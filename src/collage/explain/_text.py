"""Pieces of explanations as text. A record may come from anywhere, so nothing in it commands a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from collage._errors import TargetError
from collage.explain._nodes import NodeRanges
from collage.explain._record import Border, Record, TriedKernel
from collage.report import short_name
from collage.status import Status
from collage.system.texts import printable
from collage.target import Target

__all__ = [
    "STATUS_WORDS",
    "border_line",
    "columns",
    "first_of",
    "label",
    "limit_words",
    "ms",
    "outcome_words",
    "toolchain_of",
]

_WIDEST = 60
STATUS_WORDS: Mapping[str, str] = {Status.OK: "measured"}
"""Statuses of candidates that sentences have another word for."""


def toolchain_of(target: str) -> str:
    """Return the name of a target's toolchain; another text as it is."""
    try:
        return Target.parse(target).toolchain
    except TargetError:
        return target


def label(record: Record, nodes: NodeRanges) -> str:
    """Return the operators of a kernel in a few words: ``Conv, Relu``, or ``Conv … Softmax (12)``."""
    count = len(nodes)
    if count > 3:
        return f"{record.op_types[nodes.first]} … {record.op_types[nodes.last]} ({count})"
    return ", ".join(record.op_types[i] for i in nodes)


def ms(us: float | None) -> str:
    """Return a time in ms, with the digits that short kernels need; empty if it is not known."""
    if us is None:
        return ""
    return f"{us / 1e3:.3f}" if us >= 100 else f"{us / 1e3:.4f}"


def outcome_words(row: TriedKernel) -> str:
    """Return the outcome of a candidate in words: its time and interval, or its status with the reason."""
    if row.is_measured:
        interval = f" [{ms(row.low_us)}, {ms(row.high_us)}]" if row.low_us is not None else ""
        known = ", known before" if row.is_recorded else ""
        return f"{ms(row.time_us)} ms{interval}{known}" + (f"; {row.reason}" if row.reason else "")
    if row.status is Status.PREDICTED:
        return f"not measured; expected {ms(row.time_us)} ms"
    return f"{row.status.value}: {row.reason}" if row.reason else row.status.value


def limit_words(row: TriedKernel) -> str:
    """Return the time that a candidate would have to take to be chosen; empty if it is not known."""
    if row.limit_us is None:
        return ""
    expected = ", by expected times" if row.limit_is_expected else ""
    return f"to be chosen: below {ms(row.limit_us)} ms{expected}" if row.limit_us > 0 else "would not be chosen if free"


def border_line(border: Border, before: str, after: str) -> str:
    """Return a border between two kernels as one sentence."""
    more = f" and {border.count - 1} more" if border.count > 1 else ""
    size = "" if border.nbytes is None else f", {_size(border.nbytes)}"
    told = f"{before} -> {after}: {border.values[0] if border.values else '?'}{more}{size}"
    if border.cost_us is not None:
        told += f"; costs {ms(border.cost_us)} ms"
    if border.joined_us is None:
        return f"{told}; no target takes both as one kernel"
    how = "measured" if border.joined_is_measured else "expected"
    told += f"; as one kernel on {short_name(border.joined_target)} {ms(border.joined_us)} ms ({how})"
    if border.saves_us is not None:
        verb = "saves" if border.saves_us >= 0 else "loses"
        told += f", so the border {verb} {ms(abs(border.saves_us))} ms"
    return told


def _size(nbytes: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.3g} {unit}"
    return f"{nbytes} bytes"


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows as lines in which columns begin at the same place."""
    cells = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(*cells, strict=True)] if cells else []
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]


def first_of(lines: Sequence[str], shown: int, noun: str) -> list[str]:
    """Return the first few lines, and how many more there are."""
    left = len(lines) - shown
    return [*lines[:shown], *([f"and {left} more {noun}; --json has all"] if left > 0 else [])]
