"""Runs an artefact before and after a fork. A process of its own, since a fork that hangs would take the tests with it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

import collage

_exe: collage.Executable
_folder = Path(sys.argv[1])


def is_right(_: object = None) -> bool:
    data = np.load(_folder / "data.npz")
    outputs = _exe.run({"x": data["x"]})
    return np.allclose(outputs["y"], data["y"], rtol=1e-4, atol=1e-5)


def in_threads(check: Callable[[], bool], count: int = 3) -> bool:
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(check())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers == [True] * count


def in_fork(check: Callable[[], bool]) -> bool:
    """The answer of a fork that ends as interpreters end, with everything that libraries do then."""
    pid = os.fork()
    if pid == 0:
        sys.exit(7 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def everything() -> bool:
    profile = _exe.profile({"x": np.load(_folder / "data.npz")["x"]}, runs=2)
    return is_right() and in_threads(is_right) and is_right() and len(profile.kernels) == len(_exe.recipe.kernels)


def main(mode: str) -> bool:
    global _exe
    _exe = collage.load(_folder / "m.collage", lazy=mode == "lazy", contexts=2)
    if mode == "fork":  # Libraries may keep the threads of what is dropped.
        dropped, _exe = _exe, collage.load(_folder / "m.collage", contexts=2)
        dropped.run({"x": np.load(_folder / "data.npz")["x"]})
        del dropped
        gc.collect()
    if mode == "lazy":
        return in_fork(everything) and is_right()
    if mode == "pool":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return is_right() and pool.map(is_right, range(6)) == [True] * 6
    if mode == "busy":  # Another thread is in the middle of runs when the fork comes.
        stop = threading.Event()
        busy = threading.Thread(target=lambda: [is_right() for _ in iter(stop.is_set, True)])
        busy.start()
        answers = [in_fork(everything) for _ in range(3)]
        stop.set()
        busy.join()
        return all(answers)
    if mode == "gone":
        return is_right() and in_fork(fails_at_once)
    return is_right() and in_fork(everything) and in_fork(lambda: is_right() and in_fork(everything)) and is_right()


def fails_at_once() -> bool:
    for file in (_folder / "m.collage").iterdir():
        file.unlink()
    try:
        is_right()
    except collage.CollageError as error:
        return "before this process was forked" in str(error)
    return False


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[2]) else f"wrong in mode {sys.argv[2]}")
