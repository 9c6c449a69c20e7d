"""Summaries of an executable for people: a line for prompts, a table for notebooks.

A recipe may come from an artefact that anybody wrote. So its report may hold anything, and its texts may hold markup.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

from collage.runtime._recipe import Recipe

__all__ = ["html_table", "one_line"]

_LONGEST_TEXT = 60
_MOST_TARGETS = 4
_MOST_ROWS = 50


def one_line(recipe: Recipe) -> str:
    """Return kernels, targets, time and speed-up as one line of printable text.

    Time and speed-up are those of the compilation. Each is left out if the report does not hold it.
    """
    targets = list(dict.fromkeys(kernel.target for kernel in recipe.kernels))
    named = [_text(target) for target in targets[:_MOST_TARGETS]]
    if len(targets) > _MOST_TARGETS:
        named.append(f"{len(targets) - _MOST_TARGETS} more")
    count = len(recipe.kernels)
    parts = [f"{count} {'kernel' if count == 1 else 'kernels'}" + (f" on {', '.join(named)}" if named else "")]
    time_us = _positive(_entry(recipe.report, "measured_us", "median"))
    speedup = _positive(_entry(recipe.report, "speedup_vs_best_single"))
    if time_us is not None:
        parts.append(f"{time_us * 1e-3:.3f} ms when compiled")
    if speedup is not None:
        parts.append(f"{speedup:.2f}x the best single toolchain")
    return "; ".join(parts)


def html_table(recipe: Recipe) -> str:
    """Return the line of ``one_line`` and one table row per kernel, as HTML whose texts are escaped."""
    entries = _entry(recipe.report, "kernels")
    rows = []
    for position, kernel in enumerate(recipe.kernels[:_MOST_ROWS]):
        entry = entries[position] if isinstance(entries, list) and position < len(entries) else None
        time_us = _positive(_entry(entry, "estimate_us"))
        cells = (_text(kernel.name), _text(kernel.target), "" if time_us is None else f"{time_us:.1f}")
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    if (left := len(recipe.kernels) - _MOST_ROWS) > 0:
        rows.append(f'<tr><td colspan="3">and {left} more</td></tr>')
    head = "<tr><th>kernel</th><th>target</th><th>µs, alone</th></tr>"
    line = html.escape(one_line(recipe))
    return f"<p><b>collage.Executable</b>: {line}</p><table>{head}{''.join(rows)}</table>"


def _entry(value: Any, *keys: str) -> Any:
    """Return what lies under ``keys`` in nested mappings, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _positive(value: Any) -> float | None:
    """Return ``value`` as a finite number above zero, or None if it is not one."""
    if type(value) not in (int, float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def _text(value: str) -> str:
    """Return ``value`` without control characters, shortened if it is long."""
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in value)
    return clean if len(clean) <= _LONGEST_TEXT else clean[: _LONGEST_TEXT - 1] + "…"
