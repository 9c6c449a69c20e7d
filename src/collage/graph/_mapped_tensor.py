"""External tensors that map their own bytes only.

``onnx_ir.ExternalTensor`` maps the whole file for each tensor. With two hundred weights in a file of half a gigabyte, that is
more address space than a worker may have.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx_ir as ir

__all__ = ["MappedTensor", "load_mapped"]


class MappedTensor(ir.ExternalTensor):
    """An external tensor that maps the pages of its own bytes."""

    __slots__ = ()

    @classmethod
    def of(cls, tensor: ir.ExternalTensor) -> MappedTensor:
        """Return the same tensor, mapped by its own pages."""
        return cls(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=str(tensor.name),
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
            base_dir=tensor.base_dir,
        )

    @contextmanager
    def _opened(self) -> Iterator[int]:
        self._check_path_containment()
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _load(self) -> None:
        dtype = self.dtype.numpy()
        if self.nbytes == 0:
            self._array = np.empty(self.shape.numpy(), dtype)
            return
        first = (self.offset or 0) % mmap.ALLOCATIONGRANULARITY
        with self._opened() as descriptor:
            start = (self.offset or 0) - first
            self.raw = mmap.mmap(descriptor, first + self.nbytes, access=mmap.ACCESS_READ, offset=start)
        data = np.frombuffer(self.raw, np.uint8, self.nbytes, first)
        if self.dtype.bitwidth < 8:
            self._array = ir.PackedTensor(data, self.dtype, shape=self.shape).numpy()
        else:
            self._array = data.view(np.dtype(dtype).newbyteorder("<")).reshape(self.shape.numpy())

    def tobytes(self) -> bytes:
        """Return the bytes of the tensor, as the file has them."""
        if self.nbytes == 0:
            return b""
        if self.raw is None:
            self._load()
        assert self.raw is not None
        first = (self.offset or 0) % mmap.ALLOCATIONGRANULARITY
        return bytes(self.raw[first : first + self.nbytes])


def load_mapped(path: Path) -> ir.Model:
    """Return a model whose external initializers map their own bytes only."""
    model = ir.load(path)
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = MappedTensor.of(value.const_value)
    return model
