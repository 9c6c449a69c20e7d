"""Queries on a timing database: counting and listing rows, and removing those that are no longer wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from collage._errors import UsageError
from collage.database._facts import MACHINE, QUARANTINED
from collage.database._rows import outcome_of, parts_of, read_json, value_of
from collage.database._schema import SCHEMA, fact, timing
from collage.database.database import Database
from collage.target import Target

__all__ = ["Choice", "find_digest", "listing", "prune", "statistics"]


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of rows: those to which every given condition applies.

    Attributes:
        before_s: Made before this time, in seconds since 1970.
        machine: Made on the machine of this fingerprint (its beginning is enough), or of this origin.
        build: The build of the toolchain contains this text.
        target: Printed form of a target, or the name of its toolchain.
        status: Timings of this status only.
        kind: Facts of this kind only.
    """

    before_s: float | None = None
    machine: str | None = None
    build: str | None = None
    target: str | None = None
    status: str | None = None
    kind: str | None = None

    def has_timing(self, row: Mapping[str, Any]) -> bool:
        """Return True if a timing is chosen. One without a readable key is, if no condition is about its key."""
        parts = parts_of(row) or {}
        return (
            self.kind is None
            and (self.status is None or row["status"] == self.status)
            and self._is_from(row, parts)
            and (self.build is None or self.build in str(parts.get("build", "")))
            and (self.target is None or self.target in _names(str(parts.get("target", ""))))
        )

    def has_fact(self, row: Mapping[str, Any]) -> bool:
        """Return True if a fact is chosen."""
        name = read_json(row["name"])
        name = name if isinstance(name, dict) else {}
        builds = name["builds"].values() if isinstance(name.get("builds"), dict) else [name.get("build", "")]
        return (
            self.status is None
            and (self.kind is None or name.get("fact") == self.kind)
            and self._is_from(row, name)
            and (self.build is None or any(self.build in str(build) for build in builds))
            and (self.target is None or self.target in _names(str(name.get("target", ""))))
        )

    def _is_from(self, row: Mapping[str, Any], parts: Mapping[str, Any]) -> bool:
        young = self.before_s is not None and not row["made_at_s"] < self.before_s
        machine = self.machine
        here = machine is None or row["origin"] == machine or str(parts.get("machine", "")).startswith(machine)
        return here and not young


def statistics(database: Database) -> dict[str, Any]:
    """Return the counts of rows by kind and origin, as JSON values."""
    status, targets, machines, origins, kinds = (Counter[str]() for _ in range(5))
    damaged, made = 0, []
    for row in database.rows(timing):
        parts = parts_of(row)
        if parts is None or outcome_of(row) is None:
            damaged += 1
            continue
        status[row["status"]] += 1
        targets[str(parts.get("target"))] += 1
        machines[str(parts.get("machine"))] += 1
        origins[row["origin"]] += 1
        made.append(row["made_at_s"])
    names: dict[str, Any] = {}
    quarantined = []
    for row in database.rows(fact):
        name, value = read_json(row["name"]), value_of(row)
        if value is None:
            damaged += 1
            continue
        kinds[str(name.get("fact"))] += 1
        if name.get("fact") == MACHINE.name:
            names[str(name.get("machine"))] = MACHINE.read(value) or {}
        elif name.get("fact") == QUARANTINED.name and (build := QUARANTINED.read(value)) is not None:
            quarantined.append({"toolchain": None, "build": None, **name, **asdict(build)})
    return {
        "url": database.url,
        "schema_of_tables": SCHEMA,
        "bytes": database.file.stat().st_size if database.file else None,
        "integrity": database.complaints() or "ok",
        "origin": database.origin,
        "timings": status.total(),
        "by_status": dict(status),
        "by_target": dict(targets),
        "by_origin": dict(origins),
        "by_machine": {
            machine: {"timings": count, "cpu": names.get(machine, {}).get("cpu")} for machine, count in machines.items()
        },
        "facts": dict(kinds),
        "quarantined": quarantined,
        "damaged": damaged,
        "oldest_s": min(made, default=None),
        "newest_s": max(made, default=None),
    }


def listing(database: Database, choice: Choice = Choice(), digest: str = "") -> Iterator[dict[str, Any]]:
    """Timings, oldest first, as JSON values.

    Args:
        database: The database to read.
        choice: The rows to list.
        digest: The first characters of the digest of the key.
    """
    for row in database.rows(timing):
        outcome, parts = outcome_of(row), parts_of(row)
        if outcome is None or parts is None or not choice.has_timing(row) or not row["digest"].startswith(digest):
            continue
        measured = outcome.time
        yield {
            "digest": row["digest"],
            "status": outcome.status.value,
            "median_us": measured and measured.median_s * 1e6,
            "p10_us": measured and measured.p10_s * 1e6,
            "p90_us": measured and measured.p90_s * 1e6,
            "samples": measured and measured.count,
            "spread": measured and measured.spread,
            "error": outcome.error,
            "reason": outcome.reason,
            "build_s": outcome.build_s,
            "made_at_s": row["made_at_s"],
            "origin": row["origin"],
            "local": row["origin"] == database.origin,
            "parts": parts,
        }


def find_digest(database: Database, beginning: str) -> dict[str, Any]:
    """The one timing whose digest begins so.

    Raises:
        UsageError: There is none, or more than one.
    """
    found = list(listing(database, digest=beginning.lower()))
    if len(found) != 1:
        how_many = f"{len(found)} timings begin" if found else "no timing begins"
        raise UsageError(f"{how_many} with {beginning!r} in {database.url}; `collage db show` lists them")
    return found[0]


def prune(database: Database, choice: Choice, *, dry_run: bool = False) -> tuple[int, int]:
    """Remove rows.

    Returns:
        The number of timings and the number of facts.
    """
    timings = [row["digest"] for row in database.rows(timing) if choice.has_timing(row)]
    facts = [row["digest"] for row in database.rows(fact) if choice.has_fact(row)]
    if not dry_run:
        database.remove(timing, timings)
        database.remove(fact, facts)
    return len(timings), len(facts)


def _names(target: str) -> tuple[str, ...]:
    """Return the names of a target: its printed form, and its short one."""
    try:
        return (target, Target.parse(target).short)
    except UsageError:
        return (target,)
