"""What people see while they wait, and when something goes wrong: on stderr, so that stdout stays data."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["counted", "print_json", "printable", "progress"]

_PLAIN_EVERY_S = 2.0


def print_json(value: Any) -> None:
    """Prints one JSON document on stdout; NaN and infinity never occur in it."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def counted(number: int, noun: str) -> str:
    """Says how many there are of what: ``1 timing``, ``2 timings``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(text: str) -> str:
    """Text without what would command the terminal; models and databases may come from anywhere."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Gives a function that tells the user what is going on.

    On a terminal one line that changes, with the time since the start; elsewhere plain lines, a few seconds apart.
    """
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape

        started = time.monotonic()
        with Console(stderr=True).status("starting") as status:
            yield lambda text: status.update(f"{time.monotonic() - started:5.0f} s  {escape(printable(text))}")
    else:
        yield _plain_lines()


def _plain_lines() -> Callable[[str], None]:
    started = time.monotonic()
    last = started - _PLAIN_EVERY_S

    def say(text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PLAIN_EVERY_S:
            last = now
            sys.stderr.write(f"[{now - started:5.0f} s] {printable(text)}\n")
            sys.stderr.flush()

    return say
