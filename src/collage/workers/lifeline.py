"""The lifeline of a process: it ends with the process that started it, however that one ends."""

from __future__ import annotations

import os
import threading

__all__ = ["end_with_parent"]

_ENDED = 75
"""Exit code of a process whose parent has ended: EX_TEMPFAIL of sysexits, a temporary failure."""


def end_with_parent() -> None:
    """From now on, end this process as soon as its standard input is closed.

    Use it in children whose standard input is a pipe to the parent. The system closes the pipe when the parent ends. Workers
    of this process end too: their wardens notice.
    """
    threading.Thread(target=_watch, name="lifeline", daemon=True).start()


def _watch() -> None:
    while os.read(0, 1 << 16):
        pass
    os._exit(_ENDED)
