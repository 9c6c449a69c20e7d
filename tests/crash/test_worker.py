"""A worker may die in any way; the parent says how, and nothing is left behind."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import psutil
import pytest

from collage._errors import CompileError, Unsupported, WorkerCrash, WorkerOutOfMemory, WorkerTimeout
from collage.workers.worker import Worker

SERVICE = "tests.crash._services:Echo"
PATIENCE_S = 120.0
"""Far more than any of this takes on a slow and busy machine, and less than what hangs would."""


@pytest.fixture
def worker() -> Worker:
    with Worker(SERVICE, {"greeting": "hello "}) as worker:
        yield worker


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} was left behind"
        time.sleep(0.1)


def test_answers(worker: Worker) -> None:
    assert worker.call("echo", PATIENCE_S, text="you") == "hello you"


def test_a_start_that_is_interrupted_answers_no_job(worker: Worker) -> None:
    with mock.patch.object(Worker, "_receive", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        worker.start()
    assert worker.call("echo", PATIENCE_S, text="you") == "hello you"


def test_a_process_that_the_system_refuses_is_a_crash_and_keeps_nothing_open() -> None:
    """The text of its arguments is longer than the system takes."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    with Worker(SERVICE, {"greeting": "x" * (1 << 20)}) as worker, pytest.raises(WorkerCrash, match="could not start"):
        worker.call("echo", PATIENCE_S, text="you")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("after", [0, 1, 2])
def test_files_that_run_out_are_a_crash_and_keep_nothing_open(worker: Worker, after: int) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    pipes = [*(os.pipe() for _ in range(after)), OSError(errno.EMFILE, "Too many open files")]
    with mock.patch("os.pipe", side_effect=pipes), pytest.raises(WorkerCrash, match="could not start: Too many"):
        worker.start()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert worker.call("echo", PATIENCE_S, text="you") == "hello you"


def test_threads_that_run_out_are_a_crash_and_leave_no_process(worker: Worker) -> None:
    before = set(psutil.Process().children(recursive=True))
    full = RuntimeError("can't start new thread")
    with (
        mock.patch("threading.Thread.start", side_effect=full),
        pytest.raises(WorkerCrash, match="could not start: can"),
    ):
        worker.start()
    assert set(psutil.Process().children(recursive=True)) <= before
    assert worker.call("echo", PATIENCE_S, text="you") == "hello you"


def test_threads_that_ask_at_once_get_their_own_answers(worker: Worker) -> None:
    def ask(number: int) -> str:
        return str(worker.call("echo", PATIENCE_S, text=str(number)))

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(200))) == [f"hello {number}" for number in range(200)]
    assert not worker.busy


def test_reports_what_the_service_raises_and_lives_on(worker: Worker) -> None:
    pid = worker.call("pid", PATIENCE_S)
    with pytest.raises(CompileError, match="told to fail"):
        worker.call("bad", PATIENCE_S, what="raise")
    with pytest.raises(Unsupported, match="told to refuse"):
        worker.call("bad", PATIENCE_S, what="refuse")
    assert worker.call("pid", PATIENCE_S) == pid


@pytest.mark.parametrize("what", ["silent", "nan", "object", "deep"])
def test_what_cannot_be_sent_is_a_failure_and_no_death(worker: Worker, what: str) -> None:
    pid = worker.call("pid", PATIENCE_S)
    with pytest.raises(CompileError, match=r"_Silent|JSON|RecursionError"):
        worker.call("odd", PATIENCE_S, what=what)
    assert worker.call("pid", PATIENCE_S) == pid


def test_a_reason_holds_no_halves_of_characters(worker: Worker) -> None:
    with pytest.raises(CompileError, match=r"no such file: \?\.so"):
        worker.call("odd", PATIENCE_S, what="half")


@pytest.mark.parametrize(
    "frame", ["{}", "[]", '{"kind": "unsupported"}', '{"kind": [], "reason": ""}', "[" * 60_000, "no JSON"]
)
def test_what_foreign_code_writes_to_the_pipe_is_a_crash(worker: Worker, frame: str) -> None:
    with pytest.raises(WorkerCrash, match="not a reply"):
        worker.call("forge", PATIENCE_S, frame=frame)
    assert worker.call("echo", PATIENCE_S, text="again") == "hello again"


@pytest.mark.parametrize(
    ("what", "said"), [("segfault", "SIGSEGV"), ("abort", "SIGABRT"), ("exit", "code 3"), ("close", "worker")]
)
def test_names_the_cause_of_death_and_starts_again(worker: Worker, what: str, said: str) -> None:
    with pytest.raises(WorkerCrash, match=said):
        worker.call("bad", PATIENCE_S, what=what)
    assert worker.call("echo", PATIENCE_S, text="again") == "hello again"


def test_a_signal_without_a_name_is_a_crash_too(worker: Worker) -> None:
    pid = worker.call("pid", PATIENCE_S)
    threading.Timer(0.5, os.kill, (pid, signal.SIGRTMIN + 6)).start()
    with pytest.raises(WorkerCrash, match=f"killed by signal {signal.SIGRTMIN + 6}"):
        worker.call("bad", PATIENCE_S, what="hang")
    assert worker.call("echo", PATIENCE_S, text="again") == "hello again"


@pytest.mark.parametrize("what", ["hang", "children"])
def test_kills_what_hangs_with_all_its_children(worker: Worker, what: str) -> None:
    pid = worker.call("pid", PATIENCE_S)
    child = worker.call("child", PATIENCE_S)
    with pytest.raises(WorkerTimeout, match=r"more than 1\.5 s"):
        worker.call("bad", 1.5, what=what)
    assert_gone(pid)
    assert_gone(child)


@pytest.mark.parametrize("how", ["thread", "child", "stray"])
def test_what_does_not_rest_is_paused_until_the_next_job(worker: Worker, how: str) -> None:
    (pid,) = worker.call("spin", PATIENCE_S, how=how)
    busy = psutil.Process(pid)
    deadline = time.monotonic() + PATIENCE_S
    while busy.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert worker.call("echo", PATIENCE_S, text="you") == "hello you"
    while busy.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    used_s = -1.0
    while used_s != (now_s := sum(busy.cpu_times()[:2])):  # Its threads stop one after the other.
        assert time.monotonic() < deadline
        used_s = now_s
        time.sleep(0.3)
    worker.kill()
    assert_gone(pid)


def test_what_rests_is_not_paused(worker: Worker) -> None:
    pid, child = worker.call("pid", PATIENCE_S), worker.call("child", PATIENCE_S)
    time.sleep(0.2)
    assert is_alive(pid) and is_alive(child)
    assert psutil.STATUS_STOPPED not in {psutil.Process(one).status() for one in (pid, child)}


def test_a_worker_that_never_reads_again_is_not_waited_for_longer_than_the_job_may_take(worker: Worker) -> None:
    pid = worker.call("pid", PATIENCE_S)
    worker.call("hang_later", PATIENCE_S)
    time.sleep(0.5)
    deadline = time.monotonic() + PATIENCE_S
    with pytest.raises(WorkerTimeout, match=r"echo took more than 1\.5 s"):
        while time.monotonic() < deadline:  # On a busy machine it may read once more.
            worker.call("echo", 1.5, text="x" * (1 << 20))
    assert_gone(pid)
    assert worker.call("echo", PATIENCE_S, text="y" * (1 << 20)) == "hello " + "y" * (1 << 20)


def test_any_number_of_files_may_be_open(worker: Worker) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096) if most > 0 else 4096, most))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert worker.call("echo", PATIENCE_S, text="you") == "hello you"
        worker.kill()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_survives_a_flood_of_output(worker: Worker) -> None:
    assert worker.call("bad", PATIENCE_S, what="flood") == "survived"


def test_a_fork_that_returns_twice_is_a_crash_and_answers_no_other_job(worker: Worker) -> None:
    for number in range(4):
        pid = worker.call("pid", PATIENCE_S)
        with contextlib.suppress(WorkerCrash):  # The parent may have answered before its child told on it.
            assert worker.call("bad", PATIENCE_S, what="fork") == "survived"
        assert_gone(pid)
        with contextlib.suppress(WorkerCrash):  # Told of the job that it meets.
            worker.call("echo", PATIENCE_S, text="")
        assert worker.call("echo", PATIENCE_S, text=str(number)) == f"hello {number}"


def test_a_service_that_forks_while_it_is_made_never_comes_up_twice() -> None:
    deadline = time.monotonic() + PATIENCE_S
    with Worker("tests.crash._services:Forked") as worker, pytest.raises(WorkerCrash):
        while time.monotonic() < deadline:
            assert worker.call("echo", PATIENCE_S, text="who") == "who"
            time.sleep(0.1)


def test_what_signals_its_process_group_leaves_nothing_behind(worker: Worker) -> None:
    pid, stray = worker.call("pid", PATIENCE_S), worker.call("stray", PATIENCE_S)
    with pytest.raises(WorkerCrash, match="SIGKILL"):
        worker.call("bad", PATIENCE_S, what="group")
    assert_gone(pid)
    assert_gone(stray)


@pytest.mark.parametrize("limit", ["memory_bytes", "address_space_bytes"])
def test_limits_memory(limit: str) -> None:
    with Worker(SERVICE, {"greeting": "hello "}, **{limit: 2 << 30}) as worker:  # type: ignore[arg-type]
        with pytest.raises(WorkerOutOfMemory):
            worker.call("bad", PATIENCE_S, what="memory")
        assert worker.call("echo", PATIENCE_S, text="again") == "hello again"


def test_limits_what_all_its_processes_hold_together() -> None:
    with Worker(SERVICE, memory_bytes=1 << 30) as worker:
        pid = worker.call("pid", PATIENCE_S)
        family = worker.call("family", PATIENCE_S, mib=150, children=3)
        with pytest.raises(WorkerTimeout):
            worker.call("bad", 2.0, what="hang")
        for process in (pid, *family):
            assert_gone(process)
        family = worker.call("family", PATIENCE_S, mib=150, children=4)
        with pytest.raises(WorkerOutOfMemory, match=r"all processes together held \d+ MiB, and may hold 1024"):
            worker.call("family", PATIENCE_S, mib=150, children=5)  # which may be noticed at once
            worker.call("bad", PATIENCE_S, what="hang")
        for process in family:
            assert_gone(process)


def test_memory_that_forks_share_is_held_once() -> None:
    with Worker(SERVICE, memory_bytes=1 << 30) as worker:
        worker.call("forks", PATIENCE_S, mib=300, children=6)
        with pytest.raises(WorkerTimeout):
            worker.call("bad", 2.0, what="hang")


def test_names_that_are_no_text_do_not_end_the_watch_over_memory(worker: Worker) -> None:
    worker.call("rename", PATIENCE_S)
    stray = worker.call("stray", PATIENCE_S)
    with pytest.raises(WorkerTimeout):
        worker.call("bad", 1.5, what="hang")
    assert_gone(stray)


def test_workers_are_killed_first_when_the_machine_runs_out_of_memory(worker: Worker) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    for process in (worker.call("pid", PATIENCE_S), worker.call("child", PATIENCE_S)):
        assert int(Path(f"/proc/{process}/oom_score_adj").read_text()) == max(own, 500)


def test_a_smaller_limit_of_the_shell_stands() -> None:
    script = textwrap.dedent("""
        import resource
        from collage.workers.worker import Worker
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        with Worker("tests.crash._services:Echo", {"greeting": "hello "}, address_space_bytes=16 << 30) as worker:
            print(worker.call("echo", 120, text="you"))
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "hello you", done.stderr


def test_a_service_that_cannot_start_is_reported_with_its_reason() -> None:
    with Worker("tests.crash._services:broken") as worker, pytest.raises(WorkerCrash, match="no such library"):
        worker.call("echo", PATIENCE_S, text="x")


@pytest.mark.parametrize("then", ["import time; time.sleep(100)", 'worker.call("bad", 100, what="hang")'])
def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path, then: str) -> None:
    script = textwrap.dedent(f"""
        from collage.workers.worker import Worker
        worker = Worker("tests.crash._services:Echo")
        print(worker.call("pid", 120), worker.call("child", 120), worker.call("stray", 120), flush=True)
        {then}
    """)
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env, cwd=root)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for pid in pids:
        assert_gone(pid)
