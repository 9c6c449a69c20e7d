"""TVM's ONNX importer, taught one kind of node more: calls of functions that write their results into TVM's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir
from tvm import relax

from collage.toolchains.sdk.model_files import elem_type
from collage.toolchains.tvm.importer import KernelImporter

if TYPE_CHECKING:
    from collage_extern.functions import ExternCall

__all__ = ["import_with_calls"]

_FIRST_SPATIAL = 3
"""Tensors of this many dimensions and more have channels that can be last."""


def import_with_calls(proto: onnx.ModelProto, calls: Mapping[str, ExternCall]) -> Any:
    """A Relax module of an ONNX model, some of whose nodes are calls.

    Args:
        proto: The model.
        calls: Calls by the type of their nodes, which is the symbol called.
    """
    return _Importer(calls).read(proto)


class _Importer(KernelImporter):
    """The importer. It also tracks the values that are stored channels-last.

    If two such functions follow each other, nothing is transposed between them. Elementwise operators between them
    become one loop in that layout, since TVM merges the transposes around them.
    """

    def __init__(self, calls: Mapping[str, ExternCall]) -> None:
        super().__init__()
        self._calls = calls
        self._turned: dict[Any, Any] = {}

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        native = [node for node in graph.node if node.op_type not in self._calls]
        super()._check_for_unsupported_ops(onnx.GraphProto(node=native))

    def _convert_operator(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:
        if op_name not in self._calls:
            return super()._convert_operator(op_name, inputs, attrs, opset)
        call = self._calls[op_name]
        last = call.function.channels_last
        (output,) = call.model.graph.outputs
        arguments = [self._channels_last(x) if last else x for x in inputs]
        result = self._call(op_name, arguments, output, last)
        return self._channels_first(result) if last else result

    def _call(self, symbol: str, arguments: list[Any], output: ir.Value, last: bool) -> Any:
        dtype, shape = elem_type(output), output.shape
        assert dtype is not None and shape is not None
        sizes = shape.numpy()
        if last and len(sizes) >= _FIRST_SPATIAL:
            sizes = (sizes[0], *sizes[2:], sizes[1])
        made = relax.TensorType(sizes, dtype.numpy().name)
        return self.bb.emit(relax.call_dps_packed(symbol, arguments, made))

    def _channels_last(self, x: Any) -> Any:
        """A value with its channels last: as it was made, or transposed, once."""
        rank = x.ty.ndim
        if rank < _FIRST_SPATIAL:
            return x
        if x not in self._turned:
            self._turned[x] = self.bb.emit(relax.op.permute_dims(x, [0, *range(2, rank), 1]))
        return self._turned[x]

    def _channels_first(self, y: Any) -> Any:
        """Return a function's output in the layout of the model."""
        rank = y.ty.ndim
        if rank < _FIRST_SPATIAL:
            return y
        turned = self.bb.emit(relax.op.permute_dims(y, [0, rank - 1, *range(1, rank - 1)]))
        self._turned[turned] = y
        return turned
