"""``collage compile --dry-run``: candidates and estimated time, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collage.cli._report import print_table
from collage.report import short_name
from collage.system.texts import counted, printable

__all__ = ["print_dry_run"]


def print_dry_run(found: Mapping[str, Any]) -> None:
    """Print the candidates and the estimated time of a compilation."""
    rows = [
        (
            short_name(row["target"]),
            f"{row['operators']} of {found['operators']}" if row["available"] else "",
            str(row["candidates"]),
            "" if row["available"] else f"not usable: {row['reason']}",
        )
        for row in found["targets"]
    ]
    print_table("dry run: nothing was built or measured", ("target", "operators", "candidates", ""), rows, (1, 2))
    low, high = found["expected_minutes"]
    lines = [
        f"{counted(found['candidates'], 'candidate')}, {found['distinct']} distinct; at most {found['measured_at_most']} "
        "would be measured, fewer where timings are known",
        f"expected: {low:g} to {high:g} minutes",
        *(f"note: {note}" for note in found["notes"]),
    ]
    print(printable("\n".join(lines)))
