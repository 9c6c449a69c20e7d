"""Progress of a compilation: events for callers, log records, and a line with a clock for people.

Every line also goes to the logger ``collage.progress`` at level INFO.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["Note", "Progress", "ProgressEvent", "is_notebook", "shown"]

_LOGGER = logging.getLogger("collage.progress")
_PLAIN_EVERY_S = 2.0
_SHARE_OF_MEASURING = 0.95
"""Share of a time budget after which measuring stops. The rest is for writing the report and the artefact."""


class Note(str):
    """A line of progress that stays on the screen."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """One step of a compilation.

    Attributes:
        text: The step, as one line.
        phase: Number of the phase, from 1; 0 before the first.
        phases: Number of phases.
        title: Name of the phase.
        elapsed_s: Seconds since the start.
        left_s: Seconds that are left of the time budget; None if there is none.
        kernels: Kernels that were measured so far.
        most_kernels: Kernels that will be measured at most; None if that is not known.
        best: The best result so far, in words; empty if there is none.
    """

    text: str
    phase: int = 0
    phases: int = 0
    title: str = ""
    elapsed_s: float = 0.0
    left_s: float | None = None
    kernels: int = 0
    most_kernels: int | None = None
    best: str = ""

    def __str__(self) -> str:
        """Return the event as one line."""
        parts = [f"{self.phase}/{self.phases} {self.title}"] if self.phase else []
        if self.kernels:
            most = "" if self.most_kernels is None else f" of at most {self.most_kernels}"
            parts.append(f"kernels: {self.kernels}{most}")
        parts += [self.best] if self.best else []
        parts += [] if self.left_s is None else [f"{self.left_s:.0f} s left"]
        return " | ".join([*parts, self.text])


class Progress:
    """Reports progress to a callback and the log; a call takes a line of text.

    Args:
        callback: Called with every event; None for the log only.
        phases: Titles of the phases.
        budget_s: The time budget, if there is one.

    Attributes:
        counts: Returns how many kernels were measured, and how many will be at most.
        best: The best result so far, in words.
    """

    def __init__(
        self, callback: Callable[[ProgressEvent], None] | None, phases: tuple[str, ...], budget_s: float | None = None
    ) -> None:
        self._callback = callback
        self._phases = phases
        self._budget_s = budget_s
        self._began = time.monotonic()
        self._phase = 0
        self.counts: Callable[[], tuple[int, int | None]] = lambda: (0, None)
        self.best = ""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float | None:
        """Seconds that are left of the time budget; None if there is none."""
        return None if self._budget_s is None else max(0.0, self._budget_s - self.elapsed_s)

    @property
    def ends_at(self) -> float:
        """The value of ``time.monotonic()`` by which measuring should have ended; infinite without a time budget."""
        return math.inf if self._budget_s is None else self._began + _SHARE_OF_MEASURING * self._budget_s

    def enter(self, title: str) -> None:
        """Begin the phase of this title, unless a later one has begun."""
        self._phase = max(self._phase, self._phases.index(title) + 1)

    def __call__(self, text: str) -> None:
        """Tell of one step."""
        title = self._phases[self._phase - 1] if self._phase else ""
        of = len(self._phases)
        event = ProgressEvent(text, self._phase, of, title, self.elapsed_s, self.left_s, *self.counts(), self.best)
        _LOGGER.info("%s", event)
        if self._callback is not None:
            self._callback(event)


class _Clock:
    """A line of text that shows the seconds since the start whenever it is drawn."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.text = "starting"

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(f"{time.monotonic() - self._began:5.0f} s  {self.text}", no_wrap=True, overflow="ellipsis")


def is_notebook() -> bool:
    """Return True in a process that runs the cells of a notebook."""
    if "ipykernel" not in sys.modules:
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


@contextlib.contextmanager
def shown(clean: Callable[[str], str] = str) -> Iterator[Callable[[object], None]]:
    """Show progress on stderr: a line with a running clock on a terminal or in a notebook, else a line every few seconds.

    Args:
        clean: Makes a text printable.

    Yields:
        A function to call with an event, or a text.
    """
    began = time.monotonic()
    if is_notebook():
        from IPython.display import Pretty, display

        cell = display(Pretty(""), display_id=True)
        yield lambda event: cell.update(Pretty(f"{time.monotonic() - began:5.0f} s  {clean(str(event))}"))
        return
    if sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True)
        clock = _Clock()
        with console.status(clock):

            def update(event: object) -> None:
                if (note := _note_of(event)) is not None:
                    console.print(clean(note), markup=False, highlight=False)
                else:
                    clock.text = clean(str(event))

            yield update
        return
    last = began - _PLAIN_EVERY_S

    def write(event: object) -> None:
        nonlocal last
        now, note = time.monotonic(), _note_of(event)
        if note is None and now - last >= _PLAIN_EVERY_S:
            last = now
            sys.stderr.write(f"[{now - began:5.0f} s] {clean(str(event))}\n")
            sys.stderr.flush()
        elif note is not None:
            sys.stderr.write(f"{clean(note)}\n")
            sys.stderr.flush()

    yield write


def _note_of(event: object) -> str | None:
    """Return the line of an event that stays on the screen; None for a step."""
    text = event.text if isinstance(event, ProgressEvent) else event
    return str(text) if isinstance(text, Note) else None
