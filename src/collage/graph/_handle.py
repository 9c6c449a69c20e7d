"""Tensors with names of their own, whose bytes are those of other tensors."""

from __future__ import annotations

import copy

import onnx
import onnx_ir as ir

__all__ = ["tensor_handle"]


def tensor_handle(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor that shares the bytes of another, and neither its name nor its metadata.

    ONNX IR names a tensor whenever the value that holds it gets a name, and again when the value is serialised. So a
    tensor that two models share is renamed in both. One that was read from a ``TensorProto`` is renamed in that proto.
    """
    made: ir.TensorProtocol
    if isinstance(tensor, _NAMED):
        made = copy.copy(tensor)
        made._metadata_props = dict(tensor.metadata_props) or None
        made._metadata = None
    elif isinstance(tensor, ir.serde.TensorProtoTensor):
        made = _ProtoHandle(tensor.raw)
    else:
        made = ir.LazyTensor(
            lambda: tensor,
            tensor.dtype,
            ir.Shape(tensor.shape.numpy(), frozen=True),
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props) or None,
        )
    made.meta.update(tensor.meta)
    return made


class _ProtoHandle(ir.serde.TensorProtoTensor):
    """A ``TensorProto`` behind a name of its own."""

    __slots__ = ()

    def __init__(self, proto: onnx.TensorProto) -> None:
        super().__init__(proto)
        self._name = proto.name

    @property
    def name(self) -> str:
        return self._name or ""

    @name.setter
    def name(self, value: str | None) -> None:
        self._name = value

    @property
    def raw(self) -> onnx.TensorProto:
        """A copy of the proto under the handle's name, for serialisation, which adds the metadata itself."""
        proto = onnx.TensorProto()
        proto.CopyFrom(self._proto)
        proto.ClearField("metadata_props")
        if proto.name != self.name:
            proto.name = self.name
        return proto


_NAMED = (ir.ExternalTensor, ir.LazyTensor, ir.PackedTensor, ir.StringTensor, ir.Tensor, _ProtoHandle)
"""Tensors that keep their names themselves, so that a shallow copy has its own."""
