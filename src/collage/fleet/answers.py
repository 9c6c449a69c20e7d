"""Answers of nodes. Data from the network is checked here, and only this form is used afterwards."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Answer", "read_answer"]

_KINDS = ("done", "failed", "late", "refused")
_MOST_TEXT = 2000


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a node to a job.

    Attributes:
        kind: ``done``, ``failed``, ``late`` or ``refused``.
        node: Ray's name for the node, as the node states it.
        host: Its own name.
        reason: The reason of a failure.
        code: Exit code of the command, if it failed.
        took_s: Seconds that it took.
        artefact: The artefact, unchecked.
        rows: Timings and facts as text, unchecked.
    """

    kind: str
    node: str = ""
    host: str = ""
    reason: str = ""
    code: int | None = None
    took_s: float = 0.0
    artefact: bytes = b""
    rows: str = ""


def read_answer(found: Any) -> Answer:
    """Parse the reply of a node; a malformed reply becomes a failure."""
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        return Answer("failed", reason=f"the node sent a {type(found).__name__}, which is not an answer")
    node, host, reason = (_text(found.get(name)) for name in ("node", "host", "reason"))
    kind, code, took_s, artefact = (found.get(name) for name in ("kind", "code", "took_s", "artefact"))
    rows = found.get("rows", "")
    is_number = isinstance(took_s, int | float) and 0 <= took_s <= sys.float_info.max
    is_whole = kind != "done" or (isinstance(artefact, bytes) and is_number and isinstance(rows, str))
    if not isinstance(kind, str) or kind not in _KINDS or not is_whole:
        return Answer("failed", node, host, "the node sent an answer whose parts make no sense")
    if kind != "done":
        return Answer(kind, node, host, reason, code if type(code) is int else None)
    assert isinstance(artefact, bytes) and isinstance(took_s, int | float)
    return Answer(kind, node, host, took_s=float(took_s), artefact=artefact, rows=rows)


def _text(value: Any) -> str:
    return value[:_MOST_TEXT] if isinstance(value, str) else ""
