"""What people read of a report."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.report.reports import OPENVINO, REDUCED, sample

from collage.report import Ratio, Report, Row, gain_lines, ratio_text, table_rows, verdict_of


def test_the_gains_come_in_order_each_with_its_interval() -> None:
    assert gain_lines(sample()) == [
        "2.000 (1.900 to 2.100) times as fast as what you have (the original file on onnxruntime with its defaults)",
        "1.500 (1.450 to 1.550) times as fast as the best single toolchain at the model's own precision (openvino)",
        "1.100 (1.080 to 1.120) times as fast as the best of the menu (openvino -precision=bf16)",
    ]


def with_row(name: str, **changes: Any) -> Report:
    report = sample()
    rows = tuple(dataclasses.replace(row, **changes) if row.name == name else row for row in report.rows)
    return dataclasses.replace(report, rows=rows)


def test_a_baseline_that_is_as_fast_or_faster_is_told_so() -> None:
    assert gain_lines(with_row("baseline", ratio=Ratio(1.001, 0.99, 1.01)))[0].startswith("as fast as what you have")
    slower = with_row("baseline", ratio=Ratio(0.9, 0.88, 0.93))
    assert gain_lines(slower)[0].startswith("slower than what you have (the original file on onnxruntime")
    row = slower.row("baseline")
    assert row is not None and verdict_of(slower, row) == "what you have, and faster"


def test_a_single_that_is_returned_is_named() -> None:
    report = dataclasses.replace(with_row(OPENVINO, ratio=Ratio(1.0, 1.0, 1.0)), winner=OPENVINO)
    assert "the best single toolchain (openvino) is returned" in gain_lines(report)


def test_every_row_has_a_word() -> None:
    words = [cells[-1] for cells in table_rows(sample())]
    assert words == [
        "returned",
        "as fast within doubt, with more kernels",
        "slower beyond doubt",
        "slower beyond doubt",
        "what you have",
        "left out: 2.0 and 2.1 times as slow as the best",
        "wrong: output 'y' differs",
    ]
    assert [cells[0][0] for cells in table_rows(sample())] == ["*", *" " * 6]


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (Ratio(1.5, 1.25, 2.0), "1.500 (1.250 to 2.000)"),
        (Ratio(1.0003, 1.0001, 1.0008), "1.0003 (1.0001 to 1.0008)"),
        (Ratio(1.0, 1.0, 1.0), "1.000 (1.000 to 1.000)"),
        (Ratio(0.99996, 0.9, 1.2), "0.99996 (0.90000 to 1.20000)"),
    ],
)
def test_a_ratio_shows_on_which_side_of_one_it_lies(ratio: Ratio, text: str) -> None:
    assert ratio_text(ratio) == text


def test_a_long_reason_is_cut_and_a_line_stays_a_line() -> None:
    row = Row("llvm", "single", "crashed", "llvm", reason="a\n" * 500)
    said = verdict_of(Report(rows=(row,)), row)
    assert len(said) < 230 and "\n" not in said and said.endswith("…")


def numbers_of(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for each in value.values():
            yield from numbers_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from numbers_of(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


positive = st.floats(1e-3, 1e5)
ratios = st.builds(Ratio, positive, positive, positive)
random_rows = st.lists(
    st.builds(
        Row,
        st.sampled_from(["mix 1", "baseline", "llvm", OPENVINO, REDUCED]),
        st.sampled_from(["baseline", "single", "mix"]),
        st.sampled_from(["slower", "tie", "undecided", "baseline", "too slow", "not raced"]),
        target=st.none(),
        kernels=st.none() | st.integers(1, 99),
        ratio=st.none() | ratios,
        time_us=st.none() | positive,
    ),
    max_size=5,
    unique_by=lambda row: row.name,
)


@settings(max_examples=100, deadline=None)
@given(random_rows)
def test_every_number_on_the_page_follows_from_the_json(rows: list[Row]) -> None:
    report = Report(winner="mix 1", rows=tuple(rows))
    page = "\n".join([*gain_lines(report), *(" | ".join(cells) for cells in table_rows(report))])
    page = re.sub(r"mix \d|bf16|95 %|\| 1 \|", "", page)
    known = list(numbers_of(report.as_json()))
    for text in re.findall(r"\d+(?:\.\d+)?", page):
        digits = len(text.partition(".")[2])
        half = 0.50001 * 10.0**-digits
        assert any(abs(float(text) - each) <= half or abs(float(text) - each / 1e3) <= half for each in known), text


def test_a_report_shows_itself_and_nothing_of_a_model_is_markup() -> None:
    assert repr(sample()) == "<collage.Report: 'mix 1'; 2.000x baseline; 1.500x best single; 1.100x best of menu>"
    shown = sample()._repr_html_()
    assert all(line in shown.replace("&#x27;", "'") for line in gain_lines(sample()))
    assert shown.count("<tr>") == 1 + len(sample().rows)
    hostile = Row("<script>", "mix", "wrong", reason="<img onerror=1>\x1b[2J")
    page = Report(winner="<script>\n", rows=(hostile,))._repr_html_()
    assert "<script" not in page and "<img" not in page and "\x1b" not in page
    assert repr(Report(winner="a\x1b[2J")).isprintable()
