"""The load that other programs put on this machine's processors."""

from __future__ import annotations

import psutil

__all__ = ["is_busy"]

_LOOK_S = 0.3
_BUSY = 0.1


def is_busy() -> bool:
    """Return True if the processors are in use for more than a tenth of the next 0.3 s, though this program sleeps."""
    return bool(psutil.cpu_percent(_LOOK_S) > 100 * _BUSY)
