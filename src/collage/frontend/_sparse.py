"""Sparse constants, made dense at the front door. Later rooms never see them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from collage._errors import ModelError
from collage.frontend._nodes import bodies_of
from collage.frontend._tensors import check_tensor

__all__ = ["check_sparse_tensor", "with_dense_constants"]

_LEAST_BITS = 8


def check_sparse_tensor(tensor: onnx.SparseTensorProto, where: str, *, max_rank: int, max_bytes: int) -> int:
    """Refuse a sparse tensor that cannot be made dense; return the bytes of the dense one.

    Raises:
        ModelError: Its parts do not fit each other, an index is out of bounds, or the dense tensor would be too large.
    """
    values = check_tensor(tensor.values, f"the values of {where}", max_rank=max_rank, max_bytes=max_bytes)
    indices = check_tensor(tensor.indices, f"the indices of {where}", max_rank=max_rank, max_bytes=max_bytes)
    if values.location is not None or indices.location is not None:
        raise ModelError(f"{where} is sparse and keeps its data in an external file, which is not supported")
    dtype = ir.DataType(tensor.values.data_type)
    if dtype == ir.DataType.STRING or dtype.bitwidth < _LEAST_BITS:
        raise ModelError(f"{where} is sparse and of the type {dtype.name.lower()}; store it densely")
    dense = onnx.TensorProto(data_type=dtype, dims=tensor.dims, data_location=onnx.TensorProto.EXTERNAL)
    nbytes = check_tensor(dense, where, max_rank=max_rank, max_bytes=max_bytes).nbytes
    count, rank = tensor.values.dims, len(tensor.dims)
    if len(count) != 1 or list(tensor.indices.dims) not in ([count[0]], [count[0], rank]):
        raise ModelError(
            f"{where} has values of the shape {list(count)[:8]} and indices of the shape {list(tensor.indices.dims)[:8]}, "
            "which do not fit each other"
        )
    if tensor.indices.data_type != onnx.TensorProto.INT64:
        raise ModelError(f"{where} has indices that are not int64")
    found = _indices(tensor)
    limits = np.array(tensor.dims, np.int64) if found.ndim > 1 else np.array(nbytes * 8 // dtype.bitwidth, np.int64)
    if found.size and not ((found >= 0) & (found < limits)).all():
        raise ModelError(f"{where} has an index that is out of bounds")
    return nbytes


def with_dense_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without sparse constants: a copy if it has any. They have been checked."""
    if not any(_has_sparse(nodes, graph) for nodes, graph in _parts(model)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for nodes, graph in _parts(copy):
        if graph is not None:
            graph.initializer.extend(map(_dense, graph.sparse_initializer))
            graph.ClearField("sparse_initializer")
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("sparse_tensor"):
                    dense = _dense(attribute.sparse_tensor)
                    attribute.CopyFrom(onnx.helper.make_attribute("value", dense))
    return copy


def _parts(model: onnx.ModelProto) -> Iterator[tuple[Sequence[onnx.NodeProto], onnx.GraphProto | None]]:
    """Yield the nodes of all graphs, bodies and functions, each with its graph."""
    waiting = [model.graph]
    for function in model.functions:
        yield function.node, None
        waiting += [body for node in function.node for body in bodies_of(node)]
    while waiting:
        graph = waiting.pop()
        yield graph.node, graph
        waiting += [body for node in graph.node for body in bodies_of(node)]


def _has_sparse(nodes: Sequence[onnx.NodeProto], graph: onnx.GraphProto | None) -> bool:
    if graph is not None and graph.sparse_initializer:
        return True
    return any(attribute.HasField("sparse_tensor") for node in nodes for attribute in node.attribute)


def _indices(tensor: onnx.SparseTensorProto) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.asarray(onnx.numpy_helper.to_array(tensor.indices), np.int64)


def _dense(tensor: onnx.SparseTensorProto) -> onnx.TensorProto:
    values = ir.serde.deserialize_tensor(tensor.values).numpy()
    array = np.zeros(tuple(tensor.dims), values.dtype)
    indices = _indices(tensor)
    if indices.ndim > 1:
        steps = [math.prod(tensor.dims[axis + 1 :]) for axis in range(len(tensor.dims))]
        indices = indices @ np.array(steps, np.int64)
    array.reshape(-1)[indices] = values
    return onnx.TensorProto(
        name=tensor.values.name, data_type=tensor.values.data_type, dims=tensor.dims, raw_data=array.tobytes()
    )
