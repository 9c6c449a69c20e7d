"""The page of the board: for each model the ratio to the fastest rival, losses first, and all contenders below."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.board.race import AGAIN

from collage.cost.statistics import median_interval
from collage.page._charts import RatioScale
from collage.page._markup import Markup, tag
from collage.report import Ratio

_STYLE = Path(__file__).with_name("board.css").read_text(encoding="utf-8")
_DIGITS = 8
"""Of the digest of a plan: enough to see if two plans are the same, and all columns fit on a screen."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A row of Collage beside its fastest rival on one model."""

    model: str
    ours: Mapping[str, Any]
    rival: Mapping[str, Any]
    ratio: Ratio
    noise: Ratio | None

    @property
    def kind(self) -> str:
        return "lost" if self.ratio.high < 1 else "won" if self.ratio.low > 1 else "even"


def page(files: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of files of rows, the newest first."""
    newest = sorted(files, key=lambda file: str(file.get("date", "")), reverse=True)
    body = [
        tag("h1", "Collage beside its rivals"),
        tag(
            "p",
            "Each contender runs by its own interface, in a process of its own, in turns. A ratio is the time of the fastest "
            "rival over that of Collage in the same round, with the 95 % interval of the median. Below 1 Collage is slower. "
            "These rows are red, and come first.",
        ),
        *(_machine(file) for file in newest),
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", "Collage beside its rivals"),
        tag("style", Markup(_STYLE)),
    ]
    return f"<!DOCTYPE html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def _machine(file: Mapping[str, Any]) -> Markup:
    machine, models = file.get("machine", {}), file.get("models", [])
    facts = f"{machine.get('cpu', 'unknown processor')}, {machine.get('cores', '?')} processors, {machine.get('system', '')}"
    parts = [tag("h2", f"{facts}, {file.get('date', 'no date')}"), _noise(models)]
    for contender in ("collage", "collage within 2e-2"):
        lines = [line for model in models if (line := _line(model, contender)) is not None]
        if lines:
            parts.append(_table(contender, sorted(lines, key=lambda line: line.ratio.value)))
    parts += [_details(model) for model in models]
    return tag("section", parts)


def _noise(models: Sequence[Mapping[str, Any]]) -> Markup:
    """Return what ONNX Runtime differs from itself: the A/A row."""
    found = [ratio for model in models if (ratio := _ratio(_row(model, "onnxruntime"), _row(model, AGAIN))) is not None]
    if not found:
        return tag("p", "No A/A row: ONNX Runtime did not run twice.", class_="soft")
    off = max(max(ratio.value, 1 / ratio.value) for ratio in found) - 1
    outside = sum(not ratio.low <= 1 <= ratio.high for ratio in found)
    text = f"A/A, ONNX Runtime beside itself: the ratio is off by {off:.1%} at most on {len(found)} models, "
    return tag("p", text, f"and {outside} of its intervals do not hold 1. Smaller gains are noise.", class_="soft")


def _table(contender: str, lines: Sequence[_Line]) -> Markup:
    scale = RatioScale.of([line.ratio for line in lines])
    mean = statistics.geometric_mean(line.ratio.value for line in lines)
    lost = sum(line.kind == "lost" for line in lines)
    heads: list[str] = ["model", "ratio", "95 % interval", scale.axis(), "A/A", "ms", "fastest rival", "its ms"]
    heads += ["error", "compiled in", "memory", "plan"]
    caption = f"{contender}: geometric mean {mean:.2f}, slower on {lost} of {len(lines)}"
    body = [
        tag(
            "tr",
            tag("th", line.model, scope="row"),
            tag("td", f"{line.ratio.value:.2f}", class_="number ratio"),
            tag("td", f"{line.ratio.low:.2f} to {line.ratio.high:.2f}", class_="number"),
            tag("td", scale.bar(line.ratio, f"ratio {line.ratio.value:.2f}"), class_="picture"),
            tag("td", "" if line.noise is None else f"{line.noise.value:.2f}", class_="number"),
            tag("td", _figure(line.ours.get("ms"), "{:.3f}"), class_="number"),
            tag("td", str(line.rival.get("contender"))),
            tag("td", _figure(line.rival.get("ms"), "{:.3f}"), class_="number"),
            *(tag("td", text, class_="number") for text in _costs(line.ours)),
            tag("td", tag("code", str(line.ours.get("plan", ""))[:_DIGITS])),
            class_=line.kind,
        )
        for line in lines
    ]
    top = tag(
        "tr", [tag("th", head, scope="col", class_="picture" if isinstance(head, Markup) else None) for head in heads]
    )
    return tag("div", tag("table", tag("caption", caption), tag("thead", top), tag("tbody", body)), class_="scroll")


def _details(model: Mapping[str, Any]) -> Markup:
    heads = ("contender", "version", "ms", "95 % interval", "error", "compiled in", "memory", "")
    rows = sorted(model.get("rows", []), key=lambda row: _number(row.get("ms")) or math.inf)
    body = []
    for row in rows:
        ends = [_figure(end, "{:.3f}") for end in row.get("interval_ms") or ()]
        told = "" if row.get("status") == "ok" else str(row.get("status"))
        cells = [_figure(row.get("ms"), "{:.3f}"), " to ".join(ends), *_costs(row)]
        numbers = [tag("td", cell, class_="number") for cell in cells]
        name = tag("th", str(row.get("contender")), scope="row")
        body.append(tag("tr", name, tag("td", str(row.get("version", ""))), numbers, tag("td", told, class_="soft")))
    title = f"{model.get('name')}: all contenders"
    caption = tag("caption", f"SHA-256 of the model: {model.get('sha256', '')}")
    head = tag("thead", tag("tr", [tag("th", text, scope="col") for text in heads]))
    table = tag("div", tag("table", caption, head, tag("tbody", body)), class_="scroll")
    return tag("details", tag("summary", title), table)


def _costs(row: Mapping[str, Any]) -> tuple[str, str, str]:
    memory = _figure(row.get("rss_mb"), "{:.0f} MB")
    return _figure(row.get("error"), "{:.1e}"), _figure(row.get("compile_s"), "{:.1f} s"), memory


def _line(model: Mapping[str, Any], contender: str) -> _Line | None:
    ours = _row(model, contender)
    rivals = [
        row
        for row in model.get("rows", [])
        if _number(row.get("ms"))
        and not str(row.get("contender")).startswith("collage")
        and row.get("contender") != AGAIN
    ]
    if ours is None or not rivals:
        return None
    rival = min(rivals, key=lambda row: row["ms"])
    ratio = _ratio(ours, rival)
    noise = _ratio(_row(model, "onnxruntime"), _row(model, AGAIN))
    return None if ratio is None else _Line(str(model.get("name")), ours, rival, ratio, noise)


def _row(model: Mapping[str, Any], contender: str) -> Mapping[str, Any] | None:
    return next((row for row in model.get("rows", []) if row.get("contender") == contender), None)


def _ratio(ours: Mapping[str, Any] | None, rival: Mapping[str, Any] | None) -> Ratio | None:
    """Return the time of a rival over ours, in pairs of one round."""
    if ours is None or rival is None:
        return None
    pairs = list(zip(ours.get("rounds_ms", ()), rival.get("rounds_ms", ()), strict=False))
    ratios = [b / a for a, b in pairs if _number(a) and _number(b)]
    if len(ratios) < 3:
        return None
    interval = median_interval(ratios)
    return Ratio(statistics.median(ratios), interval.low, interval.high)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _figure(value: Any, form: str) -> str:
    number = _number(value)
    return "" if number is None else form.format(number)
