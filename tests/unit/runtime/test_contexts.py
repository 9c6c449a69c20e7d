from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from collage.runtime._contexts import ContextPool
from collage.runtime._executor import Executor


class Gate(Executor):
    """Waits inside a run until it is let through."""

    def __init__(self, through: threading.Semaphore, inside: threading.Semaphore) -> None:
        super().__init__([], ["x"], ["x"])
        self._through, self._inside = through, inside

    def run(self, values: Sequence[Any]) -> Sequence[Any]:
        self._inside.release()
        assert self._through.acquire(timeout=60)
        return values


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_as_many_runs_as_contexts_and_no_more(limit: int) -> None:
    through, inside = threading.Semaphore(0), threading.Semaphore(0)
    made: list[Gate] = []

    def make() -> Gate:
        made.append(Gate(through, inside))
        return made[-1]

    pool = ContextPool(make, limit)
    assert len(made) == 1  # The rest when they are needed.
    threads = []
    for i in range(limit + 2):
        threads.append(threading.Thread(target=pool.run, args=([i],)))
        threads[-1].start()
        if i < limit:
            assert inside.acquire(timeout=60)
    assert not inside.acquire(timeout=0.1)
    assert len(made) == limit
    for _ in threads:
        through.release()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(made) == limit


def test_a_context_that_an_interrupt_took_is_made_again() -> None:
    """The run that was interrupted had taken it, and did not come to give it back."""
    pool = ContextPool(lambda: Executor([], ["x"], ["x"]), 1)
    pool.hold()
    assert pool.run([1]) == [1]
    held, results = pool.hold(), list[Any]()
    waiting = threading.Thread(target=lambda: results.append(pool.run([2])))
    waiting.start()
    time.sleep(0.1)
    del held
    waiting.join(60)
    assert results == [[2]]


def test_a_run_that_raises_gives_its_context_back() -> None:
    class Broken(Executor):
        def run(self, values: Sequence[Any]) -> Sequence[Any]:
            raise ValueError(values)

    pool = ContextPool(lambda: Broken([], ["x"], ["x"]), 1)
    for _ in range(3):
        with pytest.raises(ValueError):
            pool.run([1])


class Ready(Executor):
    def __init__(self) -> None:
        super().__init__([], ["x"], ["x"])


def test_a_lazy_pool_makes_its_first_context_when_it_is_needed() -> None:
    made: list[Ready] = []

    def make() -> Ready:
        made.append(Ready())
        return made[-1]

    pool = ContextPool(make, 3, is_lazy=True)
    assert not made and not pool.is_loaded
    assert list(pool.run([1])) == [1]
    assert len(made) == 1 and pool.is_loaded
    pool.fill()
    pool.fill()
    assert len(made) == 3


def test_a_lazy_pool_that_fails_to_load_fails_for_everyone_and_tries_again() -> None:
    loading, failures = threading.Barrier(4), []

    def make() -> Executor:
        raise ValueError("no kernel")

    pool = ContextPool(make, 1, is_lazy=True)

    def run() -> None:
        loading.wait()
        try:
            pool.run([1])
        except ValueError as error:
            failures.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(failures) == 4


def test_holding_all_waits_for_runs_and_keeps_others_from_beginning() -> None:
    through, inside = threading.Semaphore(0), threading.Semaphore(0)
    pool = ContextPool(lambda: Gate(through, inside), 1)
    first, second = (threading.Thread(target=pool.run, args=([1],)) for _ in range(2))
    first.start()
    assert inside.acquire(timeout=60)
    pool.hold_all(time.monotonic() + 0.05)()
    assert first.is_alive()
    through.release(2)
    release = pool.hold_all(time.monotonic() + 60)
    second.start()
    assert not inside.acquire(timeout=0.1)
    release()
    assert inside.acquire(timeout=60)
    first.join(60)
    second.join(60)
    assert not first.is_alive() and not second.is_alive()
