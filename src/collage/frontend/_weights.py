"""Weights in one file of a workspace, so that every kernel can refer to them and none copies them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import onnx_ir as ir

from collage._errors import ModelError
from collage.frontend._external import loaded
from collage.graph import copy_model

__all__ = ["WEIGHTS_FILE", "place_weights", "place_weights_once"]

WEIGHTS_FILE = "weights.bin"

_LEAST_BYTES = 1024
_PAGE_BYTES = 4096
_LINE_BYTES = 64
_PAGE_ALIGNED_FROM_BYTES = 64 * 1024


def place_weights(model: ir.Model, workspace: Path, min_bytes: int = _LEAST_BYTES) -> ir.Model:
    """Write a model's larger initializers once to a workspace, and refer to them from there.

    Tensors above 64 KiB begin on a page (runtimes map them), the rest on a cache line. Strings stay in the model, and
    so do the constants of control-flow bodies. Smaller ones are in the model afterwards, even if they were in a file.
    The file is replaced in one step: arrays that are mapped from an earlier one stay valid.

    Args:
        model: Any model; it is not changed.
        workspace: An existing folder.
        min_bytes: Smaller initializers are kept in the model.

    Returns:
        A copy whose larger initializers are ``onnx_ir.ExternalTensor`` of ``<workspace>/weights.bin``.

    Raises:
        ModelError: A tensor does not have the number of bytes that its type and shape promise.
    """
    (placed,) = _placed([model], workspace, min_bytes, id)
    return placed


def place_weights_once(models: Sequence[ir.Model], workspace: Path) -> list[ir.Model]:
    """Write the larger initializers of several models to one file, equal ones once. It takes time to find these.

    See ``place_weights``.
    """
    return _placed(models, workspace, _LEAST_BYTES, _content)


def _content(tensor: ir.TensorProtocol) -> Hashable:
    shape = tuple(tensor.shape.numpy())
    return tensor.dtype, shape, hashlib.sha256(tensor.tobytes()).digest()


def _placed(
    models: Sequence[ir.Model], workspace: Path, min_bytes: int, key_of: Callable[[ir.TensorProtocol], Hashable]
) -> list[ir.Model]:
    placed = [copy_model(model) for model in models]
    written: dict[Hashable, ir.ExternalTensor] = {}
    with tempfile.NamedTemporaryFile(dir=workspace, prefix=f".{WEIGHTS_FILE}-", delete=False) as file:
        try:
            for value in (value for each in placed for value in each.graph.initializers.values()):
                tensor = value.const_value
                if tensor is None or tensor.dtype == ir.DataType.STRING:
                    continue
                if tensor.nbytes < max(min_bytes, 1):
                    # The file of an external one is not where kernels look for it.
                    value.const_value = loaded(tensor) if isinstance(tensor, ir.ExternalTensor) else tensor
                    continue
                if (key := key_of(tensor)) not in written:
                    written[key] = _write(tensor, str(value.name), cast(BinaryIO, file), workspace)
                value.const_value = _named(written[key], str(value.name))
            file.flush()
            Path(file.name).replace(workspace / WEIGHTS_FILE)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    return placed


def _write(tensor: ir.TensorProtocol, name: str, file: BinaryIO, workspace: Path) -> ir.ExternalTensor:
    alignment = _PAGE_BYTES if tensor.nbytes > _PAGE_ALIGNED_FROM_BYTES else _LINE_BYTES
    offset = -(-file.tell() // alignment) * alignment
    file.seek(offset)
    if isinstance(tensor, ir.ExternalTensor):
        tensor.tofile(file)
    else:
        file.write(tensor.tobytes())
    length = file.tell() - offset
    if length != tensor.nbytes:
        raise ModelError(f"initializer {name!r} has {length:,} bytes where its shape needs {tensor.nbytes:,}")
    shape = ir.Shape(tensor.shape.numpy())
    folder = os.fspath(workspace)
    return ir.ExternalTensor(WEIGHTS_FILE, offset, length, tensor.dtype, shape=shape, name=name, base_dir=folder)


def _named(tensor: ir.ExternalTensor, name: str) -> ir.ExternalTensor:
    if tensor.name == name:
        return tensor
    return ir.ExternalTensor(
        tensor.location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=name,
        base_dir=tensor.base_dir,
    )
