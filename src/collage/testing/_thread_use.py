"""The number of threads that a kernel computes with, in a process of its own, and its rest between two calls.

A program: ``python -m collage.testing._thread_use FOLDER``, with ``task.json`` and ``input.npy`` in the folder.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from collage.target import Target
from collage.toolchains import Compiled, LoadOptions
from collage.toolchains.sdk.thread_affinity import computed_meanwhile, own_threads

_WINDOWS = 5
"""Looks at which threads compute: on a busy machine, one that helps may hardly be there to be seen."""


def _main(workspace: Path) -> None:
    task = json.loads((workspace / "task.json").read_text())
    module, name = task["toolchain"]
    toolchain = getattr(importlib.import_module(module), name)()
    compiled = Compiled.from_json(task["compiled"])
    target = Target.parse(compiled.target)
    affinity = os.sched_getaffinity(0)
    loaded = toolchain.load(compiled, target, workspace, LoadOptions(**task["options"]))
    x = np.load(workspace / "input.npy")
    np.save(workspace / "output.npy", loaded([x])[0])
    busy_cores, busy_threads = 0.0, 0
    for _ in range(_WINDOWS):
        with computed_meanwhile(own_threads(), share=0.02) as busy:
            busy_cores = _cores_used(lambda: loaded([x]), seconds=0.3)
        busy_threads = max(busy_threads, len(busy))
        if busy_threads >= task["options"]["threads"]:
            break
    report = {
        "busy_cores": busy_cores,
        "busy_threads": busy_threads,
        "idle_cores": _cores_used(lambda: time.sleep(0.2), seconds=0.2),
        "cores": len(affinity),
        "affinity_kept": os.sched_getaffinity(0) == affinity,
    }
    print(json.dumps(report))


def _cores_used(work: Any, seconds: float) -> float:
    cpu, wall = time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds:
        work()
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
