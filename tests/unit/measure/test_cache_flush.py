"""Every processor goes through memory of its own, at once, and sleeps when it is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from collage.measure.cache_flush import CacheFlusher
from collage.workers.idle_wait import until_quiet


@pytest.fixture(params=[1, 2, 5])
def flusher(request: pytest.FixtureRequest) -> Iterator[CacheFlusher]:
    made = CacheFlusher(request.param)
    yield made
    made.close()


def test_each_processor_writes_to_as_much_as_is_asked_of_memory_of_its_own(flusher: CacheFlusher) -> None:
    for size in (1000, 10, 2000):
        before = [memory.copy() for memory in flusher._memory]
        flusher.flush(size)
        grown = len(before[0]) < size
        for old, new in zip(before, flusher._memory, strict=True):
            assert (new[:size] == (2 if grown else old[:size] + 1)).all()
            assert (new[size:] == old[size:]).all()
    assert len({memory.ctypes.data for memory in flusher._memory}) == len(flusher._memory)


def test_threads_sleep_afterwards_and_end_when_it_is_closed(flusher: CacheFlusher) -> None:
    flusher.flush(1 << 20)
    assert until_quiet(60.0)
    flusher.close()
    ended = [thread for thread in threading.enumerate() if getattr(thread, "_target", None) == flusher._serve]
    for thread in ended:
        thread.join(60.0)
        assert not thread.is_alive()
