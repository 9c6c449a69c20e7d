"""Toolchains that get on with some and not with others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from collage.testing import FakeToolchain

LOADED: list[str] = []


class Clashing(FakeToolchain):
    """Does something bad once another toolchain that it does not stand is in the process, too."""

    def __init__(self, name: str, enemies: Mapping[str, str]) -> None:
        super().__init__(name=name)
        self._enemies = enemies
        self.worker_arguments = {"name": name, "enemies": dict(enemies)}

    def load(self, *arguments: Any) -> Any:
        LOADED.append(self.name)
        what = next((self._enemies[name] for name in LOADED if name in self._enemies), None)
        if what == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "hang":
            time.sleep(600)
        if what == "bind":
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        kernel = super().load(*arguments)
        if what == "wrong":
            return lambda inputs: [output + 1 for output in kernel(inputs)]
        return kernel
