"""The threads of TVM's kernels: a small native library in place of the pool of TVM's runtime, see ``threads.c``.

TVM's own threads yield while they wait, so that any other process takes their processor for a whole tick of the scheduler. A pool
that sleeps instead wakes too late for loops of microseconds. The library is compiled beside each kernel. A process loads it once.
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import hashlib
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collage._errors import CompileError

__all__ = ["Threads", "build_threads", "threads_in"]

_SOURCE = Path(__file__).with_name("threads.c")
_PREFIX = "collage_threads_"
_LAUNCH = "__TVMBackendParallelLaunch"


def build_threads(folder: Path, compiler: str) -> str:
    """Compile the library of threads into a folder, unless it is there. Return the name of its file.

    Args:
        folder: The folder of compiled kernels.
        compiler: A C or C++ compiler.

    Raises:
        CompileError: The compiler failed.
    """
    source = _SOURCE.read_bytes()
    library = folder / f"{_PREFIX}{hashlib.sha256(source).hexdigest()[:16]}.so"
    if not library.exists():
        draft = library.with_name(f"{library.stem}.{os.getpid()}.draft.so")
        command = [compiler, "-x", "c", "-std=gnu11", "-O2", "-shared", "-fPIC", "-pthread", "-o", str(draft), "-"]
        try:
            subprocess.run(command, input=source, check=True, capture_output=True)
            draft.replace(library)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(f"tvm: the library of threads cannot be compiled: {error}") from error
        finally:
            draft.unlink(missing_ok=True)
    return library.name


class Threads:
    """The threads of the loaded library, shared by all kernels of the process.

    Args:
        library: The loaded library.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._launch = ctypes.cast(library.collage_parallel_launch, ctypes.c_void_p).value
        self._use: Any = library.collage_use_threads
        self._use.argtypes, self._use.restype = [ctypes.c_int], None
        self.rest: Any = library.collage_rest
        self.rest.argtypes, self.rest.restype = [], None
        self._calling = _Calling()

    def drive(self, kernel: Path) -> None:
        """Have a loaded kernel library run its parallel loops on these threads. A library may have no such loop."""
        loaded = ctypes.CDLL(os.path.realpath(kernel))
        with contextlib.suppress(ValueError):
            ctypes.c_void_p.in_dll(loaded, _LAUNCH).value = self._launch
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
    name = next((file for file in files if file.startswith(_PREFIX)), None)
    if name is None:
        raise CompileError("tvm: the kernel has no library of threads; compile it again")
    return _threads(name, folder)


_loaded: dict[str, Threads] = {}
_loading = threading.Lock()


def _threads(name: str, folder: Path) -> Threads:
    # By name, which holds the digest of the source: the same library beside two kernels must not start threads twice.
    with _loading:
        if name not in _loaded:
            _loaded[name] = Threads(ctypes.CDLL(os.path.realpath(folder / name)))
        return _loaded[name]
