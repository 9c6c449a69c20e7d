"""A report in words: the sentences and the one table that people read. Everything here follows from the report alone."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence

from collage._errors import TargetError
from collage.report._objective import by_runs, objective_lines, of_streams, runs_per_s
from collage.report._types import Gain, Ratio, ReportValues, Row
from collage.status import Status
from collage.system.texts import printable
from collage.target import Target

__all__ = [
    "columns_of",
    "gain_lines",
    "html_of",
    "milliseconds",
    "ratio_text",
    "short_name",
    "table_rows",
    "title_of",
    "verdict_of",
]

_LONGEST_REASON = 200
_MOST_DIGITS = 6

_WORDS: Mapping[Status, str] = {
    Status.RETURNED: "returned",
    Status.BASELINE: "what you have",
    Status.SLOWER: "slower beyond doubt",
    Status.TIE: "as fast within doubt",
    Status.UNDECIDED: "faster here, but not faster than every single toolchain beyond doubt",
    Status.WRONG: "wrong",
    Status.OVER_BUDGET: "reduced precision outside --accuracy-budget or --max-drop",
    Status.UNAVAILABLE: "not available",
    Status.REFUSED: "refused",
    Status.FAILED: "could not be built",
    Status.CRASHED: "crashed",
    Status.TIMEOUT: "took too long",
    Status.OUT_OF_MEMORY: "took too much memory",
    Status.TOO_SLOW: "left out",
    Status.OVER_LIMIT: "outside a limit",
    Status.NOT_RACED: "not compared",
}

_OVER: Mapping[str, str] = {
    "baseline": "what you have",
    "best_single": "the best single toolchain",
    "best_of_menu": "the best of the menu",
}


def gain_lines(report: ReportValues) -> list[str]:
    """Return a sentence for each gain: over the original on ONNX Runtime, the best single toolchain, and the best of the menu."""
    gains = report.gains
    lines = objective_lines(report)
    lines += [_gain_line(report, gain, any(other.over == "best_of_menu" for other in gains)) for gain in gains]
    if report.overruled is not None:
        lines.append(
            f"{short_name(report.overruled)} was chosen first, and the rounds reported here did not confirm it"
        )
    return lines


def _gain_line(report: ReportValues, gain: Gain, is_reduced_best: bool) -> str:
    row = report.row(gain.row)
    name = short_name(gain.row) if row is None else title_of(row)
    at = " at the model's own precision" if gain.over == "best_single" and is_reduced_best else ""
    other = f"{_OVER[gain.over]}{at}" + (f" ({name})" if gain.over != "baseline" else f" ({_baseline_of(row)})")
    if gain.row == report.winner:
        return f"{other} is returned"
    ratio = gain.ratio
    figures = f"{ratio_text(ratio)}"
    if by_runs(report):
        return f"{figures} times as many runs per second as {other}"
    if ratio.low <= 1.0 <= ratio.high:
        return f"as fast as {other} within doubt: {figures}"
    return f"{figures} times as fast as {other}" if ratio.low > 1.0 else f"slower than {other}: {figures}"


def _baseline_of(row: Row | None) -> str:
    if row is None or row.target is None:
        return "the original file"
    name = short_name(row.target)
    return f"the original file on {name} with its defaults" if row.kernels is None else f"the whole model on {name}"


def title_of(row: Row) -> str:
    """Return the name of a row as the table has it."""
    name = short_name(row.target or (row.name if row.streams is None else row.name.rpartition(",")[0])) + of_streams(
        row
    )
    if row.kind != "baseline":
        return name
    return f"{name}, {'the original file' if row.kernels is None else 'the baseline'}"


def short_name(name: str) -> str:
    """Return a target as briefly as it can be written, and other names as they are."""
    try:
        return Target.parse(name).short
    except TargetError:
        return name


def verdict_of(report: ReportValues, row: Row) -> str:
    """Return the words on a row: the reason why it is returned or not."""
    words = _WORDS[row.verdict]
    returned = report.returned
    if row.verdict in ("tie", "slower") and returned is not None and (row.kernels or 0) > (returned.kernels or 0):
        words += f", with {'more' if row.verdict == 'tie' else row.kernels} kernels"
    if row.verdict == "undecided" and report.objective.get("name", "latency") not in ("latency", "throughput"):
        words = "faster, and not chosen by the objective"
    if row.verdict == "baseline" and row.reason is None and row.ratio is not None and row.ratio.high < 1.0:
        words += ", and faster"
    reason = " ".join((row.reason or "").split())
    if not reason:
        return words
    return f"{words}: {reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 1] + '…'}"


def columns_of(report: ReportValues) -> Sequence[str]:
    """Return the heads of the columns of ``table_rows``."""
    return "", "kernels", "precision", "runs/s" if by_runs(report) else "ms", "ratio (95 % interval)", ""


def table_rows(report: ReportValues) -> Iterator[Sequence[str]]:
    """Return the cells of every row of the comparison, under ``columns_of``."""
    shown = runs_per_s if by_runs(report) else milliseconds
    for row in report.rows:
        yield (
            ("* " if row.name == report.winner else "  ") + title_of(row),
            "" if row.kernels is None else str(row.kernels),
            row.precision or "",
            shown(row.time_us),
            "" if row.ratio is None else ("1" if row.name == report.winner else ratio_text(row.ratio)),
            verdict_of(report, row),
        )


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio with its interval, with enough digits to show on which side of 1 its ends are."""
    figures = (ratio.value, ratio.low, ratio.high)
    digits = next((n for n in range(3, _MOST_DIGITS) if all(_shows_side(each, n) for each in figures)), _MOST_DIGITS)
    value, low, high = (f"{each:.{digits}f}" for each in figures)
    return f"{value} ({low} to {high})"


def _shows_side(value: float, digits: int) -> bool:
    return value == 1.0 or round(value, digits) != 1.0


def milliseconds(us: float | None) -> str:
    """Return µs as text in ms, and an empty text for None."""
    return "" if us is None else f"{us / 1e3:.3f}"


def html_of(report: ReportValues) -> str:
    """Return the gains and the table as HTML, whose texts are escaped."""
    lines = "<br>".join(html.escape(printable(line)) for line in gain_lines(report))
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns_of(report))
    rows = [
        "<tr>" + "".join(f"<td>{html.escape(printable(cell))}</td>" for cell in cells) + "</tr>"
        for cells in table_rows(report)
    ]
    return f"<p>{lines}</p><table><tr>{head}</tr>{''.join(rows)}</table>"
