"""The child process of ``_confined``: ONNX's compiled functions, within limits of memory and of time.

A script, run by its path without site packages, so that it starts in some 20 ms and holds some 20 MiB. It gets the path
of ONNX's extension module, and serves requests on its standard input until that ends. A request is a line, the
operation, its argument and the number of bytes that follow; so is an answer: how it went, and the number of bytes.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
import time
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from typing import IO, Any

__all__ = ["read_exactly", "write_all"]

_CPU_SECONDS = 2
_MEMORY_BYTES = 2**28
_COPIES = 8
"""A request is held as bytes, as a message and as a graph, and so is its answer."""

_KEPT_BYTES = 2**27
"""Above it, memory is given back by restarting: fragments of it would count against the next request."""


def main(extension: str) -> None:
    _allow(resource.RLIMIT_CORE, 0)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # The parent, which also gets it, ends this process by closing the pipe.
    onnx = _load(extension)
    # Unbuffered: what is left unread outlives ``execv``.
    with open(0, "rb", buffering=0) as requests, open(1, "wb", buffering=0) as answers:
        while header := requests.readline():
            operation, argument, length = header.decode().split()
            data = read_exactly(requests, int(length))
            _limit(len(data))
            try:
                outcome, result = "done", _run(onnx, operation, data, int(argument))
            except MemoryError:
                outcome, result = "exhausted", b""
            except Exception as error:
                outcome, result = "failed", str(error).encode(errors="replace")
            write_all(answers, f"{outcome} {len(result)}\n".encode() + result)
            if _mapped_bytes() > _KEPT_BYTES:
                _allow(resource.RLIMIT_AS, 2**62)
                os.execv(sys.executable, sys.orig_argv)


def _load(path: str) -> Any:
    name = "onnx.onnx_cpp2py_export"
    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, path))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(onnx: Any, operation: str, data: bytes, argument: int) -> bytes:
    if operation in ("infer", "check"):
        strict = operation == "check"
        result = onnx.shape_inference.infer_shapes(data, strict, strict, bool(argument))
    elif operation == "convert":
        result = onnx.version_converter.convert_version(data, argument)
    else:
        result = onnx.inliner.inline_local_functions(data, bool(argument))
    return bytes(result)


def _limit(request_bytes: int) -> None:
    """Limit the next request. Exceeding the time ends this process; exceeding the memory fails the request."""
    cpu_seconds = math.ceil(time.process_time()) + _CPU_SECONDS
    _allow(resource.RLIMIT_CPU, cpu_seconds)
    _allow(resource.RLIMIT_AS, _MEMORY_BYTES + _COPIES * request_bytes)


def _mapped_bytes() -> int:
    """Return the memory that counts against the limit. The peak of ``getrusage`` would include that of the parent."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 (pathlib takes as long to import as all else here)
            return int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:  # Not Linux, and the limit of memory is not kept to there.
        return 0


def _allow(kind: int, most: int) -> None:
    """Set a limit, within that which the user's shell may have set for good."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def read_exactly(file: IO[bytes], length: int) -> bytes:
    """So many bytes of an unbuffered file; fewer if it ends before."""
    data = bytearray()
    while len(data) < length and (part := file.read(length - len(data))):
        data += part
    return bytes(data)


def write_all(file: IO[bytes], data: bytes) -> None:
    """All of the bytes, into an unbuffered file."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


if __name__ == "__main__":
    main(sys.argv[1])
