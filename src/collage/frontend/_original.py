"""The original model as a file, for evaluators that share nothing with the front door."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from collage.frontend._bfloat16 import widen_bfloat16
from collage.frontend._maps import with_tensors_for_maps
from collage.frontend._texts import with_unicode_texts
from collage.graph import copy_model

__all__ = ["REWRITTEN", "write_original"]

REWRITTEN = "collage.rewritten"
"""Note on a model that was read: its names, or the kinds of its outputs, are not those of its source."""

_FILE = "original.onnx"
_WEIGHTS = "original.data"
_MOST_INLINE_BYTES = 1 << 30


def write_original(source: Any, folder: Path, *, is_rewritten: bool = False) -> Path:
    """Return the file of a model that ``read_model`` takes; a model in memory is written first.

    Args:
        source: A path, which is returned as it is, bytes, a ``ModelProto`` or an ``onnx_ir.Model``, none of which is changed.
        folder: An existing folder for the file.
        is_rewritten: True if ``read_model`` changed names, outputs or bfloat16. So does the file then; else it is as the source.

    Raises:
        ValueError: The model is too large for one file, or not well formed.
    """
    if is_rewritten:
        if not isinstance(source, ir.Model):
            source = with_tensors_for_maps(with_unicode_texts(_loaded(source)))
        widened = copy_model(ir.from_proto(source) if isinstance(source, onnx.ModelProto) else source)
        source = widened if widen_bfloat16(widened) else source
    if isinstance(source, str | os.PathLike):
        return Path(source).absolute()
    path = folder / _FILE
    if isinstance(source, bytes | bytearray | memoryview):
        path.write_bytes(bytes(source))
    elif isinstance(source, ir.Model):
        _write_ir(copy_model(source), path)
    elif isinstance(source, onnx.ModelProto):
        if source.ByteSize() < _MOST_INLINE_BYTES:
            path.write_bytes(source.SerializeToString())
        else:
            _write_ir(copy_model(ir.from_proto(source)), path)
    else:
        raise ValueError(f"{type(source).__name__} has no form in ONNX")
    return path


def _loaded(source: Any) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        return source
    if isinstance(source, str | os.PathLike):
        # Places of weights may be among the texts that are not Unicode.
        model = with_unicode_texts(onnx.load(source, load_external_data=False))
        onnx.load_external_data_for_model(model, str(Path(source).parent))
        return model
    return onnx.ModelProto.FromString(bytes(source))


def _write_ir(model: ir.Model, path: Path) -> None:
    tensors = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
    is_elsewhere = any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors)
    if is_elsewhere or sum(tensor.nbytes for tensor in tensors) >= _MOST_INLINE_BYTES:
        ir.save(model, path, external_data=_WEIGHTS)
    else:
        path.write_bytes(ir.to_proto(model).SerializeToString())
