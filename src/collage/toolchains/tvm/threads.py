"""The threads of TVM's kernels: a small native library in place of the pool of TVM's runtime, see ``threads.c``.

TVM's own threads yield while they wait, so that any other process takes their processor for a whole tick of the scheduler. A pool
that sleeps instead wakes too late for loops of microseconds. The library is compiled beside each kernel. A process loads it once.
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collage._errors import CompileError
from collage.toolchains.sdk.libraries import path_to_load

__all__ = ["Threads", "build_threads", "threads_in"]

_SOURCE = Path(__file__).with_name("threads.c")
_MARK = ".threads_"
_LAUNCH = "__TVMBackendParallelLaunch"


def build_threads(library: Path, compiler: str) -> str:
    """Write the library of threads beside a kernel's library. Return the name of its file, which begins with the kernel's name.

    Args:
        library: The library of a kernel.
        compiler: A C or C++ compiler.

    Raises:
        CompileError: The compiler failed.
    """
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    threads = library.with_name(f"{library.stem}{_MARK}{digest}.so")
    draft = threads.with_name(f"{threads.stem}.{os.getpid()}.draft.so")
    try:
        draft.write_bytes(_compiled(compiler))
        draft.replace(threads)
    finally:
        draft.unlink(missing_ok=True)
    return threads.name


@functools.cache
def _compiled(compiler: str) -> bytes:
    """Return the compiled library, which this process makes once."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "threads.so")
        command = [
            compiler,
            "-x",
            "c",
            "-std=gnu11",
            "-O2",
            "-shared",
            "-fPIC",
            "-pthread",
            "-o",
            str(made),
            str(_SOURCE),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(f"tvm: the library of threads cannot be compiled: {error}") from error
        return made.read_bytes()


class Threads:
    """The threads of the loaded library, shared by all kernels of the process.

    Args:
        library: The loaded library.

    Attributes:
        launch: Address of the function that runs a parallel loop.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.launch = ctypes.cast(library.collage_parallel_launch, ctypes.c_void_p).value
        self._use: Any = library.collage_use_threads
        self._use.argtypes, self._use.restype = [ctypes.c_int], None
        self.rest: Any = library.collage_rest
        self.rest.argtypes, self.rest.restype = [], None
        self._calling = _Calling()

    def drive(self, kernel: Path) -> None:
        """Have a loaded kernel library run its parallel loops on these threads. A library may have no such loop."""
        loaded = ctypes.CDLL(path_to_load(kernel))
        with contextlib.suppress(ValueError):
            ctypes.c_void_p.in_dll(loaded, _LAUNCH).value = self.launch
        # TVM's module keeps the library loaded. ctypes would keep it for ever.
        _ctypes.dlclose(loaded._handle)

    def use(self, count: int) -> None:
        """Compute later loops of the calling thread with ``count`` threads, which is one of them."""
        if self._calling.count != count:
            self._use(count)
            self._calling.count = count


class _Calling(threading.local):
    """The number of threads that the library uses for the calling thread."""

    count = 1


def threads_in(folder: Path, files: Sequence[str]) -> Threads:
    """Return the process's threads, from the library among these files of a kernel.

    Args:
        folder: The folder of the files.
        files: Names of files.

    Raises:
        CompileError: There is no library of threads.
    """
    name = next((file for file in files if _MARK in file), None)
    if name is None:
        raise CompileError("tvm: the kernel has no library of threads; compile it again")
    return _threads(name, folder)


_loaded: dict[str, Threads] = {}
_loading = threading.Lock()


def _threads(name: str, folder: Path) -> Threads:
    # By the digest of the source: the same library beside two kernels must not start threads twice.
    digest = name.rpartition(_MARK)[2]
    with _loading:
        if digest not in _loaded:
            _loaded[digest] = Threads(ctypes.CDLL(os.path.realpath(folder / name)))
        return _loaded[digest]
