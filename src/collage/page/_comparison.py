"""The sections of the comparison: every row with its verdict, the rounds one by one, and the front of time against error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collage.page._charts import FrontPoint, RatioScale, Series, front_chart, mark, rounds_chart
from collage.page._contents import PageContents
from collage.page._markup import Markup, join, tag
from collage.page._picture import row_colour
from collage.page._table import table
from collage.page._words import amount, number_of
from collage.report import Row, by_runs, runs_per_s, short_name, title_of, verdict_of

__all__ = ["comparison_section", "front_section", "lengths_section"]

_MOST_SERIES = 8


def comparison_section(contents: PageContents) -> Markup:
    """Return the table of all rows and the chart of the rounds."""
    rows = contents.report.rows
    if not rows:
        return join()
    ratios = [row.ratio for row in rows if row.ratio is not None and row.name != contents.report.winner]
    scale = RatioScale.of(ratios)
    intro = (
        "All rows of the reporting phase ran in turns, each in a process of its own. The ratio is the time of a row over "
        "that of the returned row in the same round. Above 1 is slower than what is returned."
        if ratios
        else "The rows of this artefact were timed, but not in common rounds: their times differ by the machine's drift too."
    )
    cells = [_cells(contents, row, scale) for row in rows]
    axis = scale.axis() if ratios else ""
    columns = ("row", "kernels", "precision", "time", "ratio", "95 % interval", axis, "verdict")
    return tag(
        "section",
        tag("h2", "The comparison"),
        tag("p", intro),
        table("Every row of the comparison", columns, cells, numbers=(1, 3, 4, 5), class_="rows stack"),
        _rounds(contents),
        id="comparison",
    )


def front_section(contents: PageContents) -> Markup:
    """Return the plot of time against error; nothing if the report has no front."""
    points = _points(contents.report.front)
    if not points:
        return join()
    told = f"Time of {len(points)} plans against their error; the returned one is filled"
    cells = [
        (
            point.label + (" (returned)" if point.is_returned else ""),
            amount(point.time_us),
            f"{point.error:.2e}",
            f"{point.low:.1e} to {point.high:.1e}" if point.low != point.high else "",
            point.plan,
        )
        for point in points
    ]
    return tag(
        "section",
        tag("h2", "Time against error"),
        tag(
            "p",
            "Each point is the fastest plan found within one accuracy budget. Lower is faster, further left is nearer.",
        ),
        tag("figure", front_chart(points, told)),
        table(
            "Plans of the front",
            ("budget", "time", "error", "95 % interval of the error", "kernels"),
            cells,
            numbers=(1, 2, 3),
        ),
        id="front",
    )


def lengths_section(contents: PageContents) -> Markup:
    """Return the table of plans for sets of lengths; nothing if none was tried."""
    rows = contents.report.specialised
    if not rows:
        return join()
    cells = [
        (
            row.title,
            ", ".join(map(short_name, row.targets)),
            "" if row.general_us is None else amount(row.general_us),
            "" if row.time_us is None else amount(row.time_us),
            "" if row.ratio is None else f"{row.ratio.value:.2f}",
            "" if row.ratio is None else f"{row.ratio.low:.2f} to {row.ratio.high:.2f}",
            "kept" if row.is_kept else f"not kept: {row.reason}",
        )
        for row in rows
    ]
    columns = ("lengths", "targets", "for all lengths", "time", "speed-up", "95 % interval", "verdict")
    told = (
        "A plan that is kept runs the calls with its lengths. The speed-up is over the plan for all lengths, at these."
    )
    return tag(
        "section",
        tag("h2", "Plans for lengths"),
        tag("p", told),
        table("Every set of lengths", columns, cells, numbers=(2, 3, 4, 5), class_="stack"),
        id="lengths",
    )


def _cells(contents: PageContents, row: Row, scale: RatioScale) -> tuple[str, ...]:
    is_returned = row.verdict == "returned"
    name = tag("b", title_of(row)) if is_returned else title_of(row)
    time = row.time_us if row.time_us is not None else None
    told = _runs if by_runs(contents.report) else amount
    shown = "" if time is None else told(time)
    ratio = row.ratio
    interval = "" if ratio is None or is_returned else f"{ratio.low:.2f} to {ratio.high:.2f}"
    bar = scale.bar(ratio, f"ratio {ratio.value:.2f}, {interval}") if ratio is not None and not is_returned else ""
    return (
        join(tag("span", class_=f"swatch {row_colour(contents, row)}", aria_hidden="true"), name),
        "" if row.kernels is None else str(row.kernels),
        row.precision or "",
        shown,
        "" if ratio is None else f"{ratio.value:.2f}",
        interval,
        bar,
        verdict_of(contents.report, row),
    )


def _runs(us: float) -> str:
    return f"{runs_per_s(us)} runs/s"


def _rounds(contents: PageContents) -> Markup:
    rows = [row for row in contents.report.rows if row.rounds_us]
    if not rows:
        return tag("p", "This artefact does not hold the single rounds.", class_="note")
    shown = rows[:_MOST_SERIES]
    colours = [row_colour(contents, row) for row in shown]
    series = [
        Series(title_of(row), row.rounds_us, colour, i, colours[:i].count(colour))
        for i, (row, colour) in enumerate(zip(shown, colours, strict=True))
    ]
    told = f"Time of {len(series)} rows in each round of the comparison"
    legend = [
        tag("li", tag("svg", mark(8, 8, each.mark), class_=f"key {each.colour}", viewBox="0 0 16 16"), each.name)
        for each in series
    ]
    count = max(len(row.rounds_us) for row in rows)
    cells = [(title_of(row), *(f"{time / 1e3:.4g}" for time in row.rounds_us)) for row in rows]
    padded = [(*cell, *[""] * (count + 1 - len(cell))) for cell in cells]
    figures = table(
        "Median time in ms in each round",
        ("row", *(str(i) for i in range(1, count + 1))),
        padded,
        numbers=range(1, count + 1),
    )
    return join(
        tag("h3", "Round by round"),
        tag("figure", rounds_chart(series, told), tag("ul", legend, class_="keys")),
        tag("details", tag("summary", "All rounds as figures"), figures),
    )


def _points(front: Any) -> list[FrontPoint]:
    """Return the points of a front; entries without a time and an error are left out.

    The form of this section of a report is free, so nothing is taken for granted: it is a list, or a mapping that holds one.
    """
    lists = [front, *front.values()] if isinstance(front, Mapping) else [front]
    entries = next((each for each in lists if isinstance(each, list | tuple)), ())
    found = []
    for each in entries:
        if not isinstance(each, Mapping):
            continue
        error, time_ms = number_of(each.get("error")), number_of(each.get("time_ms"))
        if error is None or time_ms is None:
            continue
        ends, budget, plan = each.get("error_interval"), number_of(each.get("budget")), each.get("plan")
        low, high = map(number_of, ends) if isinstance(ends, list | tuple) and len(ends) == 2 else (None, None)
        label = "" if budget is None else f"budget {budget:g}" if budget else "exact"
        bounds = (error if low is None else low, error if high is None else high)
        told = plan if isinstance(plan, str) else ""
        found.append(FrontPoint(label or told, time_ms * 1e3, error, *bounds, each.get("is_returned") is True, told))
    return found
