"""The name of the file that holds the record, for the runtime, which needs nothing else of it."""

from __future__ import annotations

__all__ = ["RECORD"]

RECORD = "tried.json.gz"
"""File of an artefact that holds the record."""
