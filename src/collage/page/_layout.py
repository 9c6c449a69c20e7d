"""The layout of a picture of kernels: boxes in rows, in the order of data, and wires between them.

A kernel lies below all kernels whose values it reads. Independent kernels lie side by side. The work grows with the number
of boxes and wires only, because a partitioned model may have thousands of kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Box", "Layout", "Size", "lay_out"]

Point = tuple[float, float]

_MOST_LANES = 8
_LANE = 10.0
_MARGIN = 8.0


@dataclass(frozen=True, slots=True)
class Size:
    """The measures of a picture, in pixels.

    Attributes:
        width: Width of a box.
        height: Height of a box.
        gap_x: Room between boxes of a row.
        gap_y: Room between rows.
        columns: Most boxes in a row; further ones go into another row.
    """

    width: float
    height: float
    gap_x: float
    gap_y: float
    columns: int


@dataclass(frozen=True, slots=True)
class Box:
    """A place of the picture.

    Attributes:
        x: Left edge.
        y: Upper edge.
        row: Number of the row.
        is_first: True if no box of the row lies to its left.
    """

    x: float
    y: float
    row: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """A picture's geometry.

    Attributes:
        boxes: A box for each item.
        paths: A path for each wire: corners of a line, or the two ends of a curve between neighbouring rows.
        width: Width of the whole.
        height: Height of the whole.
    """

    boxes: tuple[Box, ...]
    paths: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def lay_out(count: int, wires: Sequence[tuple[int, int]], size: Size) -> Layout:
    """Place items and wires.

    Args:
        count: Number of items. They are sorted: a wire goes from a smaller to a greater number.
        wires: Pairs of items: the second reads an output of the first.
        size: The measures.
    """
    rows = _rows(count, wires, size.columns)
    row_of = {item: number for number, row in enumerate(rows) for item in row}
    lanes = _lanes([(row_of[a], row_of[b]) for a, b in wires])
    gutter = _MARGIN + _LANE * (1 + max(lanes, default=-1)) if any(lane >= 0 for lane in lanes) else _MARGIN
    widest = max((len(row) for row in rows), default=0)
    inner = widest * size.width + max(0, widest - 1) * size.gap_x
    boxes: dict[int, Box] = {}
    for number, row in enumerate(rows):
        left = gutter + (inner - len(row) * size.width - (len(row) - 1) * size.gap_x) / 2
        for place, item in enumerate(row):
            x = left + place * (size.width + size.gap_x)
            boxes[item] = Box(x, _MARGIN + number * (size.height + size.gap_y), number, place == 0)
    paths = tuple(_path(boxes[a], boxes[b], lane, gutter, size) for (a, b), lane in zip(wires, lanes, strict=True))
    height = 2 * _MARGIN + len(rows) * size.height + max(0, len(rows) - 1) * size.gap_y
    return Layout(tuple(boxes[item] for item in range(count)), paths, gutter + inner + _MARGIN, height)


def _rows(count: int, wires: Sequence[tuple[int, int]], columns: int) -> list[list[int]]:
    """Return the items of each row, from left to right, each near the middle of its inputs."""
    reads: list[list[int]] = [[] for _ in range(count)]
    for a, b in wires:
        reads[b].append(a)
    level = [0] * count
    for item in range(count):
        level[item] = 1 + max((level[a] for a in reads[item]), default=-1)
    by_level: list[list[int]] = [[] for _ in range(max(level, default=-1) + 1)]
    for item in range(count):
        by_level[level[item]].append(item)
    place = [0.0] * count
    rows: list[list[int]] = []
    for items in by_level:
        middle = {i: sum(place[a] for a in reads[i]) / len(reads[i]) if reads[i] else 0.0 for i in items}
        items.sort(key=lambda i: (middle[i], i))
        for start in range(0, len(items), columns):
            row = items[start : start + columns]
            rows.append(row)
            for position, item in enumerate(row):
                place[item] = position - (len(row) - 1) / 2
    return rows


def _lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return the lane of each wire that passes rows, shorter ones nearer to the boxes; -1 if it passes none."""
    lanes = [-1] * len(spans)
    taken: list[list[tuple[int, int]]] = []
    passing = [i for i, (top, bottom) in enumerate(spans) if bottom - top > 1]
    for i in sorted(passing, key=lambda i: (spans[i][1] - spans[i][0], spans[i])):
        top, bottom = spans[i]
        # Wires from one box to several may share a lane. The look back is bounded, so that the work stays linear.
        free = (
            lane
            for lane, others in enumerate(taken)
            if all(bottom <= other[0] or other[1] <= top or top == other[0] for other in others[-_MOST_LANES:])
        )
        lane = next(free, min(len(taken), _MOST_LANES - 1))
        if lane == len(taken):
            taken.append([])
        taken[lane].append(spans[i])
        lanes[i] = lane
    return lanes


def _path(a: Box, b: Box, lane: int, gutter: float, size: Size) -> tuple[Point, ...]:
    start, end = (a.x + size.width / 2, a.y + size.height), (b.x + size.width / 2, b.y)
    if lane < 0:
        return (start, end)
    x = gutter - _LANE / 2 - _LANE * lane - 3.0
    down = [(a.x, a.y + 0.7 * size.height), (x, a.y + 0.7 * size.height)]
    if not a.is_first:
        gap = a.y + size.height + 0.35 * size.gap_y
        down = [(start[0], start[1]), (start[0], gap), (x, gap)]
    up = [(x, b.y + 0.3 * size.height), (b.x, b.y + 0.3 * size.height)]
    if not b.is_first:
        gap = b.y - 0.35 * size.gap_y
        up = [(x, gap), (end[0], gap), end]
    return (*down, *up)
