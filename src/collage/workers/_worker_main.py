"""The child's side of a worker: ``python -m collage.workers._worker_main CONFIGURATION``.

Two processes. The **warden** runs none of a toolchain's code, so nothing can stop it: it kills the remaining processes
if the tuner ends or closes the lifeline, if the server ends, or if all of them exceed their memory limit. Then it ends
with the server's exit status. It pauses processes that do not sleep between jobs, so that no other toolchain is timed
beside them. The **server**, its child, does the jobs. A thread of the server could not do the warden's work: a compiler
may hold the interpreter's lock for minutes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import struct
import sys
import traceback
from pathlib import Path
from typing import Any

from collage._errors import CollageError, Unsupported
from collage.workers._lazy_imports import import_late
from collage.workers._memory_limit import OUT_OF_MEMORY_CODE, end_before_others, held_bytes
from collage.workers._process_tree import PAUSE, RESUME, pause, resume
from collage.workers.idle_wait import until_quiet

_HEADER = struct.Struct("!Q")
_PATIENCE_S = 0.5
_LOOK_MS = 500
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _read(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = os.read(descriptor, size - len(data))
        if not chunk:
            sys.exit()
        data += chunk
    return data


def end_if_forked(server: int) -> None:
    """Kill the server if this is not it: foreign code forked, and returned in the child too.

    Two would answer one job, and a kernel that does so in every run would soon be thousands. Such a kernel counts as a
    crash, from its first run on.
    """
    if os.getpid() != server:
        os.write(2, b"foreign code forked, and returned in the child too\n")
        os.kill(server, signal.SIGABRT)
        os._exit(1)


def _reply(descriptor: int, message: dict[str, Any]) -> None:
    try:
        text = json.dumps(message, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:  # NaN, an object of some library, or too deep a value.
        text = json.dumps(_failure(error))
    body = text.encode(errors="replace")  # Names of files may hold halves of characters, which no report can.
    view = memoryview(_HEADER.pack(len(body)) + body)
    while view:
        view = view[os.write(descriptor, view) :]


def _failure(error: BaseException) -> dict[str, str]:
    if isinstance(error, MemoryError):
        return {"kind": "out of memory", "reason": "out of memory"}
    kind = "unsupported" if isinstance(error, Unsupported) else "compile error"
    text = _text_of(error).strip() or type(error).__name__
    reason = text if isinstance(error, CollageError) else f"{type(error).__name__}: {text}"
    return {"kind": kind, "reason": reason[:2000]}


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # Foreign code, too.
        return ""


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _kill_descendants() -> None:
    """Kill every descendant: orphans become children of this process, so at last there are none."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while True:
        try:
            for pid in map(int, children.read_text().split()):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _guard(server: int, lifeline: int, tuner: int, most_bytes: int) -> None:
    """The warden: waits for the end of the server or of the tuner, kills remaining processes, ends with the server's status.

    Memory is looked at so seldom that measurements do not feel it.
    """
    ended = os.pidfd_open(server)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(lifeline, select.POLLIN)
    # A fork of the tuner may hold the lifeline open after the tuner's death: so look at the parent now and then, too.
    held, events = 0, list[tuple[int, int]]()
    while os.getppid() == tuner and held <= most_bytes:
        events = poll.poll(_LOOK_MS)
        if events == [(lifeline, select.POLLIN)] and (told := os.read(lifeline, 1)):
            {PAUSE: pause, RESUME: resume}[told](os.getpid())
        elif events:
            break
        else:
            held = held_bytes(os.getpid(), most_bytes)
    # All at once, as one by one they might multiply faster; a server that has ended keeps its number until it is waited for.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server, signal.SIGKILL)
    status = os.waitpid(server, 0)[1] if (ended, select.POLLIN) in events else 0
    _kill_descendants()
    if held > most_bytes:
        os.write(1, f"\nall processes together held {held >> 20} MiB, and may hold {most_bytes >> 20}\n".encode())
        os._exit(OUT_OF_MEMORY_CODE)
    if os.WIFSIGNALED(status):
        deadly = os.WTERMSIG(status)
        if deadly != signal.SIGKILL:
            signal.signal(deadly, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {deadly})
        os.kill(os.getpid(), deadly)
    os._exit(os.waitstatus_to_exitcode(status))


def main(configuration: dict[str, Any]) -> None:
    """Serve jobs until the tuner closes its pipe."""
    tuner = os.getppid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    warden = os.getpid()
    if server := os.fork():
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.close(configuration["requests"])
        os.close(configuration["replies"])
        _guard(server, configuration["lifeline"], tuner, configuration["memory_bytes"])
    os.close(configuration["lifeline"])
    os.setsid()  # A toolchain that signals its own group must not reach the warden.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    end_before_others()
    if os.getppid() == warden:
        _serve(configuration)


def _serve(configuration: dict[str, Any]) -> None:
    requests, replies = configuration["requests"], configuration["replies"]
    server, warden = os.getpid(), os.getppid()
    patience_s = _PATIENCE_S
    os.set_inheritable(requests, False)
    os.set_inheritable(replies, False)
    if limit := configuration["address_space_bytes"]:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)  # a shell may have set less, for good
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # The parent decides what an interrupt means; a worker must not die of it in the middle of a job.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_late()
    try:
        module, _, attribute = configuration["service"].partition(":")
        service = getattr(importlib.import_module(module), attribute)(**configuration["arguments"])
    except Exception as error:
        end_if_forked(server)
        _reply(replies, _failure(error))
        return
    end_if_forked(server)
    _reply(replies, {"result": "ready"})
    while True:
        job = json.loads(_read(requests, _HEADER.unpack(_read(requests, _HEADER.size))[0]))
        try:
            message = {"result": getattr(service, job["method"])(**job["params"])}
        except Exception as error:
            with contextlib.suppress(Exception):  # It may have closed what that is written to.
                traceback.print_exc()
            message = _failure(error)
        end_if_forked(server)
        # A job is done when all threads sleep, since another worker may be timed next. Some never do: then the tuner has
        # them paused.
        if not until_quiet(patience_s, warden):
            patience_s /= 2
            message["restless"] = True
        _reply(replies, message)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
