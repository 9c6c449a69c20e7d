"""Findings of ``collage bench``: targets that were faster than an artefact beyond doubt, for the next compilation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from collage.database.database import Database
from collage.system.machine import this_machine

__all__ = ["faster_targets", "keep_faster"]


def keep_faster(database: Database, model: str, targets: Iterable[str]) -> None:
    """Keep the targets that were faster than the artefact of a model; none forgets earlier ones.

    Args:
        database: The database of the compilations.
        model: Digest of the model as its author wrote it.
        targets: Printed forms.
    """
    database.keep_local_fact(list(targets), **_name_of(model))


def faster_targets(database: Database, model: str) -> list[str]:
    """Return the targets that were faster than the last artefact of a model, as printed."""
    found = database.local_fact(**_name_of(model))
    return [str(target) for target in found] if isinstance(found, list) else []


def _name_of(model: str) -> dict[str, Any]:
    return {"fact": "bench-1", "model": model, "machine": this_machine().fingerprint}
