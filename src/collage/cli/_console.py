"""Progress and error messages. They go to stderr, so that stdout holds data only."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

from collage.system.progress import ProgressEvent, shown
from collage.system.texts import printable

__all__ = ["print_json", "progress"]


def print_json(value: Any) -> None:
    """Print one JSON document on stdout; NaN and infinity never occur in it."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


@contextlib.contextmanager
def progress(quiet: bool, verbose: bool = False) -> Iterator[Callable[[object], None]]:
    """Yield a function that shows a text or an event while the user waits.

    Args:
        quiet: Show nothing.
        verbose: Write every record of the loggers ``collage`` instead, a line each.
    """
    if quiet:
        yield lambda _: None
    elif verbose:
        handler = logging.StreamHandler()
        handler.setFormatter(_PrintableFormatter("[%(relativeCreated)7.0f ms] %(message)s"))
        logger = logging.getLogger("collage")
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        try:
            yield lambda event: None if isinstance(event, ProgressEvent) else logger.info("%s", event)
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
    else:
        with shown(printable) as show:
            yield show


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
