"""The child's side of a worker: ``python -m collage.cost._worker_main CONFIGURATION``."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import struct
import sys
import threading
import traceback
from typing import Any

from collage._errors import CollageError, Unsupported

_HEADER = struct.Struct("!Q")


def _read(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = os.read(descriptor, size - len(data))
        if not chunk:
            _end()
        data += chunk
    return data


def _end() -> None:
    """Ends this process and everything that it started, whatever state it is in."""
    os.killpg(0, signal.SIGKILL)


def _reply(descriptor: int, message: dict[str, Any]) -> None:
    body = json.dumps(message, allow_nan=False).encode()
    view = memoryview(_HEADER.pack(len(body)) + body)
    while view:
        view = view[os.write(descriptor, view) :]


def _watch_parent(parent: int) -> None:
    """Ends the process group when the parent is gone, even in the middle of a job."""
    silence = threading.Event()
    while os.getppid() == parent:
        silence.wait(0.5)
    _end()


def _failure(error: BaseException) -> dict[str, str]:
    if isinstance(error, MemoryError):
        return {"kind": "out of memory", "reason": "out of memory"}
    kind = "unsupported" if isinstance(error, Unsupported) else "compile error"
    text = str(error).strip() or type(error).__name__
    reason = text if isinstance(error, CollageError) else f"{type(error).__name__}: {text}"
    return {"kind": kind, "reason": reason[:2000]}


def main(configuration: dict[str, Any]) -> None:
    """Serves jobs until the parent closes its pipe."""
    requests, replies = configuration["requests"], configuration["replies"]
    os.set_inheritable(requests, False)
    os.set_inheritable(replies, False)
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    if limit := configuration["memory_limit_bytes"]:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The parent decides what an interrupt means; a worker must not die of it in the middle of a job.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        module, _, attribute = configuration["service"].partition(":")
        service = getattr(importlib.import_module(module), attribute)(**configuration["arguments"])
    except Exception as error:
        _reply(replies, _failure(error))
        return
    _reply(replies, {"result": "ready"})
    while True:
        job = json.loads(_read(requests, _HEADER.unpack(_read(requests, _HEADER.size))[0]))
        try:
            message = {"result": getattr(service, job["method"])(**job["params"])}
        except Exception as error:
            traceback.print_exc()
            message = _failure(error)
        _reply(replies, message)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
