"""``collage inspect MODEL --headroom``: where the time goes, and how far that is from the limit, as a table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from collage.cli._console import print_json, progress
from collage.system.progress import Note
from collage.system.texts import counted, printable

__all__ = ["show_headroom", "table_lines"]

_MOST_ROWS = 15
"""Rows that are shown: with the title and the notes they fit a screen of 24 lines."""
_WIDTHS = (-25, 5, 8, 7, 8, 12, 8, 7)
"""Widths of the columns, 80 in all. A negative one is aligned on the left."""
_MOST_RATIO = 999
_COLUMNS = sum(map(abs, _WIDTHS))
_HEADS = ("operators", "runs", "ms", "share", "fastest", "by", "x limit", "tvm")


def show_headroom(path: Path, targets: Sequence[str] | None, options: Mapping[str, Any], *, json: bool) -> None:
    """Measure the headroom of a model, and print it."""
    from collage.compiler.headroom import CHAINS_S, headroom

    with progress(quiet=False) as say:
        budget_s = options["time_budget_s"]
        words = f"{budget_s:.0f} s" if budget_s else f"{CHAINS_S:.0f} s after timing the whole model on each library"
        say(Note(f"measuring for about {words}; --time-budget changes it"))
        found = headroom(path, targets, options=options, say=say)
    if json:
        print_json(found)
    else:
        print(printable("\n".join(table_lines(found))))


def table_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines of the table, of at most 80 columns."""
    others = "" if found["is_whole"] else ", and on others what it refuses"
    yield f"{_figure(found['time_ms'])} ms on {found['base']}{others}, with {counted(found['threads'], 'thread')}"
    yield ""
    yield _line(_HEADS)
    rows, left = found["rows"][:_MOST_ROWS], found["rows"][_MOST_ROWS:]
    for row in rows:
        yield _line(_cells(row))
    if left:
        yield _line(_cells(_sum(f"{len(left)} other rows", left)))
    yield _line(_cells(_sum("all", found["rows"])))
    yield ""
    yield from (line for note in _notes(found) for line in textwrap.wrap(note, _COLUMNS))


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    return (
        row["operators"],
        str(row["count"]),
        _figure(row["time_ms"]),
        f"{row['share']:.1%}",
        _figure(row["fastest_ms"]),
        row["fastest"],
        # The limit of a few bytes is less than any call takes.
        _figure(row["over_limit"]) if (row["over_limit"] or 0.0) < _MOST_RATIO else f">{_MOST_RATIO}",
        _figure(row["native_over_fastest"]),
    )


def _line(cells: Sequence[str]) -> str:
    shown = []
    for cell, width in zip(map(printable, cells), _WIDTHS, strict=True):
        most = abs(width) - 1
        text = cell if len(cell) <= most else f"{cell[: most - 1]}…"
        shown.append(text.ljust(-width) if width < 0 else text.rjust(width))
    return "".join(shown).rstrip()


def _figure(value: float | None) -> str:
    """Return three digits of a number, but no more than three places."""
    if value is None:
        return ""
    return f"{value:.{max(0, min(3, 2 - math.floor(math.log10(value))))}f}" if value > 0 else "0"


def _sum(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the row that sums others up. Ratios are those of the rows that have them."""
    limited = [row for row in rows if row["over_limit"] is not None]
    native = [row for row in rows if row["native_over_fastest"]]
    limit_ms = sum(row["limit_ms"] for row in limited)
    theirs_ms = sum(row["native_ms"] / row["native_over_fastest"] for row in native)
    return {
        "operators": name,
        **{key: sum(row[key] for row in rows) for key in ("count", "time_ms", "share", "fastest_ms")},
        "fastest": "",
        "over_limit": sum(row["fastest_ms"] for row in limited) / limit_ms if limit_ms else None,
        "native_over_fastest": sum(row["native_ms"] for row in native) / theirs_ms if theirs_ms else None,
    }


def _notes(found: Mapping[str, Any]) -> Iterator[str]:
    rates = [rate for _, rate in found["rates"]["gbytes_per_s"]]
    yield (
        "fastest: the least time of any library, inside the whole model or as kernels of their own; x limit: that over the "
        f"time at {found['rates']['gflops']:.0f} GFLOP/s and {min(rates):.0f} to {max(rates):.0f} GB/s, as measured now; "
        "tvm: TVM's time over the fastest library's, as kernels of their own"
    )
    timed, of = found["timed_chains"]
    if timed < of:
        yield (
            f"{timed} of {of} distinct chains, with {found['timed_share']:.0%} of the time, were timed as kernels of their "
            "own; a longer --time-budget times more"
        )
    for row in found["targets"]:
        if row["reason"]:
            yield f"{row['target']} does not run the whole model: {row['reason']}"
