"""Quarantine: a toolchain that dies again and again is left alone, so that it costs a few time-outs and not hundreds.

A job that kills its worker is tried once more, in a fresh one; a time-out is not, it cost enough. After ``deaths`` such jobs
in a row, with no successful job of that toolchain in between, its build is quarantined on this machine for a
day. That is kept as a fact, seen in ``collage db stats`` and, as the reason why the toolchain is not available, in every
report. It ends with the day, with another build of the toolchain, or when the user asks for ``--remeasure``.

Kernels that are not tried for this reason have no outcome, and none is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from collage._errors import WorkerDied
from collage.database import QUARANTINED, Database, QuarantinedBuild
from collage.system.machine import this_machine

__all__ = ["Quarantine", "Quarantined"]

_LASTS_S = 86400.0


class Quarantined(WorkerDied):
    """The job was not tried, since its toolchain died too often before."""


class Quarantine:
    """Toolchains that are not used, and the reasons.

    Args:
        database: The database that holds quarantines.
        deaths: Jobs in a row that have to die.
        forgive: Ignore the quarantines in the database.
        say: Called with a line of text when a toolchain is quarantined.
    """

    def __init__(self, database: Database, deaths: int, *, forgive: bool, say: Callable[[str], None]) -> None:
        self._database = database
        self._deaths = deaths
        self._forgive = forgive
        self._say = say
        self._died: dict[str, list[str]] = {}
        self._reasons: dict[str, str] = {}

    def recorded(self, toolchain: str, build: str) -> str | None:
        """Return the reason why an earlier session quarantined this build; None if none did, or long ago."""
        if self._forgive:
            return None
        found = self._database.fact(QUARANTINED, **_name(toolchain, build))
        if found is None or not 0 <= time.time() - found.since_s < _LASTS_S:
            return None
        hours = (time.time() - found.since_s) / 3600
        return f"quarantined {hours:.1f} hours ago: {found.reason}; --remeasure tries it again"

    def check(self, toolchain: str) -> None:
        """Raise `Quarantined` if the toolchain died too often in this session."""
        if reason := self._reasons.get(toolchain):
            raise Quarantined(f"not tried: {toolchain} is quarantined, {reason}")

    def lived(self, toolchain: str) -> None:
        """Note that a job ended without a death."""
        self._died.pop(toolchain, None)

    def died(self, toolchain: str, build: str | None, error: WorkerDied) -> None:
        """Note that a job ended with the death of its worker.

        Args:
            toolchain: Whose.
            build: Its build; None if it died before it could say, and then nothing is kept.
            error: The worker's last error.
        """
        deaths = self._died.setdefault(toolchain, [])
        deaths.append(str(error))
        if len(deaths) < self._deaths:
            return
        reason = f"its process died {len(deaths)} jobs in a row, at last: {deaths[-1][:500]}"
        self._reasons[toolchain] = reason
        self._say(f"{toolchain} is quarantined: {reason}")
        if build is not None:
            quarantined = QuarantinedBuild(time.time(), reason)
            self._database.keep_fact(QUARANTINED, quarantined, **_name(toolchain, build))


def _name(toolchain: str, build: str) -> dict[str, str]:
    return {"toolchain": toolchain, "build": build, "machine": this_machine().fingerprint}
