"""Summaries of an executable for people: a line for prompts, a table for notebooks.

A recipe may come from an artefact that anybody wrote. So its texts may hold markup.
"""

from __future__ import annotations

import html
from typing import Literal

from collage.runtime._recipe import Recipe

__all__ = ["html_table", "one_line"]

_GAINS: tuple[tuple[Literal["baseline", "best_single"], str], ...] = (
    ("baseline", "what you had"),
    ("best_single", "the best single toolchain"),
)
_LONGEST_TEXT = 60
_MOST_TARGETS = 4
_MOST_ROWS = 50


def one_line(recipe: Recipe) -> str:
    """Return kernels, targets, time and speed-up as one line of printable text.

    Time and speed-up are those of the compilation. Each is left out if the report does not hold it.
    """
    targets = list(dict.fromkeys(target for kernel in recipe.kernels for target in kernel.targets))
    named = [_text(target) for target in targets[:_MOST_TARGETS]]
    if len(targets) > _MOST_TARGETS:
        named.append(f"{len(targets) - _MOST_TARGETS} more")
    count = len(recipe.kernels)
    parts = [f"{count} {'kernel' if count == 1 else 'kernels'}" + (f" on {', '.join(named)}" if named else "")]
    if recipe.branches > 1:
        parts.append(f"{recipe.branches} branches side by side")
    report, returned = recipe.report, recipe.report.returned
    time = None if returned is None else returned.measured_us
    if time is not None:
        parts.append(f"{time.median * 1e-3:.3f} ms when compiled")
    for over, words in _GAINS:
        if (gain := report.gain(over)) is not None:
            parts.append(f"{gain.ratio.value:.2f}x {words}")
    return "; ".join(parts)


def html_table(recipe: Recipe) -> str:
    """Return the line of ``one_line`` and one table row per kernel, as HTML whose texts are escaped."""
    told = recipe.report.kernels
    rows = []
    for position, kernel in enumerate(recipe.kernels[:_MOST_ROWS]):
        time_us = told[position].time_us if position < len(told) else None
        cells = (_text(kernel.name), ", ".join(map(_text, kernel.targets)), "" if time_us is None else f"{time_us:.1f}")
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    if (left := len(recipe.kernels) - _MOST_ROWS) > 0:
        rows.append(f'<tr><td colspan="3">and {left} more</td></tr>')
    head = "<tr><th>kernel</th><th>target</th><th>µs</th></tr>"
    line = html.escape(one_line(recipe))
    return f"<p><b>collage.Executable</b>: {line}</p><table>{head}{''.join(rows)}</table>"


def _text(value: str) -> str:
    """Return ``value`` without control characters, shortened if it is long."""
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in value)
    return clean if len(clean) <= _LONGEST_TEXT else clean[: _LONGEST_TEXT - 1] + "…"
