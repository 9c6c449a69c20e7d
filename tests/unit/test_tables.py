"""What the command line prints for people."""

from __future__ import annotations

from typing import Any

import pytest

from collage.cli._report import print_bench, print_report
from collage.report import Report


def bench_table(*medians_us: float | None) -> dict[str, Any]:
    """An artefact of the first time against single toolchains of the others; None is one that does not run."""
    rows = [
        {"name": name, "median_us": time_us, "p10_us": time_us, "p90_us": time_us, "reason": None}
        for name, time_us in zip(["collage", "left", "right"], medians_us, strict=True)
    ]
    best = min(time_us for time_us in medians_us[1:] if time_us)
    speedup = best / (medians_us[0] or best)
    return {
        "rows": rows,
        "speedup_vs_best_single": speedup,
        "speedup_interval": [speedup, speedup],
        "faster": [],
        "neighbour": "none",
    }


def test_bench_says_how_to_use_a_row_that_is_faster_beyond_doubt(capsys: pytest.CaptureFixture[str]) -> None:
    table = bench_table(34.0, 51.0, 33.0)
    print_bench(table)
    assert "faster" not in capsys.readouterr().out
    table["faster"] = [{"name": "right", "command": "collage compile model.onnx -t right"}]
    print_bench(table)
    printed = capsys.readouterr().out
    assert "right is faster beyond doubt" in printed
    assert "to use it now: collage compile model.onnx -t right" in printed


def test_bench_of_a_decoder_prints_tokens_and_the_share_of_the_machines_reads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = bench_table(34.0, 51.0, 33.0)
    decoding = {
        "prompt": 32,
        "first_token_ms": 21.5,
        "tokens_per_s": 179.0,
        "read_bytes_per_s": 27.6e9,
        "read_share": 0.755,
    }
    print_bench({**table, "decoding": decoding})
    printed = " ".join(capsys.readouterr().out.split())
    assert "first token of 32 after 21.5 ms, then 179 tokens/s, reading weights at 76% of the 27.6 GB/s" in printed
    print_bench({**table, "decoding": {**decoding, "read_share": None}})
    assert "reading weights" not in capsys.readouterr().out


def test_bench_takes_no_wrong_row_for_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    table = bench_table(40.0, 10.0, 30.0)
    table["rows"][1]["reason"] = "output 'y': differs"
    print_bench(table)
    printed = capsys.readouterr().out
    assert "1.333" in printed and "0.333" in printed


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        (None, []),
        ([], ["checked at these lengths only"]),
        ([{"x": [2, 96]}, {"x": [1, 1]}], ["checked at other lengths too: x[2, 96]; x[1, 1]\n"]),
        ([{name: [3] for name in "abcdef"}], ["a[3], b[3], c[3], d[3] and 2 more\n"]),
    ],
)
def test_a_report_says_at_which_other_lengths_kernels_were_checked(
    lengths: list[dict[str, list[int]]] | None, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"max_rel_error": 1e-6, "tolerance": 1e-3, "other_lengths": lengths}
    print_report(Report.from_json({"schema": 1, "numerics": told}))
    printed = capsys.readouterr().out
    assert "checked at" in printed if said else "checked at" not in printed
    assert all(words in printed for words in said)
