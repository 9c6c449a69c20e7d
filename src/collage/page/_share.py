"""Parts of a page to be shared: bars of times, a card as a picture of its own, and a summary in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from collage.page._contents import PageContents
from collage.page._markup import Markup, join, tag
from collage.page._picture import colour_of, row_colour
from collage.page._words import amount
from collage.report import Row, by_runs, columns_of, runs_per_s, table_rows, title_of

__all__ = ["card", "markdown", "share_section", "time_bars"]

_ROW, _BAR = 40.0, 14.0
_WIDTH, _MARGIN = 800.0, 32.0
# Pixels of a letter of the headline by size of the font, so that a long headline is set smaller.
_LETTER, _LARGEST = 0.58, 34.0
_MOST_ROWS = 6


def time_bars(contents: PageContents, **place: float) -> Markup:
    """Return a bar for what is returned and one for each row of a gain; empty if they have no times.

    Lengths are in per cent, so that labels keep their form at any width.
    """
    rows = _compared(contents)
    times = [row.time_us for row in rows if row.time_us]
    if len(times) < 2 or len(times) != len(rows):
        return join()
    longest = max(times)
    parts = []
    for number, (row, time) in enumerate(zip(rows, times, strict=True)):
        y = number * _ROW
        label = f"{_role(contents, row)} ({title_of(row)}): {_figure(contents, time)}"
        parts += [
            tag("g", tag("text", label, x=0, y=y + 13, class_="strong" if row.verdict == "returned" else None)),
            *_bar(contents, row, y + 18, 100.0 * time / longest),
        ]
    told = "; ".join(f"{title_of(row)} {_figure(contents, time)}" for row, time in zip(rows, times, strict=True))
    shown = {"width": "100%", **{name: f"{value:g}" for name, value in place.items()}}
    return tag("svg", parts, class_="times", role="img", aria_label=told, height=len(rows) * _ROW, **shown)


def _compared(contents: PageContents) -> list[Row]:
    """Return the rows of the gains and the returned one, the slowest first.

    If the best toolchain alone is returned, the fastest other one is there, too.
    """
    report = contents.report
    names = dict.fromkeys([*(gain.row for gain in report.gains), report.winner])
    rows = [row for name in names if (row := report.row(name)) is not None]
    if not any(row.kind == "single" and row.verdict != "returned" for row in rows):
        own = {row_colour(contents, row) for row in rows if row.verdict == "returned"}
        others = [
            row for row in report.rows if row.kind == "single" and row.time_us and row_colour(contents, row) not in own
        ]
        rows += sorted(others, key=lambda row: row.time_us or 0.0)[:1]
    return sorted(rows, key=lambda row: (row.verdict == "returned", -(row.time_us or 0.0)))


def _role(contents: PageContents, row: Row) -> str:
    if row.verdict == "returned":
        return "returned"
    is_best = any(gain.row == row.name and gain.over != "baseline" for gain in contents.report.gains)
    return "what you have" if row.kind == "baseline" else "best single toolchain" if is_best else "best of the others"


def _figure(contents: PageContents, time_us: float) -> str:
    return f"{runs_per_s(time_us)} runs/s" if by_runs(contents.report) else amount(time_us)


def _bar(contents: PageContents, row: Row, y: float, length: float) -> list[Markup]:
    """Return a bar; that of a returned plan has a part for each toolchain."""
    shares = {row_colour(contents, row): 1.0}
    if row.verdict == "returned" and contents.kernels and all(kernel.share for kernel in contents.kernels):
        shares = {}
        for kernel in contents.kernels:
            colour = colour_of(contents, kernel.target)
            shares[colour] = shares.get(colour, 0.0) + (kernel.share or 0.0)
    parts, x = [], 0.0
    for colour, share in shares.items():
        own = length * share / sum(shares.values())
        parts.append(_part(x, y, own, colour))
        x += own
    return parts


def _part(x: float, y: float, width: float, colour: str) -> Markup:
    box = tag("rect", x=f"{x:.3f}%", y=y, width=f"{width:.3f}%", height=_BAR, class_="fill")
    return tag("g", box, class_=colour)


def card(contents: PageContents, headline: str, lines: list[str]) -> Markup:
    """Return a picture that can be shown without the page: the headline, the bars, and where they were measured.

    It has the colours of the page's style sheet, which the page's script puts into the file.
    """
    bars = time_bars(contents, x=_MARGIN, y=122.0, width=_WIDTH - 2 * _MARGIN)
    below = 122.0 + (_ROW * len(_compared(contents)) + 14.0 if bars else 0.0)
    size = min(_LARGEST, (_WIDTH - 2 * _MARGIN) / (_LETTER * max(len(headline), 1)))
    texts = [
        tag("text", contents.title, x=_MARGIN, y=46, class_="soft"),
        tag("text", headline, x=_MARGIN, y=94, class_="head", font_size=size),
    ]
    texts += [tag("text", line, x=_MARGIN, y=below + 12 + 22 * i, class_="soft") for i, line in enumerate(lines)]
    height = below + 22 * len(lines) + 20
    return tag(
        "svg",
        tag("rect", width="100%", height="100%", class_="ground"),
        bars,
        texts,
        xmlns="http://www.w3.org/2000/svg",
        class_="card",
        role="img",
        aria_label=headline,
        width=_WIDTH,
        height=height,
        viewBox=f"0 0 {_WIDTH:g} {height:g}",
    )


def markdown(contents: PageContents, headline: str, lines: list[str]) -> list[str]:
    """Return the lines of a summary: the headline, the table and the facts as Markdown, for issues and chats."""
    report = contents.report
    rows = [row for row, told in zip(table_rows(report), report.rows, strict=True) if told.ratio is not None]
    text = [f"**{_plain(headline)}** ({_plain(contents.title)})", ""]
    if rows:
        columns = columns_of(report)
        text += [_cells(columns), "|".join(["", *["---"] * len(columns), ""])]
        text += [_cells(row) for row in rows[:_MOST_ROWS]]
        text.append("")
    text += [f"{_plain(line)}  " for line in lines]
    if report.command:
        text += ["", f"    {report.command}"]
    return text


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_plain(cell.strip()) for cell in cells)} |"


def _plain(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in text)


def share_section(contents: PageContents, headline: str, lines: list[str]) -> Markup:
    """Return the command that repeats the compilation, and what the page's script offers to take along."""
    command = contents.report.command
    again = tag("p", "To repeat it: ", tag("code", command), class_="again") if command else ""
    buttons = tag(
        "p",
        tag("button", "Copy as Markdown", type="button", id="copy"),
        " ",
        tag("button", "Save as picture", type="button", id="save"),
        " ",
        tag("output", id="shared", for_="copy save"),
        class_="share",
        hidden=True,
    )
    summary = [part for line in markdown(contents, headline, lines) for part in (line, Markup("\n"))]
    text = tag("textarea", summary, id="markdown", aria_label="Summary", readonly=True, hidden=True)
    picture = tag("div", card(contents, headline, lines), id="card", hidden=True)
    return join(again, buttons, text, picture)
