"""Waiting until the machine is calm: nothing that is timed while others slow the cores down tells about a kernel.

A virtual machine's processors may be put on the two threads of one core for seconds, and everything that uses both takes
half as long again; nothing in the system's own figures says so. A small product of matrices on all cores does. It is compared
with the fastest that was ever seen here, so that what is always slow is not waited for. Nor is what stays slow: each wait in
vain makes the next one half as long, until the machine is calm again.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import TypeVar

from collage._errors import ToolchainError
from collage.cost.database import Database
from collage.cost.worker import Worker
from collage.machine import this_machine

__all__ = ["PATIENCE_VARIABLE", "Calm"]

PATIENCE_VARIABLE = "COLLAGE_PATIENCE_S"
"""Environment variable: seconds that one compilation may wait in all; 0 is not to look."""

_PATIENCE_S = 12.0
_PAUSE_S = 0.1
_LONGEST_S = 6.0
"""Of one wait, after the machine was calm."""
_BUSY = 1.2
"""A product that takes this many times the fastest one means that the machine is busy."""
_TRIES = 3
_LONG_S = 1.0
"""Runs that take longer in all are not repeated: the machine would hardly be calm all the time, then either."""
_SIDE = 256
_BETTER = 0.99
_TIMEOUT_S = 30.0
# Threads of the library that multiplies go to sleep at once, instead of spinning beside what is timed next.
_QUIET = {"OPENBLAS_THREAD_TIMEOUT": "4", "MKL_THREADING_LAYER": "GNU", "GOMP_SPINCOUNT": "0"}

T = TypeVar("T")


class Calm:
    """Knows whether the machine is as fast as it can be.

    Args:
        database: Where the fastest product is kept.
        say: Told that something is waited for.
        patience_s: Seconds that may be waited, until ``renew``; None is what the environment says, or 12 s.

    Attributes:
        waited_s: Seconds that were waited so far.
    """

    def __init__(self, database: Database, say: Callable[[str], None], patience_s: float | None = None) -> None:
        self._database = database
        self._say = say
        self._patience_s = _patience_s() if patience_s is None else patience_s
        self._end_s = self._patience_s
        self._longest_s = _LONGEST_S
        self.waited_s = 0.0
        self._best_s = math.inf
        self._worker: Worker | None = None
        self._name = {"fact": "calm-1", "machine": this_machine().fingerprint}

    def renew(self, share: float) -> None:
        """Has patience again, as much as this share of what it had at first."""
        self._end_s = self.waited_s + share * self._patience_s
        self._longest_s = _LONGEST_S

    def best(self, measure: Callable[[], T], seconds: Callable[[T], float | None], hopeless_s: float = math.inf) -> T:
        """Measures while the machine is calm; what it was not calm after is measured again, a few times.

        Args:
            measure: What to do.
            seconds: What it took, told from the result; None if it failed, and need not be tried again.
            hopeless_s: What takes longer would also be too slow on a calm machine.

        Returns:
            The fastest result, or the one that failed.
        """
        found: list[tuple[float, T]] = []
        while True:
            self.wait()
            result = measure()
            if (took_s := seconds(result)) is None:
                return result
            found.append((took_s, result))
            if took_s > hopeless_s or len(found) == _TRIES or self.is_calm():
                return min(found, key=lambda one: one[0])[1]

    def samples(self, measure: Callable[[], list[float]]) -> list[float]:
        """``best`` of equally many runs, told by the seconds of each; not repeated where they took long."""
        return self.best(measure, sum, _LONG_S)

    def wait(self) -> bool:
        """Returns when the machine is calm, or patience is at an end; whether it is calm."""
        began_s = self.waited_s
        while not self.is_calm():
            if self.waited_s - began_s >= self._longest_s:
                self._longest_s /= 2
                return False
            if self.waited_s == began_s:
                self._say("waiting for the machine to calm down")
            time.sleep(_PAUSE_S)
            self.waited_s += _PAUSE_S
        self._longest_s = _LONGEST_S
        return True

    def is_calm(self) -> bool:
        """Whether all cores are about as fast as they were at best; True where nobody wants to know, or not any longer."""
        if self.waited_s >= self._end_s:
            return True
        took_s = self._probe()
        if took_s is None:
            return True
        if math.isinf(self._best_s):
            self._best_s = float(self._database.local_fact(**self._name) or math.inf)
        if took_s < _BETTER * self._best_s:
            self._best_s = took_s
            self._database.keep_local_fact(took_s, **self._name)
        return took_s <= _BUSY * self._best_s

    def close(self) -> None:
        """Ends the process that multiplies."""
        if self._worker is not None:
            self._worker.kill()

    def _probe(self) -> float | None:
        if self._worker is None:
            side = _SIDE * math.ceil(math.sqrt(this_machine().cores / 4))
            self._worker = Worker("collage.cost._calm_service:CalmService", {"side": side}, environment=_QUIET)
        try:
            return float(self._worker.call("probe", _TIMEOUT_S))
        except ToolchainError:
            self._patience_s = self._end_s = 0.0  # A machine on which not even this runs has other troubles.
            return None


def _patience_s() -> float:
    try:
        return float(os.environ.get(PATIENCE_VARIABLE, _PATIENCE_S))
    except ValueError:
        return _PATIENCE_S
