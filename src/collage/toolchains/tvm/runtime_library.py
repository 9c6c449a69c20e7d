"""TVM's runtime alone: the two libraries that run compiled kernels, without the compiler, which is fifty times as large.

They are files of ``apache-tvm``, whose Python package is not imported. ``apache-tvm-ffi`` calls them. An installation without
anything else of ``apache-tvm`` but its metadata is enough.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from collage.toolchains._contract import Availability
from collage.toolchains.sdk.import_probe import NOT_INSTALLED, import_failure, install_command
from collage.toolchains.sdk.libraries import path_to_load

__all__ = ["load_main", "loading_availability", "new_tensor", "runtime", "tvm_build"]

_CPU = 1
_POOLED_ALLOCATOR = 2
_NEEDED = "tvm_runtime"
_OPTIONAL = "tvm_runtime_extra"
"""It has TopK and the like."""


def tvm_build() -> tuple[str, str] | None:
    """Return TVM's version and build, None if it is not installed."""
    try:
        version = importlib.metadata.version("apache-tvm")
        return version, f"apache-tvm {version}, apache-tvm-ffi {importlib.metadata.version('apache-tvm-ffi')}"
    except importlib.metadata.PackageNotFoundError:
        return None


def loading_availability() -> Availability:
    """Return if kernels that were compiled elsewhere can be loaded: neither TVM's compiler nor a linker is needed."""
    if (installed := tvm_build()) is None:
        return Availability(False, reason=NOT_INSTALLED, remedy=install_command("tvm"))
    version, build = installed
    if (broken := import_failure("tvm_ffi", runtime)) is not None:
        remedy = install_command("tvm", again=True)
        return Availability(False, version, build, reason=broken, remedy=remedy)
    return Availability(True, version, build, ("CPU",))


@functools.cache
def runtime() -> Any:
    """Import ``tvm_ffi``, load the libraries, and return it; takes a tenth of a second the first time.

    A library that the tvm package has loaded is not loaded again, nor the other way round.
    """
    with _without_torch():
        import tvm_ffi
        from tvm_ffi.libinfo import load_lib_ctypes
    load_lib_ctypes("apache-tvm", _NEEDED, "RTLD_GLOBAL", extra_lib_paths=_folders())
    with contextlib.suppress(OSError, RuntimeError):
        load_lib_ctypes("apache-tvm", _OPTIONAL, "RTLD_LOCAL", extra_lib_paths=_folders())
    return tvm_ffi


def load_main(library: Path, instrument: Callable[..., int] | None = None) -> Any:
    """Load a library that Relax compiled for the processor; return its entry function.

    Args:
        library: The library.
        instrument: Called before and after each call of the virtual machine: see ``set_instrument`` of ``relax.VirtualMachine``.
    """
    machine = runtime().load_module(path_to_load(library))["vm_load_executable"]()
    machine["vm_initialization"](_CPU, 0, _POOLED_ALLOCATOR)
    if instrument is not None:
        machine["set_instrument"](runtime().convert(instrument))
    return machine["main"]


def new_tensor(shape: Sequence[int], dtype: str) -> Any:
    """Return a tensor in memory of TVM's own."""
    ffi = runtime()
    allocate = ffi.get_global_func("runtime.TVMTensorAllocWithScope")
    return allocate(ffi.Shape(shape), ffi.dtype(dtype), ffi.device("cpu"), None)


def _folders() -> list[Path]:
    """Return where TVM itself looks for its libraries."""
    spec = importlib.util.find_spec("tvm")
    packages = [] if spec is None else [*(spec.submodule_search_locations or ())]
    told = os.environ.get("TVM_LIBRARY_PATH")
    return [*([Path(told)] if told else []), *(Path(package, "lib") for package in packages)]


class _Hidden:
    """Hides torch from one thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Refuse ``torch``."""
        if name == "torch" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("torch is not needed to run kernels of TVM", name=name)


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Hide torch from imports of this thread, which ``tvm_ffi`` imports if it is there; it takes longer than all the rest.

    Other threads find it. If it is imported already, so does this one.
    """
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        yield
    finally:
        sys.meta_path.remove(hidden)
