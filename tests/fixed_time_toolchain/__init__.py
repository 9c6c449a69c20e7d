"""Toolchains whose kernels take exactly as long as they declare, so that no decision of a test depends on the machine.

In a worker, which is where everything is measured, the clock that timings are read from stands still, but for what kernels
declare. Nobody waits for them, either.

This is a package of its own since a toolchain's revision is that of its package: each process would read all tests.
"""

from __future__ import annotations

import sys
import time

from collage.testing import FakeToolchain

_WORKER = "collage.workers._worker_main"
_TICK_S = 1e-6
"""What it takes to look at the clock: nothing takes no time at all."""


class _Clock:
    now_s = 0.0

    def read(self) -> float:
        self.now_s += _TICK_S
        return self.now_s

    def spend(self, seconds: float) -> None:
        self.now_s += seconds


def declare_time() -> None:
    """From now on sleeping takes no time here, and yet exactly as long as it says; unless this is no worker."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == _WORKER and not isinstance(getattr(time.sleep, "__self__", None), _Clock):
        clock = _Clock()
        time.perf_counter, time.sleep = clock.read, clock.spend


class DeclaredToolchain(FakeToolchain):
    """A ``FakeToolchain`` whose seconds are exact."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        declare_time()
