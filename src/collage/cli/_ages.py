"""Ages, as users write them and as they are shown."""

from __future__ import annotations

import time

from collage._errors import UsageError

__all__ = ["age", "read_age_s"]

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def age(made_at_s: float) -> str:
    """Return how long ago something was made, in its largest unit."""
    seconds = max(0.0, time.time() - made_at_s)
    for unit in ("w", "d", "h", "m"):
        if seconds >= _UNITS[unit]:
            return f"{seconds / _UNITS[unit]:.0f}{unit} ago"
    return "just now"


def read_age_s(text: str) -> float:
    """Return ``90m``, ``12h``, ``30d`` or ``8w`` in seconds.

    Raises:
        UsageError: It is something else.
    """
    number, factor = text[:-1], _UNITS.get(text[-1:])
    if factor is None or not number.isdecimal() or len(number) > 6:
        raise UsageError(f"cannot read the age {text!r}; write for example 12h, 30d or 8w")
    return int(number) * factor
