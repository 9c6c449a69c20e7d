"""Changes between two builds of a toolchain, by the kernels that were measured with both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collage.cost.workload_key import digest_of
from collage.database.database import Database
from collage.database.queries import Choice, listing
from collage.status import Status

__all__ = ["BuildChange", "build_changes"]

_REPAIRED = "repaired"


@dataclass(frozen=True, slots=True)
class BuildChange:
    """A kernel whose outcome is another one with a newer build.

    Attributes:
        change: ``wrong`` or another status that the newer build has and the older one had not, ``repaired`` if it runs only
            now, ``slower`` or ``faster``.
        ratio: Time with the newer build over that with the older one; None if one of them did not run.
        before: The timing with the older build, as ``queries.listing`` has it.
        after: The timing with the newer one.
    """

    change: str
    ratio: float | None
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def build_changes(
    database: Database, choice: Choice, older: str | None = None, newer: str | None = None
) -> tuple[Sequence[BuildChange], int]:
    """Compare the timings of equal kernels, machines and methods that differ in the build of their toolchain.

    A kernel is slower or faster if the ranges from the 10th to the 90th percentile do not overlap.

    Args:
        database: The database to read.
        choice: The timings that are compared.
        older: Text that the older build contains; None is the build that was measured before the newest.
        newer: Text that the newer build contains; None is the one that was measured last.

    Returns:
        The changes: those that no longer run, then from the slowest to the fastest, then those repaired. And the number of
        kernels measured with both builds.
    """
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in listing(database, choice):
        groups[digest_of({**row["parts"], "build": ""})].append(row)
    pairs = [pair for rows in groups.values() if (pair := _pair(rows, older, newer)) is not None]
    changes = [change for pair in pairs if (change := _change(*pair)) is not None]

    def rank(change: BuildChange) -> tuple[bool, bool, float]:
        return change.change == _REPAIRED, change.ratio is not None, -(change.ratio or 0.0)

    return sorted(changes, key=rank), len(pairs)


def _pair(
    rows: Sequence[Mapping[str, Any]], older: str | None, newer: str | None
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return the latest timings with an older and with a newer build; None if there are not both."""
    latest = sorted(rows, key=lambda row: row["made_at_s"], reverse=True)
    after = next((row for row in latest if newer is None or newer in row["parts"]["build"]), None)
    others = [row for row in latest if after is not None and row["parts"]["build"] != after["parts"]["build"]]
    before = next((row for row in others if older is None or older in row["parts"]["build"]), None)
    return None if after is None or before is None else (before, after)


def _change(before: Mapping[str, Any], after: Mapping[str, Any]) -> BuildChange | None:
    if before["status"] != after["status"]:
        change = _REPAIRED if after["status"] == Status.OK else after["status"]
        return BuildChange(change, None, before, after)
    if before["median_us"] is None or after["median_us"] is None:
        return None
    ratio = after["median_us"] / before["median_us"]
    if after["p10_us"] > before["p90_us"]:
        return BuildChange("slower", ratio, before, after)
    if after["p90_us"] < before["p10_us"]:
        return BuildChange("faster", ratio, before, after)
    return None
