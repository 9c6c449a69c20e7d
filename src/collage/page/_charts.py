"""Charts as SVG: intervals of ratios, the rounds of the comparison, and the front of time against error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from collage.page._markup import Markup, tag
from collage.report import Ratio

__all__ = ["FrontPoint", "RatioScale", "Series", "front_chart", "rounds_chart"]

_WIDTH, _HEIGHT = 420.0, 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 14.0, 14.0, 38.0
_MOST_TICKS = 5
_BAR = (220.0, 22.0)
_AXIS_HEIGHT = 14.0
# Pixels of a label of an axis, with its distance to the next one.
_LABEL = 44.0
_TICKS = (1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
_DASHES = (None, "7 4", "2 3")


@dataclass(frozen=True, slots=True)
class RatioScale:
    """One logarithmic scale for several intervals of ratios, so that they can be compared by eye.

    Attributes:
        low: The least ratio that is drawn.
        high: The greatest.
    """

    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[Ratio]) -> RatioScale:
        """Return the scale that shows 1 and all of some intervals."""
        ends = [1.0, *(end for ratio in ratios for end in (ratio.low, ratio.high) if end > 0)]
        room = max((max(ends) / min(ends)) ** 0.08, 1.01)
        return cls(min(ends) / room, max(ends) * room)

    def bar(self, ratio: Ratio, told: str) -> Markup:
        """Return an interval with its middle, and a line at 1."""
        width, height = _BAR
        low, middle, high, one = (self._x(value) for value in (ratio.low, ratio.value, ratio.high, 1.0))
        return tag(
            "svg",
            tag("line", x1=one, x2=one, y1=0, y2=height, class_="one"),
            tag("line", x1=low, x2=high, y1=height / 2, y2=height / 2, class_="interval"),
            [tag("line", x1=x, x2=x, y1=height / 2 - 5, y2=height / 2 + 5, class_="interval") for x in (low, high)],
            tag("circle", cx=middle, cy=height / 2, r=4.5, class_="middle"),
            class_="bar",
            role="img",
            aria_label=told,
            viewBox=f"0 0 {width:g} {height:g}",
        )

    def axis(self) -> Markup:
        """Return the axis of the intervals: a label at 1, and one towards each end if there is room."""
        beyond = [value for value in _TICKS if value <= self.high]
        below = [1 / value for value in _TICKS if 1 / value >= self.low]
        shown = [1.0]
        for ends in (beyond, below):
            if ends and abs(self._x(ends[-1]) - self._x(1.0)) > _LABEL:
                shown.append(ends[-1])
        labels = [
            tag("text", f"{value:.3g}x", x=self._x(value), y=11, text_anchor=self._anchor(value)) for value in shown
        ]
        view = f"0 0 {_BAR[0]:g} {_AXIS_HEIGHT:g}"
        told = "Axis of ratios: " + ", ".join(f"{value:.3g}" for value in sorted(shown))
        return tag("svg", labels, class_="bar axis", role="img", aria_label=told, viewBox=view)

    def _anchor(self, value: float) -> str:
        x = self._x(value)
        return "start" if x < _LABEL / 2 else "end" if x > _BAR[0] - _LABEL / 2 else "middle"

    def _x(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        return 6 + (_BAR[0] - 12) * math.log(value / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True, slots=True)
class Series:
    """The rounds of one row of the comparison.

    Attributes:
        name: Name of the row.
        rounds_us: Its time in each round.
        colour: Class that colours it.
        mark: Number that selects its marks, which distinguish rows without colour.
        dash: Number of rows of the same colour before it, which selects its dashes.
    """

    name: str
    rounds_us: tuple[float, ...]
    colour: str
    mark: int
    dash: int = 0


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """One plan of the front of time against error.

    Attributes:
        label: Its name.
        time_us: Its time.
        error: Its error, relative to the largest output.
        low: Lower end of the error's interval; the error itself if that is not known.
        high: Upper end.
        is_returned: True for the returned plan.
        plan: Its kernels in a few words.
    """

    label: str
    time_us: float
    error: float
    low: float
    high: float
    is_returned: bool = False
    plan: str = ""


def rounds_chart(series: Sequence[Series], told: str) -> Markup:
    """Return time against the number of the round, a line for each row."""
    times = [time / 1e3 for each in series for time in each.rounds_us]
    count = max(len(each.rounds_us) for each in series)
    y = _Axis(*_padded(min(times), max(times)), _HEIGHT - _BOTTOM, _TOP)
    x = _Axis(1.0, max(count, 2), _LEFT + 8, _WIDTH - _RIGHT - 8)
    parts = [_grid_y(y, "ms"), _ticks_x([(x.at(i), str(i)) for i in _whole_ticks(count)], "round")]
    for each in series:
        points = [(x.at(i), y.at(time / 1e3)) for i, time in enumerate(each.rounds_us, 1)]
        drawn = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        line = tag("polyline", points=drawn, class_="line", stroke_dasharray=_DASHES[each.dash % len(_DASHES)])
        parts.append(tag("g", tag("title", each.name), line, [mark(*p, each.mark) for p in points], class_=each.colour))
    return _chart(parts, told)


def front_chart(points: Sequence[FrontPoint], told: str) -> Markup:
    """Return time against error on a logarithmic scale, with the interval of each error."""
    positive = [value for point in points for value in (point.low, point.error, point.high) if value > 0]
    least = min(positive, default=1e-8)
    ends = math.log10(least) - 0.3, math.log10(max(positive, default=1e-6)) + 0.3
    x = _Axis(*ends, _LEFT + 14, _WIDTH - _RIGHT - 8)
    times = [point.time_us / 1e3 for point in points]
    y = _Axis(*_padded(min(0.0, *times), max(times)), _HEIGHT - _BOTTOM, _TOP)

    def at(error: float) -> float:
        return x.at(math.log10(error)) if error > 0 else x.start

    powers = range(math.ceil(ends[0]), math.floor(ends[1]) + 1)
    step = max(1, len(powers) // _MOST_TICKS)
    parts = [
        _grid_y(y, "ms"),
        _ticks_x([(x.at(power), f"1e{power}") for power in powers[::step]], "error, of the largest output"),
    ]
    for point in sorted(points, key=lambda point: point.error):
        px, py = at(point.error), y.at(point.time_us / 1e3)
        text = f"{point.label}: {point.time_us / 1e3:.3g} ms, error {point.error:.1e}"
        parts.append(
            tag(
                "g",
                tag("title", text),
                tag("line", x1=at(point.low), x2=at(point.high), y1=py, y2=py, class_="interval"),
                tag("circle", cx=px, cy=py, r=6 if point.is_returned else 4, class_="middle"),
                tag("text", point.label, x=px, y=py - 9, text_anchor="middle", class_="facts"),
                class_="returned" if point.is_returned else "other",
            )
        )
    return _chart(parts, told)


def mark(x: float, y: float, kind: int) -> Markup:
    """Return one of five marks at a place."""
    shapes = (
        f"M{x - 3.2:.1f} {y:.1f}a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z",
        f"M{x - 3:.1f} {y - 3:.1f}h6v6h-6z",
        f"M{x:.1f} {y - 4:.1f}l4 7h-8z",
        f"M{x:.1f} {y - 4:.1f}l4 4l-4 4l-4 -4z",
        f"M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6",
    )
    return tag("path", d=shapes[kind % len(shapes)], class_="cross" if kind % len(shapes) == 4 else "mark")


@dataclass(frozen=True, slots=True)
class _Axis:
    """A linear scale from values to places."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values, a few."""
        raw = (self.high - self.low) / _MOST_TICKS
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
        first = math.ceil(self.low / step - 1e-9)
        return [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _padded(low: float, high: float) -> tuple[float, float]:
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return (0.0 if low == 0 else max(0.0, low - room)), high + room


def _whole_ticks(count: int) -> list[int]:
    step = max(1, -(-count // 10))
    return list(range(1, count + 1, step))


def _grid_y(axis: _Axis, unit: str) -> Markup:
    lines = [
        tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=axis.at(v), y2=axis.at(v), class_="grid") for v in axis.ticks()
    ]
    texts = [tag("text", f"{v:g}", x=_LEFT - 6, y=axis.at(v) + 4, text_anchor="end") for v in axis.ticks()]
    return tag("g", lines, texts, tag("text", unit, x=4, y=_TOP + 4), class_="axis")


def _ticks_x(ticks: Sequence[tuple[float, str]], title: str) -> Markup:
    y = _HEIGHT - _BOTTOM + 16
    texts = [tag("text", text, x=x, y=y, text_anchor="middle") for x, text in ticks]
    middle = tag("text", title, x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - 5, text_anchor="middle")
    return tag("g", texts, middle, class_="axis")


def _chart(parts: Sequence[Markup], told: str) -> Markup:
    view = f"0 0 {_WIDTH:g} {_HEIGHT:g}"
    return tag("svg", parts, class_="chart", role="img", aria_label=told, viewBox=view)
