"""Arrays at the end of memory, to find kernels that read or write beyond them, or write to their inputs.

Such an access ends the process. So kernels meet such arrays in a process of their own, whose program is this module.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import mmap
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from collage.target import Target
from collage.toolchains import Compiled, InPlaceKernel, LoadOptions, aligned_bytes

if TYPE_CHECKING:
    from collage.toolchains import Kernel
    from collage.toolchains._contract import Tensor

__all__ = ["Pages", "placed"]

_NO_ACCESS, _READ_ONLY = 0, mmap.PROT_READ


class Pages:
    """Memory for one array, between two pages without access. It is never given back.

    Args:
        x: The array to copy into this memory.
        at_end: True if the array ends at the end of the memory, at any alignment. Otherwise it begins at the beginning.
    """

    _kept: ClassVar[list[Pages]] = []

    def __init__(self, x: Tensor, at_end: bool = True) -> None:
        self._size = max(-(-x.nbytes // mmap.PAGESIZE), 1) * mmap.PAGESIZE
        block = np.frombuffer(mmap.mmap(-1, self._size + 2 * mmap.PAGESIZE), np.uint8)
        self._begin = block.ctypes.data + mmap.PAGESIZE
        self._protect(self._begin - mmap.PAGESIZE, mmap.PAGESIZE, _NO_ACCESS)
        self._protect(self._begin + self._size, mmap.PAGESIZE, _NO_ACCESS)
        start = mmap.PAGESIZE + (self._size - x.nbytes if at_end else 0)
        self.array: Tensor = block[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
        self.array[...] = x
        self._kept.append(self)  # Runtimes may remember arrays that they met.

    def seal(self) -> Tensor:
        """Return the array, which NumPy takes for writable and which is not."""
        self._protect(self._begin, self._size, _READ_ONLY)
        return self.array

    @staticmethod
    def _protect(address: int, size: int, how: int) -> None:
        if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), how):
            raise OSError(ctypes.get_errno(), "mprotect")


def placed(arrays: Sequence[Tensor], offset: int) -> list[Tensor]:
    """Copies that begin this many bytes after a cache line, or the size of an element if that is more; one copy per array."""
    copies = {id(x): _placed(x, max(offset, x.itemsize) if offset else 0) for x in arrays}
    return [copies[id(x)] for x in arrays]


def _placed(x: Tensor, offset: int) -> Tensor:
    copy = aligned_bytes(x.nbytes, offset).view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def _run_at_edges(kernel: Kernel, inputs: Sequence[Tensor]) -> None:
    """Run a kernel on arrays at both ends of mapped memory, and compare its outputs with those for other arrays.

    Raises:
        AssertionError: It returned something else.
    """
    wanted = [y.copy() for y in kernel(inputs)]
    for at_end in (True, False):
        sealed = [Pages(x, at_end).seal() for x in inputs]
        _compare(kernel(sealed), wanted)
        if isinstance(kernel, InPlaceKernel):
            outputs = [Pages(np.zeros(a.shape, a.dtype), at_end).array for a in kernel.layouts]
            kernel.run_into(sealed, outputs)
            _compare(outputs, wanted)


def _compare(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for y, expected in zip(got, wanted, strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def _main(workspace: Path) -> None:
    task = json.loads((workspace / "task.json").read_text())
    module, name = task["toolchain"]
    toolchain = getattr(importlib.import_module(module), name)()
    for i, fields in enumerate(task["kernels"]):
        print(fields["files"], flush=True)  # The last line tells which one it died of.
        compiled = Compiled.from_json(fields)
        kernel = toolchain.load(compiled, Target.parse(compiled.target), workspace, LoadOptions())
        with np.load(workspace / f"inputs_{i}.npz") as stored:
            _run_at_edges(kernel, [stored[key] for key in stored.files])
    print(json.dumps({}))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
