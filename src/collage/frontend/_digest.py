"""A model's fingerprint: everything that determines what it computes, wherever its weights are stored."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import onnx_ir as ir

from collage.frontend._maps import CLASSES
from collage.frontend._outputs import LISTED
from collage.frontend._proto import skeleton

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["model_digest"]


def model_digest(model: ir.Model) -> str:
    """SHA-256 of a model: its operators, interface and constants, with the bytes of external weights.

    Names of nodes and values count; documentation, metadata and the name of the producer do not. Metadata of the front
    door counts, since it is part of the interface: classes, and outputs that are listed twice. ONNX does not bind a
    weight file to its model, so the bytes are read each time.
    """
    digest = hashlib.sha256()
    proto = skeleton(model, kept_bytes=-1)
    for field in ("doc_string", "producer_name", "producer_version", "domain", "model_version", "metadata_props"):
        proto.ClearField(field)
    for field in ("doc_string", "metadata_props", "value_info"):
        proto.graph.ClearField(field)
    for node in proto.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    digest.update(proto.SerializeToString(deterministic=True))
    for key in (CLASSES, LISTED):
        if (text := model.metadata_props.get(key)) is not None:
            digest.update(repr((key, text)).encode())
    for name, value in sorted(model.graph.initializers.items()):
        if value.const_value is not None:
            _add_tensor(digest, name, value.const_value)
    return digest.hexdigest()


def _add_tensor(digest: _Hash, name: str, tensor: ir.TensorProtocol) -> None:
    shape = tuple(tensor.shape.numpy())
    digest.update(repr((name, tensor.dtype.name, shape)).encode())
    if tensor.dtype == ir.DataType.STRING:
        digest.update(repr([bytes(item) for item in tensor.numpy().reshape(-1)]).encode())
    elif isinstance(tensor, ir.ExternalTensor):
        # Read piece by piece: what is mapped instead would stay in this process's memory.
        tensor.tofile(_Sink(digest))
    else:
        digest.update(tensor.tobytes())


class _Sink:
    """A file that only digests what is written to it."""

    def __init__(self, digest: _Hash) -> None:
        self._digest = digest

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        return len(data)
