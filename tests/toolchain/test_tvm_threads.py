"""The threads of TVM's kernels, driven as compiled code drives them: by a C program that counts what each task does."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from collage._errors import CompileError
from collage.toolchains.tvm.kernels import add_threads
from collage.toolchains.tvm.threads import Threads, threads_in

_PROBE = r"""
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>
typedef struct { void *sync_handle; int32_t num_task; } Group;
typedef struct { _Atomic int runs[4096]; _Atomic int64_t tasks; int fails_at; int work_us; } Record;
int probe(int task, Group *group, void *data) {
  Record *record = data;
  atomic_store(&record->tasks, group->num_task);
  atomic_fetch_add(&record->runs[task], 1);
  if (record->work_us) usleep(record->work_us);
  return task == record->fails_at ? -1 : 0;
}
"""


class Record(ctypes.Structure):
    """Counts of runs by task, as the probe writes them."""

    _fields_ = [
        ("runs", ctypes.c_int * 4096),
        ("tasks", ctypes.c_int64),
        ("fails_at", ctypes.c_int),
        ("work_us", ctypes.c_int),
    ]


class Pool:
    """The library of threads and the probe."""

    def __init__(self, folder: Path) -> None:
        self.name = add_threads(folder / "kernel.so")
        self.threads: Threads = threads_in(folder, [self.name])
        (folder / "probe.c").write_text(_PROBE)
        command = ["gcc", "-O1", "-shared", "-fPIC", str(folder / "probe.c"), "-o", str(folder / "probe.so")]
        subprocess.run(command, check=True)
        self._closure: Any = ctypes.CDLL(str(folder / "probe.so")).probe
        # Of the library that the process uses: an earlier kernel may have loaded another copy.
        signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
        self._launch: Any = signature(self.threads.launch)

    def run(self, threads: int, tasks: int = 0, *, fails_at: int = -1, work_us: int = 0) -> tuple[int, Record]:
        """Run one parallel loop, and return its status and record."""
        record = Record(fails_at=fails_at, work_us=work_us)
        self.threads.use(threads)
        status = self._launch(ctypes.cast(self._closure, ctypes.c_void_p), ctypes.byref(record), tasks)
        return status, record


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """The threads of this process."""
    return Pool(tmp_path_factory.mktemp("threads"))


def each_ran_once(record: Record) -> bool:
    tasks = record.tasks
    return list(record.runs) == [1] * tasks + [0] * (4096 - tasks)


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 300])
@pytest.mark.parametrize("tasks", [0, 1, 2, 7, 500])
def test_every_task_runs_exactly_once(pool: Pool, threads: int, tasks: int) -> None:
    for _ in range(50):
        status, record = pool.run(threads, tasks)
        assert status == 0
        assert each_ran_once(record)
        assert record.tasks == tasks or not tasks


def test_several_callers_share_helpers(pool: Pool) -> None:
    wrong: list[Record] = []

    def call(threads: int) -> None:
        for i in range(1000):
            _, record = pool.run(threads, work_us=50 if i % 500 == 0 else 0)
            if not each_ran_once(record):
                wrong.append(record)

    callers = [threading.Thread(target=call, args=(count,)) for count in (2, 2, 3, 5, 1, 2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=250)
    assert not wrong
    assert not any(caller.is_alive() for caller in callers)


def test_tasks_run_at_the_same_time(pool: Pool) -> None:
    def seconds() -> float:
        start = time.perf_counter()
        pool.run(2, 16, work_us=20_000)
        return time.perf_counter() - start

    pool.run(2)
    # 16 x 20 ms one after the other are 0.32 s. A busy machine may have no second processor for a moment.
    assert any(seconds() < 0.28 for _ in range(20))


def test_an_error_reaches_the_caller_even_if_a_helper_met_it(pool: Pool) -> None:
    for task in range(16):
        status, _ = pool.run(2, 16, fails_at=task, work_us=100)
        assert status == -1


def test_a_fork_computes_with_threads_of_its_own(pool: Pool) -> None:
    pool.run(3)
    child = os.fork()
    if child == 0:
        os._exit(0 if all(each_ran_once(pool.run(3)[1]) for _ in range(100)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert each_ran_once(pool.run(3)[1])


def test_forks_while_other_threads_compute(pool: Pool) -> None:
    done = threading.Event()

    def compute() -> None:
        while not done.is_set():
            pool.run(3)

    busy = [threading.Thread(target=compute) for _ in range(2)]
    for thread in busy:
        thread.start()
    try:
        for _ in range(4):
            child = os.fork()
            if child == 0:
                os._exit(0 if all(each_ran_once(pool.run(2)[1]) for _ in range(3)) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        for thread in busy:
            thread.join()


def test_helpers_sleep_soon_after_a_run(pool: Pool) -> None:
    def worked_s() -> float:
        pool.run(4)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.1)
        return time.process_time() - before

    assert any(worked_s() < 0.01 for _ in range(50))


def test_the_process_ends_while_helpers_exist(tmp_path: Path) -> None:
    name = add_threads(tmp_path / "kernel.so")
    script = (
        "import ctypes, sys; t = ctypes.CDLL(sys.argv[1]); t.collage_use_threads(4); "
        "f = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: 0); "
        "assert t.collage_parallel_launch(f, None, 0) == 0"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / name)], check=True, timeout=120)


def test_kernels_share_the_threads_of_the_process(tmp_path: Path) -> None:
    names = [add_threads(tmp_path / f"{kernel}.so") for kernel in ("one", "two")]
    assert [name.partition(".")[0] for name in names] == ["one", "two"]
    one, two = (threads_in(tmp_path, [name]) for name in names)
    assert one is two
    with pytest.raises(CompileError, match="compile it again"):
        threads_in(tmp_path, ["one.so"])
