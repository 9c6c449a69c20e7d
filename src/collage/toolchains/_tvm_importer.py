"""TVM's ONNX importer, with the operators written anew that it reads wrongly or writes so that TVM cannot compile them.

* The greatest of nothing but infinities is to TVM the greatest finite number, with its sign: where attention masks a whole
  row, ONNX then yields 0 and TVM's code NaN.
* ``Min``, ``Max``, ``Mean`` and ``Sum`` become a reduction of stacked inputs: a copy of each, where loops would have fused, and
  a division by zero in TVM's own process when it lays out a stack of scalars.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import tvm
from tvm import relax, te, tirx
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

__all__ = ["KernelImporter", "import_onnx"]

_AXES_ARE_INPUTS = 18
"""The opset from which reductions to extremes have their axes as an input."""


def import_onnx(proto: onnx.ModelProto) -> Any:
    """A Relax module of an ONNX model."""
    return KernelImporter().read(proto)


class KernelImporter(ONNXGraphImporter):  # type: ignore[misc]
    """The importer, with converters of our own before TVM's."""

    def __init__(self) -> None:
        super().__init__(None, "float32")

    def read(self, proto: onnx.ModelProto) -> Any:
        """A Relax module of an ONNX model."""
        version = next(opset.version for opset in proto.opset_import if opset.domain in ("", "ai.onnx"))
        return self.from_onnx(proto.graph, version)

    def _convert_operator(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:
        if op_name in _PAIRWISE:
            return self.bb.normalize(_pairwise(op_name, inputs, self.bb))
        if op_name in _EXTREMES and _is_float(inputs[0]):
            axes, keepdims = _axes(inputs, attrs, opset), bool(attrs.get("keepdims", 1))
            if axes:
                reduce = _EXTREMES[op_name]
                return self.bb.emit_te(
                    lambda x: _extreme(x, axes, keepdims, reduce), inputs[0], primfunc_name_hint=op_name.lower()
                )
        return super()._convert_operator(op_name, inputs, attrs, opset)


_PAIRWISE: Mapping[str, Callable[[Any, Any], Any]] = {
    "Max": relax.op.maximum,
    "Mean": relax.op.add,
    "Min": relax.op.minimum,
    "Sum": relax.op.add,
}


def _pairwise(op_name: str, inputs: Sequence[Any], bb: Any) -> Any:
    total = functools.reduce(lambda x, y: bb.normalize(_PAIRWISE[op_name](x, y)), inputs)
    if op_name == "Mean":
        return relax.op.divide(total, relax.const(len(inputs), total.ty.dtype))
    return total


def _is_float(x: Any) -> bool:
    return str(x.ty.dtype).startswith(("float", "bfloat"))


def _axes(inputs: Sequence[Any], attrs: Mapping[str, Any], opset: int) -> tuple[int, ...]:
    """The axes to reduce, from the first; none where nothing is reduced, or where they are not known yet."""
    rank = inputs[0].ty.ndim
    if opset < _AXES_ARE_INPUTS:
        axes = attrs.get("axes", ())
    elif len(inputs) < 2 or inputs[1] is None:
        axes = ()
    elif isinstance(inputs[1], tvm.ir.GenericConst):
        axes = inputs[1].value.numpy().tolist()
    else:
        return ()
    if not axes:
        return () if attrs.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({axis % rank for axis in axes}))


def _infinity(dtype: Any) -> Any:
    return tirx.const(float("inf"), dtype)


_EXTREMES = {
    "ReduceMax": te.comm_reducer(lambda x, y: tirx.max(x, y), lambda dtype: -_infinity(dtype)),
    "ReduceMin": te.comm_reducer(lambda x, y: tirx.min(x, y), _infinity),
}
"""Reductions that begin at an infinity."""


def _extreme(x: Any, axes: Sequence[int], keepdims: bool, reduce: Callable[..., Any]) -> Any:
    """The reduction of a tensor over some axes, as an expression of TVM."""
    reduced = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes}
    kept = [axis for axis in range(len(x.shape)) if axis not in reduced]
    shape = [1 if axis in reduced else x.shape[axis] for axis in range(len(x.shape)) if keepdims or axis not in reduced]

    def element(*place: Any) -> Any:
        spatial = dict(zip(range(len(x.shape)) if keepdims else kept, place, strict=True))
        return reduce(
            x(*(reduced.get(axis, spatial.get(axis)) for axis in range(len(x.shape)))), axis=[*reduced.values()]
        )

    return te.compute(shape, element, name="extreme")
