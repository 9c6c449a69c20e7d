"""What people read of an objective and of limits."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.report.reports import OPENVINO, sample

from collage.report import Ratio, Report, Row, columns_of, gain_lines, table_rows

RETURNED = {"runs_per_s": 250.0, "p50_s": 0.0078, "p95_s": 0.0081, "p99_s": 0.009}


def at_once() -> Report:
    rows = (
        Row(f"{OPENVINO}, 2 x 1", "single", "returned", OPENVINO, 1, None, Ratio(1.0, 1.0, 1.0), 4000.0),
        Row("mix 1, 1 x 2", "mix", "slower", None, 2, None, Ratio(1.25, 1.2, 1.3), 5000.0, streams=1, threads=2),
        Row("llvm, 2 x 1", "single", "too slow", "llvm", 1),
        Row("baseline", "baseline", "baseline", "llvm -compiler=onnxruntime", None, None, Ratio(2.0, 1.9, 2.1), 8000.0),
    )
    rows = (dataclasses.replace(rows[0], streams=2, threads=1), *rows[1:])
    section = {"name": "throughput", "limits": ["p99<=10ms"], "streams": 2, "threads": 1, "returned": RETURNED}
    return dataclasses.replace(sample(), winner=rows[0].name, rows=rows, objective=section)


def test_a_throughput_is_told_in_runs_per_second() -> None:
    assert gain_lines(at_once()) == [
        "throughput: 250.0 runs/s with 2 runs at once on 1 thread each; "
        "latency meanwhile: p50 7.800 ms, p95 8.100 ms, p99 9.000 ms",
        "limits kept: p99<=10ms (p50 7.800 ms, p95 8.100 ms, p99 9.000 ms, 250.0 runs/s)",
        "2.000 (1.900 to 2.100) times as many runs per second as what you have "
        "(the original file on onnxruntime with its defaults)",
        "the best single toolchain (openvino, 2 streams of 1 thread) is returned",
    ]
    assert "runs/s" in columns_of(at_once()) and "ms" in columns_of(sample())
    cells = list(table_rows(at_once()))
    assert [cell[0] for cell in cells[:2]] == ["* openvino, 2 streams of 1 thread", "  mix 1, 1 stream of 2 threads"]
    assert [cell[3] for cell in cells] == ["250.0", "200.0", "", "125.0"]
    assert cells[2][-1] == "left out"


def test_a_batch_is_told_with_its_rows_per_second() -> None:
    section = {"dimension": "n", "batch": 4, "rows_per_s": 1000.0, "rows_per_s_at_1": 400.0}
    report = dataclasses.replace(at_once(), objective={**at_once().objective, "batch": section})
    assert gain_lines(report)[1] == "batch 4 (n): 1000.0 rows/s; one row at a time: 400.0"


def test_memory_is_told_in_megabytes_and_against_what_there_is() -> None:
    rows = [
        {"name": "mix 1", "title": "mix 1", "kind": "mix", "rss_bytes": 60e6},
        {"name": OPENVINO, "title": "openvino", "kind": "single", "rss_bytes": 120e6},
        {"name": "llvm", "title": "llvm", "kind": "single", "rss_bytes": 80e6},
    ]
    section = {"name": "memory", "limits": [], "returned": {"rss_bytes": 60e6}, "rows": rows}
    report = dataclasses.replace(sample(), objective={**section, "baseline": {"rss_bytes": 100e6}})
    assert gain_lines(report)[:3] == [
        "largest resident set: 60.0 MB",
        "0.600 times what you have (the original file), 100.0 MB",
        "0.750 times the least of the other single toolchains (llvm), 80.0 MB",
    ]


def test_a_size_is_compared_without_the_report_that_every_artefact_has() -> None:
    rows = [{"name": "mix 1", "title": "mix 1", "kind": "mix", "size_bytes": 1_000_000}]
    section = {"name": "size", "returned": {"size_bytes": 1_200_000}, "rows": rows, "baseline": {"size_bytes": 2e6}}
    assert gain_lines(dataclasses.replace(sample(), objective=section))[:2] == [
        "artefact: 1.200 MB, of which 0.200 MB are its report and the record of the search",
        "0.500 times what you have (the original file), 2.000 MB",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=4),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=4), each, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["name", "limits", "returned", "rows", "baseline", "streams", "threads"])


@given(st.dictionaries(KEYS, JSON | st.sampled_from(["throughput", "memory", "size"])))
def test_a_section_of_a_stranger_breaks_nothing(section: dict[str, Any]) -> None:
    for report in (at_once(), sample()):
        read = Report.from_json({**report.as_json(), "objective": section})
        assert all(isinstance(line, str) for line in gain_lines(read))
        assert len(list(table_rows(read))) == len(report.rows)
