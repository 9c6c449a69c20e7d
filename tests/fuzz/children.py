"""Child processes that judge models: one that dies or hangs costs a model, and the time limit holds."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.fuzz.draft import Sample
from tests.fuzz.references import one_line
from tests.fuzz.session import Session
from tests.fuzz.verdicts import BAD, CAUGHT, DIED, FAILED, HUNG, SKIPPED, Outcome, Verdict

CHUNK = 150
"""Models for each child."""


class Child:
    """A process that draws and judges models, one after the other.

    Args:
        targets: The menu.
        folder: A folder for its files, made here.
        compiles_only: Judge no kernels that ``collage.compile`` has not checked.
    """

    def __init__(self, targets: Sequence[str], folder: Path, compiles_only: bool = False) -> None:
        folder.mkdir()
        context = multiprocessing.get_context("fork")  # Nothing here has started a thread.
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve,
            args=(Session(targets, folder, compiles_only=compiles_only), theirs, self._pipe),
            daemon=False,
        )
        self._process.start()
        theirs.close()
        self.judged = 0
        self.alive = True

    def judge(self, kind: str, number: int, timeout_s: float, given: Sample | None = None) -> Outcome:
        """Return what became of a model, within so many seconds."""
        started = time.monotonic()
        self.judged += 1
        verdicts = self._ask(("judge", kind, number, given), timeout_s)
        return Outcome(kind, number, verdicts, round(time.monotonic() - started, 2))

    def draw(self, kind: str, number: int, timeout_s: float) -> Sample | None:
        """Return a model of a kind, or None where it cannot be drawn."""
        found = self._ask(("draw", kind, number, None), timeout_s)
        return found if isinstance(found, Sample) else None

    def _ask(self, question: Any, timeout_s: float) -> Any:
        how, what = FAILED, "drawing the model"
        until = time.monotonic() + timeout_s
        try:
            self._pipe.send(question)
            while self._pipe.poll(max(0.0, until - time.monotonic())):
                answer = self._pipe.recv()
                if not (isinstance(answer, tuple) and answer[0] == "stage"):
                    return answer
                _, how, what = answer
            died, reason = HUNG, f"{what}: not within {timeout_s:.0f} s"
        except (EOFError, OSError):
            died, reason = DIED, f"{what}: the process died"
        self.close()
        return [Verdict(how if how in (SKIPPED, CAUGHT) else died, reason)]

    def close(self) -> None:
        """End the process, if it lives. Its workers end with it."""
        self.alive = False
        self._pipe.close()
        self._process.kill()
        self._process.join()


def _serve(session: Session, pipe: Connection, other_end: Connection) -> None:
    """Answer questions until the other end is closed."""
    from collage.workers import machine_lock
    from tests.fuzz.kinds import KINDS

    machine_lock._FOLDER = session.folder  # Timings mean nothing here: no other tuner is waited for.
    other_end.close()  # Else nothing would tell it that its parent was killed.
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    session.stage = lambda how, what: pipe.send(("stage", how, what))
    while True:
        try:
            question, kind, number, given = pipe.recv()
        except EOFError:
            break
        try:
            given = given or KINDS[kind].draw(number)
        except Exception as error:
            pipe.send([Verdict(SKIPPED, f"it cannot be drawn: {one_line(error)}")])
            continue
        if question == "draw":
            pipe.send(given)
            continue
        try:
            pipe.send(KINDS[kind].judge(number, given, session))
        except Exception as error:
            pipe.send([Verdict(FAILED, f"the judge fails: {one_line(error)}")])
    session.close()
    os._exit(0)  # Some toolchains crash when their threads are torn down.


def outcomes(
    jobs: Iterator[tuple[str, int]], targets: Sequence[str], folder: Path, timeout_s: float, until: float
) -> Iterator[Outcome]:
    """Yield what became of models until they or the time are used up; a model that the time cuts short is left out.

    Args:
        jobs: Kinds and numbers.
        targets: The menu.
        folder: A folder for files of the children.
        timeout_s: Seconds for each model.
        until: When to stop, by ``time.monotonic``.
    """
    child: Child | None = None
    count = itertools.count()
    try:
        for kind, number in jobs:
            if child is None or not child.alive or child.judged >= CHUNK:
                if child is not None:
                    child.close()
                child = Child(targets, folder / f"child{next(count)}")
            outcome = child.judge(kind, number, min(timeout_s, until - time.monotonic()))
            if not child.alive and outcome.worst.how == CAUGHT:
                child = Child(targets, folder / f"child{next(count)}", compiles_only=True)
                checked = child.judge(kind, number, min(timeout_s, until - time.monotonic()))
                outcome = checked if checked.worst.how in BAD else outcome
                child.close()
            if time.monotonic() >= until:
                return
            yield outcome
    finally:
        if child is not None:
            child.close()
