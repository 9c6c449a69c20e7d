"""External weights: plain relative regular files inside the model's folder, and nothing else.

A path is opened one component at a time, each relative to the folder opened before and never through a link, so that
what was checked is what is read. A file with a second hard link is refused: it may be a secret that somebody linked
into the folder. So is a file of gigabytes that were never written: it costs its author nothing, and whoever reads it
minutes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx_ir as ir

from collage._errors import ModelError
from collage.frontend._holes import has_large_holes
from collage.frontend._tensors import TensorFacts

__all__ = ["check_external_data", "check_external_tensors", "load_inner_tensors", "set_folder"]

_PLAIN = re.compile(r"[^\x00-\x1f*?\"<>|:\\/]+(/[^\x00-\x1f*?\"<>|:\\/]+)*")
"""Relative, without drive letters, wild cards or control characters: runtimes keep private markers in such strings."""


def check_external_data(tensors: Iterable[TensorFacts], folder: Path | None) -> None:
    """Refuses tensors whose bytes lie anywhere but in a plain file of ``folder``.

    Raises:
        ModelError: A path escapes the folder, is a link, is missing, or is shorter than the tensor needs.
    """
    sizes: dict[str, int] = {}
    for tensor in tensors:
        location = tensor.location
        if location is None:
            continue
        if folder is None:
            raise ModelError(
                f"{tensor.where} keeps its data in {location[:80]!r}, but a model without a file has no folder; "
                f"pass the path of the model instead"
            )
        if location not in sizes:
            sizes[location] = _file_size(folder, location, tensor.where)
        if tensor.offset + tensor.nbytes > sizes[location]:
            raise ModelError(
                f"{tensor.where} needs {tensor.nbytes:,} bytes at offset {tensor.offset:,} of {location[:80]!r}, "
                f"which has {sizes[location]:,}"
            )


def check_external_tensors(model: ir.Model) -> None:
    """The same for a model in memory, each of whose external tensors knows its own folder."""
    for tensor in _tensors(model):
        if isinstance(tensor, ir.ExternalTensor):
            where = f"tensor {tensor.name!r}"
            facts = TensorFacts(where, tensor.nbytes, os.fspath(tensor.location), tensor.offset or 0)
            check_external_data([facts], Path(tensor.base_dir) if tensor.base_dir else None)


def load_inner_tensors(model: ir.Model, most_bytes: int) -> None:
    """Loads external tensors that are no initializers of the main graph: only those are worth mapping.

    Raises:
        ModelError: They are too large to be loaded.
    """
    left = most_bytes
    for graph in _all_graphs(model):
        for value in graph.initializers.values() if graph is not model.graph else ():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _loaded(value.const_value, left)
                left -= value.const_value.nbytes
        for node in graph:
            for attribute in list(node.attributes.values()):
                if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                    tensor = _loaded(attribute.value, left)
                    node.attributes[attribute.name] = ir.AttrTensor(attribute.name, tensor)
                    left -= tensor.nbytes


def _loaded(tensor: ir.ExternalTensor, most_bytes: int) -> ir.TensorProtocol:
    if tensor.nbytes > most_bytes:
        raise ModelError(
            f"constant {str(tensor.name)[:80]!r} of a function or body has {tensor.nbytes:,} bytes in an external file; "
            f"keep weights in the main graph"
        )
    return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)


def set_folder(model: ir.Model, folder: Path) -> None:
    """Says where the external tensors of a model that was just parsed are."""
    for tensor in _tensors(model):
        if isinstance(tensor, ir.ExternalTensor):
            tensor.base_dir = os.fspath(folder.absolute())


def _all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The graphs, bodies, and functions of a model."""
    yield from model.graphs()
    for function in model.functions.values():
        yield function.graph
        yield from function.graph.subgraphs()


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in _all_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and attribute.value is not None:
                    yield attribute.value


def _file_size(folder: Path, location: str, where: str) -> int:
    parts = location.removeprefix("./").split("/")
    if not _PLAIN.fullmatch("/".join(parts)) or any(part in (".", "..") for part in parts):
        raise ModelError(f"{where} keeps its data in {location[:80]!r}, which is no plain relative path")
    shown = f"{where} keeps its data in {location[:80]!r}"
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    opened = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        for part in parts[:-1]:
            opened.append(os.open(part, flags | os.O_DIRECTORY, dir_fd=opened[-1]))
        opened.append(os.open(parts[-1], flags, dir_fd=opened[-1]))
        status = os.fstat(opened[-1])
        _refuse_unusual(status, opened[-1], shown)
    except OSError as error:
        reason = error.strerror or "cannot be opened"
        raise ModelError(f"{shown}: {reason} (links are not followed)") from None
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return status.st_size


def _refuse_unusual(status: os.stat_result, descriptor: int, shown: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{shown}, which is no regular file")
    if status.st_nlink != 1:
        raise ModelError(f"{shown}, which has a second hard link; copy the file")
    if has_large_holes(descriptor):
        raise ModelError(f"{shown}, which has large holes: most of it was never written")
