"""Threads that help are found among those of a process, and kept off the processor of the one that calls."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collage.toolchains.sdk import thread_affinity
from collage.toolchains.sdk.thread_affinity import HelperThreads, computed_meanwhile, own_threads, started_meanwhile

PROCESSORS = sorted(os.sched_getaffinity(0))
SEVERAL = pytest.mark.skipif(len(PROCESSORS) < 2, reason="there is one processor")


class Idle:
    """A thread that waits until it is told to end."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._over.wait)
        self._thread.start()
        self.number = int(self._thread.native_id or 0)

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        while self.number in own_threads():  # Python is done with it a little earlier than the system.
            time.sleep(0.001)

    @property
    def processors(self) -> list[int]:
        return sorted(os.sched_getaffinity(self.number))


@pytest.fixture
def idle() -> Iterator[Idle]:
    thread = Idle()
    yield thread
    thread.end()


@pytest.fixture
def movable() -> Iterator[None]:
    """For tests that say where their own thread may run."""
    yield
    os.sched_setaffinity(0, PROCESSORS)


def own_name() -> str:
    return Path("/proc/thread-self/comm").read_text().strip()


def test_threads_that_were_started_meanwhile_are_found_and_those_that_they_started() -> None:
    before, name, started = Idle(), own_name(), []

    def nested() -> None:
        started.append(Idle())

    with started_meanwhile() as found:
        started.append(Idle())
        outer = threading.Thread(target=nested)
        outer.start()
        outer.join()
        assert found == set()
    assert found - {outer.native_id} == {thread.number for thread in started}
    assert own_name() == name
    after = Idle()
    assert after.number not in found
    for thread in (before, after, *started):
        thread.end()


def test_threads_that_others_start_meanwhile_are_not_taken_for_ones_own() -> None:
    begin, done, others = threading.Event(), threading.Event(), []

    def other() -> None:
        begin.wait()
        others.append(Idle())
        done.set()

    elsewhere = threading.Thread(target=other)
    elsewhere.start()
    with started_meanwhile() as found:
        begin.set()
        done.wait()
    elsewhere.join()
    assert found == set()
    others[0].end()


def test_one_inside_the_other_finds_what_is_its_own() -> None:
    with started_meanwhile() as outer:
        first = Idle()
        with started_meanwhile() as inner:
            second = Idle()
    assert (outer, inner) == ({first.number}, {second.number})
    first.end()
    second.end()


def test_its_name_comes_back_after_an_error() -> None:
    name = own_name()
    with pytest.raises(ZeroDivisionError), started_meanwhile():
        raise ZeroDivisionError
    assert own_name() == name


def test_who_computes_is_told_from_who_sleeps(idle: Idle) -> None:
    over, numbers = threading.Event(), []

    def compute() -> None:
        numbers.append(threading.get_native_id())
        while not over.is_set():
            sum(range(1000))

    busy = threading.Thread(target=compute)
    busy.start()
    end = time.monotonic() + 60
    while True:  # The one may have no processor for a while, and the other not be asleep yet.
        with computed_meanwhile(own_threads() - {threading.get_native_id()}) as computing:
            time.sleep(0.1)
        if (numbers and numbers[0] in computing and idle.number not in computing) or time.monotonic() > end:
            break
    over.set()
    busy.join()
    assert set(numbers) <= computing
    assert idle.number not in computing


def call_from(helpers: HelperThreads, processor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_affinity, "_current_processor", lambda: lambda: processor)
    helpers.move_off()


@SEVERAL
def test_helpers_may_run_wherever_their_caller_is_not(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_affinity, "_REST_S", 0.0)
    helpers = HelperThreads([idle.number])
    for processor in (PROCESSORS[0], PROCESSORS[-1], PROCESSORS[-1], PROCESSORS[0]):
        call_from(helpers, processor, monkeypatch)
        assert idle.processors == [other for other in PROCESSORS if other != processor]
        assert sorted(os.sched_getaffinity(0)) == PROCESSORS


@SEVERAL
def test_helpers_rest_between_two_moves(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_affinity, "_REST_S", 30.0)
    helpers = HelperThreads([idle.number])
    call_from(helpers, PROCESSORS[0], monkeypatch)
    there = idle.processors
    call_from(helpers, PROCESSORS[1], monkeypatch)
    assert PROCESSORS[0] not in there and idle.processors == there
    monkeypatch.setattr(thread_affinity, "_REST_S", 0.01)
    time.sleep(0.01)
    call_from(helpers, PROCESSORS[1], monkeypatch)
    assert PROCESSORS[1] not in idle.processors


@SEVERAL
def test_helpers_stay_within_what_their_caller_may_use(
    idle: Idle, movable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.sched_setaffinity(0, PROCESSORS[:2])
    call_from(HelperThreads([idle.number]), PROCESSORS[0], monkeypatch)
    assert idle.processors == PROCESSORS[1:2]


def test_helpers_stay_where_they_are_if_their_caller_has_no_other_processor(idle: Idle, movable: None) -> None:
    os.sched_setaffinity(0, PROCESSORS[:1])
    HelperThreads([idle.number]).move_off()
    assert idle.processors == PROCESSORS


@SEVERAL
def test_more_helpers_than_other_processors_stay_where_they_are() -> None:
    threads = [Idle() for _ in PROCESSORS]
    HelperThreads(thread.number for thread in threads).move_off()
    assert [thread.processors for thread in threads] == [PROCESSORS] * len(threads)
    for thread in threads:
        thread.end()


def test_helpers_that_ended_are_forgotten_and_others_threads_left_alone(idle: Idle) -> None:
    ended = Idle()
    ended.end()
    helpers = HelperThreads([ended.number, 1])  # 1 is another process's.
    before = os.sched_getaffinity(1)
    helpers.move_off()
    assert os.sched_getaffinity(1) == before
    helpers.add([idle.number])
    time.sleep(0.01)
    helpers.move_off()
    assert len(idle.processors) == max(1, len(PROCESSORS) - 1)
