from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from collage.page._layout import Box, Size, lay_out

SIZE = Size(width=100, height=40, gap_x=10, gap_y=20, columns=3)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 25))
    pairs = list(itertools.combinations(range(count), 2))
    wires = draw(st.lists(st.sampled_from(pairs), max_size=40, unique=True)) if pairs else []
    return count, wires


def overlap(a: Box, b: Box) -> bool:
    return abs(a.x - b.x) < SIZE.width and abs(a.y - b.y) < SIZE.height


@given(graphs())
def test_boxes_do_not_overlap_and_lie_inside(graph: tuple[int, list[tuple[int, int]]]) -> None:
    layout = lay_out(*graph, SIZE)
    assert len(layout.boxes) == graph[0]
    for a, b in itertools.combinations(layout.boxes, 2):
        assert not overlap(a, b)
    for box in layout.boxes:
        assert box.x >= 0 and box.x + SIZE.width <= layout.width
        assert box.y >= 0 and box.y + SIZE.height <= layout.height


@given(graphs())
def test_data_flow_downwards(graph: tuple[int, list[tuple[int, int]]]) -> None:
    layout = lay_out(*graph, SIZE)
    for (a, b), path in zip(graph[1], layout.paths, strict=True):
        assert layout.boxes[a].y + SIZE.height < layout.boxes[b].y
        assert path[0][1] < path[-1][1]
        assert all(0 <= x <= layout.width and 0 <= y <= layout.height for x, y in path)


@given(graphs())
def test_wires_pass_beside_boxes(graph: tuple[int, list[tuple[int, int]]]) -> None:
    """A wire that passes rows runs down in the gutter, where no box is."""
    layout = lay_out(*graph, SIZE)
    left = min(box.x for box in layout.boxes)
    for (a, b), path in zip(graph[1], layout.paths, strict=True):
        if layout.boxes[b].row - layout.boxes[a].row > 1:
            falls = [(p, q) for p, q in itertools.pairwise(path) if p[0] == q[0] and q[1] - p[1] > SIZE.height]
            assert falls and all(p[0] < left for p, _ in falls)


def test_no_row_has_more_boxes_than_columns() -> None:
    layout = lay_out(8, [(0, i) for i in range(1, 8)], SIZE)
    rows = [box.row for box in layout.boxes]
    assert max(rows.count(row) for row in rows) == 3
    assert rows[0] == 0 and max(rows) == 3


def test_independent_items_lie_side_by_side_and_nothing_is_laid_out_too() -> None:
    layout = lay_out(4, [(0, 1), (0, 2), (1, 3), (2, 3)], SIZE)
    assert layout.boxes[1].y == layout.boxes[2].y and layout.boxes[1].x < layout.boxes[2].x
    assert lay_out(0, [], SIZE).boxes == ()


def test_thousands_of_items_take_little_time() -> None:
    """Each pair of rows is passed by a long wire, the worst case for lanes."""
    count = 3000
    wires = [(i, i + 1) for i in range(count - 1)] + [(i, count - 1) for i in range(count - 2)]
    layout = lay_out(count, wires, SIZE)
    assert len(layout.paths) == len(wires)
    assert layout.width < 3 * SIZE.width
