"""A worker: one process, one job at a time, that may die without consequence.

The parent's side. Jobs and results are JSON frames on two pipes of their own; tensors travel as files. A warden (see
``_worker_main``) kills the worker and everything that it started when this side closes a third pipe, the lifeline. The
system also closes it if this process is killed. A worker whose threads do not rest after a job is paused until the next
one. Whatever the worker prints is drained, and only the tail is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from itertools import chain
from pathlib import Path
from typing import Any

from collage._errors import (
    CompileError,
    ToolchainError,
    Unsupported,
    WorkerCrash,
    WorkerDied,
    WorkerLost,
    WorkerOutOfMemory,
    WorkerTimeout,
)
from collage.system.machine import usable_memory_bytes
from collage.workers._memory_limit import OUT_OF_MEMORY_CODE
from collage.workers._process_tree import PAUSE, RESUME

__all__ = [
    "Worker",
]

_HEADER = struct.Struct("!Q")
_MAX_FRAME_BYTES = 1 << 28
_TAIL_BYTES = 4096
_LOOK_S = 1.0
_PATIENCE_S = 5.0
"""Seconds that the warden may take to kill all processes, before it is killed as well."""
_FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
"""Signals that the system or a user ends processes with, also where memory is short."""
_FAILURES: dict[str, type[ToolchainError]] = {"unsupported": Unsupported, "compile error": CompileError}


class Worker:
    """A child process that serves jobs.

    Args:
        service: The service as ``module:attribute``: a callable that returns an object whose public methods are
            the jobs. It is imported in the child.
        arguments: Keyword arguments of that callable, JSON values.
        memory_bytes: Memory limit of the process and all that it starts, in bytes. None is four fifths of that of the machine,
            or the container.
        address_space_bytes: Address space that each of them may use, None for no limit.
        start_timeout_s: Seconds that it may take to come up.
        environment: Variables to set in the child.

    Attributes:
        jobs_done: Jobs that this process has done.
        jobs_ever: Jobs that this and earlier processes have done.
    """

    def __init__(
        self,
        service: str,
        arguments: dict[str, Any] | None = None,
        *,
        memory_bytes: int | None = None,
        address_space_bytes: int | None = None,
        start_timeout_s: float = 120.0,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._service = service
        self._arguments = arguments or {}
        self._memory_bytes = usable_memory_bytes() * 4 // 5 if memory_bytes is None else memory_bytes
        self._address_space_bytes = address_space_bytes
        self._start_timeout_s = start_timeout_s
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None
        self._is_paused = False
        self._turn = threading.Lock()
        self._tail = b""
        self.jobs_done = 0
        self.jobs_ever = 0
        self._in_use = threading.Lock()

    @property
    def busy(self) -> bool:
        """True if it does a job just now, for any thread."""
        return self._in_use.locked()

    def serves(self, service: str, arguments: dict[str, Any]) -> bool:
        """Return True if this is its service, with these arguments."""
        return (service, arguments) == (self._service, self._arguments)

    @property
    def alive(self) -> bool:
        """True if there is a process."""
        return self._process is not None and self._process.poll() is None

    def call(self, method: str, timeout_s: float, **params: Any) -> Any:
        """Run one job, and start the process first if there is none. Several threads may call: they take turns.

        Args:
            method: Name of a public method of the service.
            timeout_s: Seconds until the process is killed.
            params: JSON values.

        Returns:
            The method's result, a JSON value.

        Raises:
            Unsupported: The service says so.
            CompileError: The service failed in a way that it could report.
            WorkerDied: The process crashed, hung or ran out of memory; it is gone with all its children.
        """
        with self._in_use:
            return self._call(method, timeout_s, params)

    def start(self) -> None:
        """Start the process, unless there is one: the next call need not wait for it.

        Raises:
            Unsupported: The service says so.
            WorkerDied: The process did not come up.
        """
        with self._in_use:
            if not self.alive:
                self._start()

    def _call(self, method: str, timeout_s: float, params: dict[str, Any]) -> Any:
        try:
            if not self.alive:
                self._start()
            self._tell(RESUME)
            deadline, late = time.monotonic() + timeout_s, f"{method} took more than {timeout_s:g} s"
            self._send({"method": method, "params": params}, deadline, late)
            reply = self._receive(deadline, late)
        except BaseException:
            # Interrupted, too: the reply of a job that nobody waits for would be taken for the next one's.
            self.kill()
            raise
        self.jobs_done += 1
        self.jobs_ever += 1
        if reply.get("restless"):
            self._tell(PAUSE)
        if "result" in reply:
            return reply["result"]
        if reply["kind"] == "out of memory":
            self.kill()
            raise WorkerOutOfMemory(reply["reason"])
        raise _FAILURES.get(reply["kind"], CompileError)(reply["reason"])

    def kill(self) -> None:
        """Kill the process and everything that it started. Harmless if there is none."""
        process, self._process = self._process, None
        if process is None:
            return
        self._let_go()
        try:
            process.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for descriptor in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if self._drain.is_alive():
            self._drain.join(timeout=1.0)

    close = kill

    def interrupt(self) -> None:
        """End the job under way, for another thread than the one that waits for it: that one gets a WorkerDied."""
        self._let_go()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _start(self) -> None:
        self.kill()
        pipes = list[tuple[int, int]]()
        try:
            while len(pipes) < 3:
                pipes.append(os.pipe())
        except OSError as error:  # Too many files are open.
            for descriptor in chain.from_iterable(pipes):
                os.close(descriptor)
            raise WorkerLost(f"the worker could not start: {error.strerror}") from error
        (child_reads, self._requests), (self._replies, child_writes), (child_lifeline, self._lifeline) = pipes
        os.set_blocking(self._requests, False)
        configuration = {
            "service": self._service,
            "arguments": self._arguments,
            "requests": child_reads,
            "replies": child_writes,
            "lifeline": child_lifeline,
            "memory_bytes": self._memory_bytes,
            "address_space_bytes": self._address_space_bytes,
        }
        # The child must find the same packages as the parent, whatever the parent did to sys.path.
        paths = os.pathsep.join(path for path in sys.path if path and Path(path).exists())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "collage.workers._worker_main", json.dumps(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(child_reads, child_writes, child_lifeline),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": paths, **self._environment},
            )
        except OSError as error:  # No processes or no memory left, or too much text.
            self._let_go()
            os.close(self._requests)
            os.close(self._replies)
            raise WorkerLost(f"the worker could not start: {error.strerror}") from error
        finally:
            for descriptor in (child_reads, child_writes, child_lifeline):
                os.close(descriptor)
        self._tail = b""
        self._is_paused = False
        self.jobs_done = 0
        self._drain = threading.Thread(target=self._keep_tail, args=(self._process,), daemon=True)
        try:
            self._drain.start()
            late = f"the worker did not come up in {self._start_timeout_s:g} s"
            hello = self._receive(time.monotonic() + self._start_timeout_s, late)
        except RuntimeError as error:  # No threads left.
            self.kill()
            raise WorkerLost(f"the worker could not start: {error}") from error
        except BaseException:
            # Interrupted, too: its greeting would be taken for the reply of the first job.
            self.kill()
            raise
        if "result" not in hello:
            self.kill()
            if hello["kind"] == "unsupported":
                raise Unsupported(hello["reason"])
            kind = WorkerOutOfMemory if hello["kind"] == "out of memory" else WorkerCrash
            raise kind(f"the worker could not start: {hello['reason']}")

    def _let_go(self) -> None:
        """Close the lifeline, once."""
        with self._turn:
            lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)

    def _tell(self, what: bytes) -> None:
        """Let the warden pause or resume its processes, except those that sleep between jobs."""
        with self._turn:
            if self._lifeline is not None and self._is_paused != (what == PAUSE):
                self._is_paused = what == PAUSE
                with contextlib.suppress(OSError):  # Whoever waits for an answer will learn that it is gone.
                    os.write(self._lifeline, what)

    def _keep_tail(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as pipe:
            while chunk := os.read(pipe.fileno(), 65536):
                self._tail = (self._tail + chunk)[-_TAIL_BYTES:]

    def _send(self, message: dict[str, Any], deadline: float, late: str) -> None:
        body = json.dumps(message).encode()
        left = memoryview(_HEADER.pack(len(body)) + body)
        while left:  # More than the pipe holds has to wait for a worker that may never read again.
            self._wait_for(self._requests, select.POLLOUT, deadline, late)
            try:
                left = left[os.write(self._requests, left) :]
            except BlockingIOError:
                continue
            except OSError:
                raise self._death() from None

    def _receive(self, deadline: float, late: str) -> dict[str, Any]:
        size = _HEADER.unpack(self._read(_HEADER.size, deadline, late))[0]
        if size > _MAX_FRAME_BYTES:
            raise WorkerCrash(f"the worker sent a frame of {size} bytes")
        try:
            reply = json.loads(self._read(size, deadline, late))
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict) or not ("result" in reply or _is_failure(reply)):
            raise WorkerCrash("the worker sent something that is not a reply")
        return reply

    def _read(self, size: int, deadline: float, late: str) -> bytes:
        data = b""
        while len(data) < size:
            self._wait_for(self._replies, select.POLLIN, deadline, late)
            chunk = os.read(self._replies, min(size - len(data), 1 << 20))
            if not chunk:
                raise self._death()
            data += chunk
        return data

    def _wait_for(self, pipe: int, event: int, deadline: float, late: str) -> None:
        """Return when a pipe is ready, or its other end is gone. Raise if the worker ends, or the time is over."""
        poll = select.poll()  # Not select(), which knows no numbers of descriptors above 1023.
        poll.register(pipe, event)
        while not poll.poll(1000.0 * max(0.0, min(deadline - time.monotonic(), _LOOK_S))):
            if time.monotonic() >= deadline:
                raise WorkerTimeout(late)
            if not self.alive:
                raise self._death()

    def _death(self) -> WorkerDied:
        """Return a sentence about a process that has ended, or that closed its pipe and soon will."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return WorkerCrash("the worker closed its connection")
        self._drain.join(timeout=0.5)
        tail = self._tail.decode(errors="replace").strip().splitlines()
        said = f": {tail[-1][:300]}" if tail else ""
        if code == OUT_OF_MEMORY_CODE:
            return WorkerOutOfMemory(f"the worker ran out of memory{said}")
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}  # Most real-time signals have none.
            kind = WorkerLost if -code in _FROM_OUTSIDE else WorkerCrash
            return kind(f"the worker was killed by {names.get(-code, f'signal {-code}')}{said}")
        return WorkerCrash(f"the worker exited with code {code}{said}")


def _is_failure(reply: dict[str, Any]) -> bool:
    """Return True if a reply says why a job failed. Foreign code may have written to the pipe."""
    return isinstance(reply.get("kind"), str) and isinstance(reply.get("reason"), str)
