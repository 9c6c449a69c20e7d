"""Stored outcomes of kernels, for tests of the database."""

from __future__ import annotations

from collage.cost.outcome import Outcome
from collage.cost.workload_key import WorkloadKey
from collage.database.database import Database


def outcome_in(database: Database, key: WorkloadKey) -> Outcome | None:
    """Return the outcome of a kernel; None if the database has none."""
    record = database.find(key)
    return None if record is None else record.outcome
