"""External weights: bytes of checked files beside the model, mapped when they are needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import onnx_ir as ir

from collage._errors import ModelError
from collage.frontend._places import CheckedFile, Place, find_file
from collage.frontend._proto import KEPT_BYTES
from collage.frontend._tensors import TensorFacts
from collage.graph import MappedTensor, all_graphs

__all__ = ["CheckedTensor", "check_external_data", "check_external_tensors", "load_small_tensors", "loaded", "pin"]

_PIECE_BYTES = 2**20


class CheckedTensor(MappedTensor):
    """An external tensor whose file is, at every opening, the one that was checked."""

    __slots__ = ("_file",)

    def __init__(self, tensor: ir.ExternalTensor, file: CheckedFile) -> None:
        super().__init__(
            file.parts[-1],
            tensor.offset,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=str(tensor.name),
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
            base_dir=os.fspath(file.root.joinpath(*file.parts[:-1])),
        )
        self._file = file

    @contextmanager
    def _opened(self) -> Iterator[int]:
        with self._file.opened() as descriptor:
            yield descriptor

    def tobytes(self) -> bytes:
        """Return the bytes of the tensor, read into memory."""
        return b"".join(self._pieces())

    def tofile(self, file: BinaryIO) -> None:
        """Write the bytes of the tensor to a file, piece by piece, since mapped pages would stay in memory."""
        for piece in self._pieces():
            file.write(piece)

    def _pieces(self) -> Iterator[bytes]:
        position = self.offset or 0
        end = position + self.nbytes
        with self._file.opened() as descriptor:
            while position < end:
                piece = os.pread(descriptor, min(_PIECE_BYTES, end - position), position)
                if not piece:
                    raise ModelError(f"weights in {self.path!r} were cut short since the model was read")
                yield piece
                position += len(piece)


def check_external_data(tensors: Iterable[TensorFacts], place: Place | None) -> dict[str, CheckedFile]:
    """Refuse tensors whose bytes lie anywhere but in a plain file at the place of the model.

    Returns:
        The files by location.

    Raises:
        ModelError: A path escapes the folders of the model, is missing, or is shorter than the tensor needs.
    """
    files: dict[str, CheckedFile] = {}
    for tensor in tensors:
        location = tensor.location
        if location is None:
            continue
        shown = f"{tensor.where} keeps its data in {location[:80]!r}"
        if place is None:
            raise ModelError(f"{shown}, but a model without a file has no folder; pass the path of the model instead")
        if location not in files:
            files[location] = find_file(place, location, shown)
        if tensor.offset + tensor.nbytes > files[location].size:
            raise ModelError(
                f"{tensor.where} needs {tensor.nbytes:,} bytes at offset {tensor.offset:,} of {location[:80]!r}, "
                f"which has {files[location].size:,}"
            )
    return files


def pin(model: ir.Model, files: Mapping[str, CheckedFile]) -> None:
    """Bind the external tensors of a model that was just parsed to the files that were checked."""
    _exchange(model, lambda tensor, _: CheckedTensor(tensor, files[os.fspath(tensor.location)]))


def check_external_tensors(model: ir.Model) -> None:
    """Check and bind the external tensors of a model in memory. Each tensor holds its own folder."""

    def check(tensor: ir.ExternalTensor, _: bool) -> ir.TensorProtocol:
        if isinstance(tensor, CheckedTensor):
            return tensor
        location = os.fspath(tensor.location)
        facts = TensorFacts(f"tensor {tensor.name!r}", tensor.nbytes, location, tensor.offset or 0)
        place = Place(Path(tensor.base_dir)) if tensor.base_dir else None
        return CheckedTensor(tensor, check_external_data([facts], place)[location])

    _exchange(model, check)


def load_small_tensors(model: ir.Model, most_bytes: int) -> None:
    """Load external tensors of bodies and attributes, and small initializers of the main graph.

    Large initializers of the main graph stay mapped. Small ones may be shapes and axes, which passes and shape inference read.

    Raises:
        ModelError: Tensors of bodies and attributes are too large to be loaded.
    """
    left = most_bytes

    def load_inner(tensor: ir.ExternalTensor, inner: bool) -> ir.TensorProtocol:
        nonlocal left
        if not inner:
            return tensor
        if tensor.nbytes > left:
            raise ModelError(
                f"constant {str(tensor.name)[:80]!r} of a function or body has {tensor.nbytes:,} bytes in an external "
                f"file; keep weights in the main graph"
            )
        left -= tensor.nbytes
        return loaded(tensor)

    def load_small(tensor: ir.ExternalTensor, _: bool) -> ir.TensorProtocol:
        nonlocal left
        if tensor.nbytes > min(KEPT_BYTES, left):
            return tensor
        left -= tensor.nbytes
        return loaded(tensor)

    _exchange(model, load_inner)
    _exchange(model, load_small)


def loaded(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    """A copy of an external tensor in memory."""
    return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=tensor.name)


def _exchange(model: ir.Model, change: Callable[[ir.ExternalTensor, bool], ir.TensorProtocol]) -> None:
    """Replace all external tensors. ``change`` gets True for one that is not an initializer of the main graph."""
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = change(value.const_value, graph is not model.graph)
        for node in graph:
            for attribute in list(node.attributes.values()):
                if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                    node.attributes[attribute.name] = ir.AttrTensor(attribute.name, change(attribute.value, True))
                elif attribute.type == ir.AttributeType.TENSORS and attribute.value is not None:
                    tensors = cast("list[ir.TensorProtocol]", list(attribute.value))
                    if any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors):
                        changed = [change(t, True) if isinstance(t, ir.ExternalTensor) else t for t in tensors]
                        node.attributes[attribute.name] = ir.AttrTensors(attribute.name, changed)
