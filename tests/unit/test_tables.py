"""What the command line prints for people."""

from __future__ import annotations

from typing import Any

import pytest

from collage.cli._report import print_bench


def bench_table(*medians_us: float | None) -> dict[str, Any]:
    """An artefact of the first time against single toolchains of the others; None is one that does not run."""
    rows = [
        {"name": name, "median_us": time_us, "p10_us": time_us, "p90_us": time_us, "reason": None}
        for name, time_us in zip(["collage", "left", "right"], medians_us, strict=True)
    ]
    best = min(time_us for time_us in medians_us[1:] if time_us)
    speedup = best / (medians_us[0] or best)
    return {"rows": rows, "speedup_vs_best_single": speedup, "speedup_interval": [speedup, speedup]}


@pytest.mark.parametrize(
    ("medians_us", "said"),
    [
        ((34.0, 51.0, 33.0), "1 µs longer: the call itself"),
        ((30.0, 51.0, 33.0), ""),
        ((33.0, 51.0, 33.0), ""),
        ((84.0, None, 33.0), ""),
        ((48.0, None, 33.0), "15 µs longer: the call itself"),
    ],
)
def test_bench_says_what_may_be_the_call_itself(
    medians_us: tuple[float | None, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_bench(bench_table(*medians_us))
    printed = capsys.readouterr().out
    assert "the best single toolchain" in printed
    assert said in printed and ("longer" in printed) == bool(said)
