"""Findings of ``collage bench``: targets that were faster than an artefact beyond doubt, for the next compilation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from collage.database import Database, FactKind
from collage.system.machine import this_machine

__all__ = ["faster_targets", "keep_faster"]

_FASTER: FactKind[tuple[str, ...]] = FactKind("bench", tuple[str, ...])


def keep_faster(database: Database, model: str, targets: Iterable[str]) -> None:
    """Keep the targets that were faster than the artefact of a model; none forgets earlier ones.

    Args:
        database: The database of the compilations.
        model: Digest of the model as its author wrote it.
        targets: Printed forms.
    """
    database.keep_local_fact(_FASTER, tuple(targets), **_name_of(model))


def faster_targets(database: Database, model: str) -> list[str]:
    """Return the targets that were faster than the last artefact of a model, as printed."""
    found = database.local_fact(_FASTER, **_name_of(model))
    return [] if found is None else list(found)


def _name_of(model: str) -> dict[str, Any]:
    return {"model": model, "machine": this_machine().fingerprint}
