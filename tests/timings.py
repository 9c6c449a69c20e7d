"""What a database holds of one kernel."""

from __future__ import annotations

from collage.cost.outcome import Outcome
from collage.cost.workload_key import WorkloadKey
from collage.database.database import Database


def outcome_in(database: Database, key: WorkloadKey) -> Outcome | None:
    record = database.find(key)
    return None if record is None else record.outcome
