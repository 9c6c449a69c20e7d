"""Windows of pools that are larger than the picture that they slide over."""

from __future__ import annotations

import onnx_ir as ir

from collage.numerics.value_store import ValueStore

__all__ = ["windows_fit"]

_POOLS = frozenset(("AveragePool", "LpPool", "MaxPool"))


def windows_fit(model: ir.Model, values: ValueStore) -> bool:
    """Return True if every pool has room for its window, at the lengths at which values were stored.

    Otherwise ONNX defines no result: the number of windows is a quotient with a negative numerator, which ONNX Runtime rounds
    to one window, and TVM to none.
    """
    return all(_fits(node, values) for node in model.graph if node.op_type in _POOLS and node.domain == "")


def _fits(node: ir.Node, values: ValueStore) -> bool:
    name = str(node.inputs[0].name) if node.inputs[0] is not None else ""
    kernel = _integers(node, "kernel_shape")
    if name not in values or not kernel or node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return True
    axes = len(kernel)
    pads, dilations = _integers(node, "pads") or [0] * 2 * axes, _integers(node, "dilations") or [1] * axes
    shape = values.shape(name)[-axes:]
    return all(
        (size - 1) * dilation < length + before + after
        for size, dilation, length, before, after in zip(
            kernel, dilations, shape, pads[:axes], pads[axes:], strict=True
        )
    )


def _integers(node: ir.Node, name: str) -> list[int]:
    return list(node.attributes.get_ints(name, []))
