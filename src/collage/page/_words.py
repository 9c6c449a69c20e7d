"""Numbers in words: times, shares and counts as people read them."""

from __future__ import annotations

from typing import Any

from collage.system.codec import LARGEST

__all__ = ["amount", "number_of", "percent"]


def amount(time_us: float | None) -> str:
    """Return a time in ms, in three digits or more; short times in µs."""
    if time_us is None:
        return "not measured"
    if time_us >= 1e5:
        return f"{time_us / 1e3:.0f} ms"
    return f"{time_us / 1e3:.3g} ms" if time_us >= 100 else f"{time_us:.3g} µs"


def percent(share: float | None) -> str:
    """Return a share in per cent; empty if it is not known."""
    if share is None:
        return ""
    if share >= 0.095 or share == 0:
        return f"{share:.0%}"
    return f"{share:.1%}" if share >= 0.001 else "< 0.1%"


def number_of(value: Any) -> float | None:
    """Return a value of a section of free form as a number; None if it is not one from zero up, or too large to draw."""
    return float(value) if type(value) in (int, float) and 0 <= value <= LARGEST else None
