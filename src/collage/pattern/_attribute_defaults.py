"""Defaults of attributes that ONNX states in words: they depend on the rank of an operand, so no schema holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

__all__ = ["depends_on_rank", "stated_defaults"]

_WEIGHTS = {"Conv": 1, "ConvTranspose": 1, "ConvInteger": 1, "QLinearConv": 3}
"""The operand that is the weight, of operators whose kernel_shape may follow from it."""

_WINDOWS = {
    **dict.fromkeys(_WEIGHTS, ("strides", "dilations", "pads")),
    "AveragePool": ("strides", "dilations", "pads"),
    "LpPool": ("strides", "dilations", "pads"),
    "MaxPool": ("strides", "dilations", "pads"),
    "MaxUnpool": ("strides", "pads"),
}
"""Operators with a window that moves along the spatial axes, and their attributes with a number for each of these axes."""

_SPATIAL_FROM = 2


def depends_on_rank(op_type: str) -> bool:
    """Return True if defaults of an operator's attributes follow from ranks."""
    return op_type in _WINDOWS or op_type == "Transpose" or op_type.startswith("Reduce")


def stated_defaults(node: ir.Node, schema: onnx.defs.OpSchema | None) -> Mapping[str, Any]:
    """Return the defaults of a standard operator's attributes that follow from ranks; of those only that are known.

    Args:
        node: An operator of ONNX's standard domain.
        schema: Its schema, which lists its attributes; None if there is none.
    """
    if schema is None:
        return {}
    defaults: dict[str, Callable[[], Any]] = {}
    if node.op_type in _WINDOWS:
        defaults = _window_defaults(node)
    elif node.op_type == "Transpose":
        defaults = {"perm": lambda: tuple(reversed(range(_rank(node, 0) or 0))) if _rank(node, 0) else None}
    elif node.op_type.startswith("Reduce"):
        defaults = {"axes": lambda: tuple(range(_rank(node, 0) or 0)) if _rank(node, 0) else None}
    found = {name: make() for name, make in defaults.items() if name in schema.attributes}
    return {name: value for name, value in found.items() if value is not None}


def _window_defaults(node: ir.Node) -> dict[str, Callable[[], Any]]:
    rank = _spatial_rank(node)
    if rank is None:
        return {"kernel_shape": lambda: _kernel_shape(node)}
    attributes = _WINDOWS[node.op_type]
    is_explicit = "auto_pad" not in node.attributes or node.attributes["auto_pad"].value in ("NOTSET", b"NOTSET", "")
    defaults: dict[str, Callable[[], Any]] = {"kernel_shape": lambda: _kernel_shape(node)}
    for name in ("strides", "dilations"):
        if name in attributes:
            defaults[name] = lambda: (1,) * rank
    if is_explicit:
        defaults["pads"] = lambda: (0,) * (2 * rank)
    if node.op_type == "ConvTranspose":
        defaults["output_padding"] = lambda: (0,) * rank
        if is_explicit and "output_shape" in node.attributes:
            defaults.pop("pads")  # They follow from the shape of the output.
    return defaults


def _spatial_rank(node: ir.Node) -> int | None:
    for name in ("kernel_shape", "strides", "dilations"):
        attribute = node.attributes.get(name)
        if attribute is not None and not attribute.is_ref():
            return len(attribute.as_ints())
    ranks = [_rank(node, index) for index in {0, _WEIGHTS.get(node.op_type, 0)}]
    return next((rank - _SPATIAL_FROM for rank in ranks if rank is not None), None)


def _kernel_shape(node: ir.Node) -> tuple[int, ...] | None:
    """The spatial dimensions of the weight, if it has one whose shape is known."""
    if node.op_type not in _WEIGHTS or len(node.inputs) <= _WEIGHTS[node.op_type]:
        return None
    weight = node.inputs[_WEIGHTS[node.op_type]]
    if weight is None:
        return None
    tensor = weight.const_value
    dims: Sequence[object] = tuple(weight.shape or ()) if tensor is None else tensor.shape.numpy()
    dims = dims[_SPATIAL_FROM:]
    known = tuple(dim for dim in dims if isinstance(dim, int))
    return known if known and len(known) == len(dims) else None


def _rank(node: ir.Node, index: int) -> int | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return None
    if value.shape is not None:
        return len(value.shape)
    return None if value.const_value is None else len(value.const_value.shape)
