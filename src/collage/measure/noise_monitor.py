"""How fast the machine is just now, and waiting until it is calm.

A virtual machine's processors may be put on the two threads of one core for seconds, and everything that uses both takes
half as long again; nothing in the system's own figures says so. A small product of matrices on all cores does. How many times
as long it takes as the fastest that was ever seen here is the machine's *pace*; of a kernel, those runs count that it was calm
for. Races wait instead, since a plan is compared with another one's turn a moment later. What is always slow is not waited for.
Nor is what stays slow: each wait in vain makes the next one half as long, until the machine is calm again.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable

from collage._errors import ToolchainError
from collage.database.database import Database
from collage.system.machine import this_machine
from collage.workers.worker import Worker

__all__ = ["BUSY", "PATIENCE_VARIABLE", "NoiseMonitor"]

PATIENCE_VARIABLE = "COLLAGE_PATIENCE_S"
"""Environment variable: seconds that one race may wait in all; 0 is not to look."""

_PATIENCE_S = 4.0
_PAUSE_S = 0.1
_LONGEST_S = 3.0
"""Of one wait, after the machine was calm."""
BUSY = 1.15
"""A product that takes this many times the fastest one means that the machine is busy: kernels take a fifth longer then."""
_SLOWEST = 2.0
"""What takes longer was interrupted rather than slowed down; of kernels it tells nothing."""
_FIRST_LOOKS = 20
"""On a machine that is not known yet, so many looks as far apart as those of a wait: one may be in a moment when it is fast."""
_TRIES = 3
_LONG_S = 1.0
"""Runs that take longer in all are not repeated: the machine would hardly be calm all the time, then either."""
_SIDE = 256
_BETTER = 0.99
_TIMEOUT_S = 30.0
# Threads of the library that multiplies go to sleep at once, instead of spinning beside what is timed next.
_QUIET = {"OPENBLAS_THREAD_TIMEOUT": "4", "MKL_THREADING_LAYER": "GNU", "GOMP_SPINCOUNT": "0"}


class NoiseMonitor:
    """Knows whether the machine is as fast as it can be.

    Args:
        database: Where the fastest product is kept.
        say: Told that something is waited for.
        patience_s: Seconds that may be waited, until ``renew``; None is what the environment says, or 4 s.

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
        self._latest = 1.0
        self._met: list[float] = []
        self._looks = self._patience_s > 0
        self._best_s = math.inf
        self._worker: Worker | None = None
        self._name = {"fact": "calm-2", "machine": this_machine().fingerprint}

    def renew(self) -> None:
        """Has patience again, as much as at first; what was met so far is forgotten."""
        self._met = []
        self._end_s = self.waited_s + self._patience_s
        self._longest_s = _LONGEST_S

    def samples(self, measure: Callable[[], list[float]]) -> list[float]:
        """Times some runs while the machine is calm; those that it was not calm after are timed again, a few times.

        Args:
            measure: Does so, always with equally many runs, and returns the seconds of each.

        Returns:
            The fastest that were found.
        """
        found: list[tuple[float, float, list[float]]] = []
        while True:
            self.wait()
            before = self._latest
            samples = measure()
            took_s, after = sum(samples), self.slowdown()
            found.append((took_s, math.sqrt(before * after), samples))
            if took_s > _LONG_S or len(found) == _TRIES or after <= BUSY or self._is_impatient:
                break
        _, slowdown, fastest = min(found)
        self._met.append(slowdown)
        return fastest

    @property
    def slowdown_met(self) -> float:
        """The pace at which what ``samples`` returned was timed since ``renew``, the median; 1 where nothing was."""
        return statistics.median(self._met) if self._met else 1.0

    def wait(self) -> bool:
        """Returns when the machine is calm, or patience is at an end; whether it is calm."""
        began_s = self.waited_s
        while not self.is_quiet():
            if self.waited_s - began_s >= self._longest_s:
                self._longest_s /= 2
                return False
            if self.waited_s == began_s:
                self._say("waiting for the machine to calm down")
            time.sleep(_PAUSE_S)
            self.waited_s += _PAUSE_S
        self._longest_s = _LONGEST_S
        return True

    def is_quiet(self) -> bool:
        """Whether all cores are about as fast as they were at best; True where nobody wants to know, or not any longer."""
        return self._is_impatient or self.slowdown() <= BUSY

    def is_known_quiet(self) -> bool:
        """Return True if the machine was looked at just now and is calm; False if it cannot be looked at."""
        slowdown = self.slowdown()  # The first look tells if there can be others.
        return self._looks and slowdown <= BUSY

    @property
    def _is_impatient(self) -> bool:
        return self.waited_s >= self._end_s

    def slowdown(self) -> float:
        """How many times as long as at best all cores take just now: 1 to 2, and 1 where nobody wants to know."""
        if self._looks:
            if math.isinf(self._best_s):
                self._get_to_know()
            self._latest = min(max(1.0, self._look() / self._best_s), _SLOWEST)
        return self._latest

    def close(self) -> None:
        """Ends the process that multiplies."""
        if self._worker is not None:
            self._worker.kill()

    def _get_to_know(self) -> None:
        self._best_s = float(self._database.local_fact(**self._name) or math.inf)
        if math.isinf(self._best_s):
            self._say("seeing how fast the machine is")
            for _ in range(_FIRST_LOOKS if self._look() else 0):
                self._look()
                time.sleep(_PAUSE_S)

    def _look(self) -> float:
        """Seconds of a product just now, of which the fastest is noted; 0 where none can be made."""
        took_s, least_s = self._probe()
        if least_s < _BETTER * self._best_s:
            self._best_s = least_s
            self._database.keep_local_fact(least_s, **self._name)
        return took_s

    def _probe(self) -> tuple[float, float]:
        """Seconds of a product, the median of a few and the least; 0 and infinite where none can be made."""
        if self._worker is None:
            side = _SIDE * math.ceil(math.sqrt(this_machine().cores / 4))
            self._worker = Worker(
                "collage.measure._noise_probe_worker:NoiseProbeWorker", {"side": side}, environment=_QUIET
            )
        try:
            took_s, least_s = self._worker.call("probe", _TIMEOUT_S)
        except ToolchainError:
            self._looks = False  # A machine on which not even this runs has other troubles.
            return 0.0, math.inf
        return took_s, least_s


def _patience_s() -> float:
    try:
        return float(os.environ.get(PATIENCE_VARIABLE, _PATIENCE_S))
    except ValueError:
        return _PATIENCE_S
