"""The work of kernels: operations and bytes as figured by hand, and labels by algorithm."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from collage.measure.operator_work import OperatorWork, work_of
from collage.measure.work import stated_shape


def value(name: str, *shape: int | str, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))


def node(op_type: str, inputs: list[ir.Value], output: ir.Value, **attributes: int) -> ir.Node:
    return ir.Node("", op_type, inputs, [ir.AttrInt64(k, v) for k, v in attributes.items()], outputs=[output])


def test_products_are_counted_as_defined() -> None:
    x, y = value("x", 1, 8, 10, 10), value("y", 1, 16, 10, 10)
    nodes = [
        node("Conv", [x, value("w", 16, 8, 3, 3)], y),
        node("Conv", [y, value("v", 16, 16, 1, 1)], value("z", 1, 16, 10, 10)),
        node("Conv", [y, value("u", 16, 1, 3, 3)], value("d", 1, 16, 10, 10), group=16),
        node("MatMul", [value("a", 5, 7), value("b", 7, 3)], value("c", 5, 3)),
        node("Relu", [y], value("r", 1, 16, 10, 10)),
        node("Reshape", [y, value("s", 2, dtype=ir.DataType.INT64)], value("t", 16, 100)),
    ]
    found = work_of(nodes, stated_shape).operators
    assert found["Conv"] == OperatorWork(1, 2 * 1600 * 72, 4 * (800 + 1152), 4 * 1600)
    assert found["Conv.pointwise"].flops == 2 * 1600 * 16
    assert found["Conv.depthwise"].flops == 2 * 1600 * 9
    assert found["MatMul"].flops == 2 * 5 * 7 * 3
    assert found["Relu"] == OperatorWork(1, 0, 6400, 6400)
    assert "Reshape" not in found


@pytest.mark.parametrize(("length", "unknown"), [(4, 0), ("n", 1)])
def test_open_lengths_are_counted(length: int | str, unknown: int) -> None:
    found = work_of([node("Relu", [value("x", length)], value("y", length))], stated_shape)
    assert found.unknown == unknown


def test_other_types_have_other_labels() -> None:
    x = value("x", 4, dtype=ir.DataType.FLOAT16)
    assert set(work_of([node("Relu", [x], x)], stated_shape).operators) == {"Relu/FLOAT16"}
