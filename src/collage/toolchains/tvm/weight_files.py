"""The large weights of a kernel in a file of their own, which processes map. So they are in memory once.

TVM would write them into the library, and copy them out of it whenever the library is loaded.
"""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage._errors import ToolchainError
from collage.toolchains.sdk.aligned_memory import ALIGNMENT_BYTES
from collage.toolchains.sdk.model_files import MAPPED_WEIGHTS, one_line
from collage.toolchains.tvm.runtime_library import runtime

__all__ = ["mapped_weights", "write_weights"]


def write_weights(weights: Sequence[np.ndarray[Any, Any]], path: Path) -> list[list[Any]]:
    """Write weights to a file, and return where they are: for each, where it begins, its type and its lengths.

    The file appears complete or not at all: one of that name may be mapped.
    """
    places: list[list[Any]] = []
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        with draft.open("wb") as file:
            for weight in weights:
                file.write(bytes(-file.tell() % ALIGNMENT_BYTES))
                places.append([file.tell(), weight.dtype.name, *weight.shape])
                file.write(np.ascontiguousarray(weight).data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return places


def mapped_weights(folder: Path, files: Sequence[str], places: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the tensors of a file that ``write_weights`` wrote.

    Args:
        folder: The folder of a kernel's files.
        files: Their names.
        places: The result of ``write_weights``; nothing if the kernel has no such file.

    Raises:
        ToolchainError: There is no such file, or the tensors do not lie in it.
    """
    if not places:
        return []
    lent = functools.partial(runtime().from_dlpack, require_alignment=ALIGNMENT_BYTES, require_contiguous=True)
    try:
        path = folder / next(name for name in files if name.endswith(MAPPED_WEIGHTS))
        with path.open("rb") as file:
            # Private, though nobody writes to it: NumPy lends only memory that may be written to.
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if any(begin < 0 for begin, *_ in places):
            raise ValueError("one begins before the file")
        return [lent(np.ndarray(shape, dtype, memory, begin)) for begin, dtype, *shape in places]
    except (StopIteration, OSError, ValueError, TypeError, OverflowError, BufferError, RuntimeError) as error:
        raise ToolchainError(f"tvm: the weights of a kernel cannot be read: {one_line(error)}") from error
