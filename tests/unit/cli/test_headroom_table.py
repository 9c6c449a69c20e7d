"""The table of headroom, as people read it."""

from __future__ import annotations

from typing import Any

import pytest

from collage.cli._headroom import table_lines


def found(rows: list[dict[str, Any]], **others: Any) -> dict[str, Any]:
    return {
        "base": "openvino",
        "is_whole": True,
        "threads": 2,
        "time_ms": sum(row["time_ms"] for row in rows),
        "rows": rows,
        "timed_share": 1.0,
        "timed_chains": [9, 9],
        "targets": [],
        "rates": {"gflops": 141.0, "gbytes_per_s": [[1, 120.0], [2, 20.0]]},
        **others,
    }


def row(name: str, time_ms: float, limit_ms: float | None = 1.0, native_ms: float | None = None) -> dict[str, Any]:
    return {
        "operators": name,
        "count": 2,
        "time_ms": time_ms,
        "share": 0.1,
        "fastest_ms": time_ms / 2,
        "fastest": "onnxruntime",
        "limit_ms": limit_ms,
        "over_limit": None if limit_ms is None else time_ms / 2 / limit_ms,
        "native_ms": native_ms,
        "native_over_fastest": None if native_ms is None else native_ms / (time_ms / 2),
    }


def test_it_fits_a_narrow_terminal_and_the_rest_is_one_row() -> None:
    rows = [row(f"Conv 11x11 depthwise+{'Sigmoid' * 9}+{i}", 1000.0 * (i + 1)) for i in range(40)]
    lines = list(table_lines(found(rows, targets=[{"target": "ncnn", "reason": "no " * 90, "time_ms": None}])))
    assert max(map(len, lines)) <= 80
    assert len(lines) < 30
    (rest,) = [line for line in lines if line.startswith("25 other rows")]
    assert rest.split()[3:5] == ["50", "700000"]
    (everything,) = [line for line in lines if line.startswith("all")]
    assert everything.split()[1:3] == ["80", "820000"]


def test_sums_leave_out_what_is_not_known() -> None:
    lines = list(table_lines(found([row("MatMul", 8.0, 2.0, 6.0), row("If", 4.0, None)])))
    assert any(" >999" in line for line in table_lines(found([row("Neg", 4.0, 1e-6)])))
    cells = [line.split() for line in lines if line.startswith(("MatMul", "If", "all"))]
    assert cells[0] == ["MatMul", "2", "8.00", "10.0%", "4.00", "onnxruntime", "2.00", "1.50"]
    assert cells[1] == ["If", "2", "4.00", "10.0%", "2.00", "onnxruntime"]
    assert cells[2] == ["all", "4", "12.0", "20.0%", "6.00", "2.00", "1.50"]


@pytest.mark.parametrize(("timed", "is_told"), [([3, 9], True), ([9, 9], False)])
def test_it_says_what_was_not_timed(timed: list[int], is_told: bool) -> None:
    text = " ".join(table_lines(found([row("Conv", 1.0)], timed_chains=timed, timed_share=0.8)))
    assert ("3 of 9 distinct chains, with 80%" in text) is is_told


def test_control_characters_of_a_model_do_not_reach_the_terminal() -> None:
    assert not any("\x1b" in line for line in table_lines(found([row("\x1b[31mConv", 1.0)])))
