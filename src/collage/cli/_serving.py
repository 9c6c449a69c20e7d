"""``collage bench`` with several callers at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from collage.cli._console import print_json, progress
from collage.cli._report import print_table
from collage.serving_benchmark import bench_serving
from collage.system.texts import printable

__all__ = ["show_serving"]


def show_serving(
    artefact: Path,
    against: Sequence[str] | None,
    concurrency: int,
    duration_s: float | None,
    *,
    quiet: bool,
    verbose: bool,
    json: bool,
    **options: Any,
) -> None:
    """Keep an artefact and its rivals busy, and print the result."""
    with progress(quiet, verbose) as say:
        table = bench_serving(artefact, against, concurrency=concurrency, duration_s=duration_s, say=say, **options)
    if json:
        return print_json(table)
    rows = [
        (
            row["name"],
            "" if row["runs_per_s"] is None else f"{row['runs_per_s']:.1f}",
            *("" if row[f"{name}_us"] is None else f"{row[f'{name}_us'] / 1e3:.3f}" for name in ("p50", "p95", "p99")),
            row["precision"] or "",
            "" if row["ratio"] is None else f"{1.0 / row['ratio']:.3f}",
            row["reason"] or "",
        )
        for row in table["rows"]
    ]
    print_table(
        f"{concurrency} at once, {table['seconds_each']:g} s each in {table['rounds']} turns; latencies in ms",
        ("", "runs/s", "p50", "p95", "p99", "precision", "ratio of runs/s", ""),
        rows,
        right=(1, 2, 3, 4, 6),
    )
    if table["speedup_vs_best_single"] is not None:
        low, high = table["speedup_interval"]
        told = f"{table['speedup_vs_best_single']:.3f} times as many runs per second as the best single toolchain"
        typer.echo(printable(f"{told} (95 % interval {low:.3f} to {high:.3f})"))
