"""Matrix products with constant weights, and the operators that follow them in graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Linear", "constant_of", "find_linear", "only_user"]


@dataclass(frozen=True)
class Linear:
    """``activation(x @ w + b)``.

    Attributes:
        nodes: All nodes, in order.
        x: The factor on the left: [..., K].
        w: [K, N].
        b: [N], None if nothing is added.
        activation: ``relu``, ``gelu`` (with erf), ``gelu_tanh``, or nothing.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    w: np.ndarray[Any, Any]
    b: np.ndarray[Any, Any] | None
    activation: str


def find_linear(node: ir.Node, activations: frozenset[str]) -> Linear | None:
    """Return the group that begins with a MatMul or Gemm, None if its weights are not constant or it is scaled.

    Args:
        node: The product.
        activations: Activations that may be part of it.
    """
    if len(node.inputs) < 2 or None in node.inputs:
        return None
    w, x = constant_of(node.inputs[1]), node.inputs[0]
    if w is None or w.ndim != 2 or 0 in w.shape or x is None or x.shape is None or len(x.shape) < 2:
        return None
    nodes: tuple[ir.Node, ...] = (node,)
    b = None
    if node.op_type == "Gemm":
        scales = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
        if node.attributes.get_int("transA", 0) or scales != [1, 1]:
            return None
        w = w.T if node.attributes.get_int("transB", 0) else w
        if len(node.inputs) > 2 and (b := _bias(node.inputs[2], w.shape[1])) is None:
            return None
    elif (added := only_user(node)) is not None and added.op_type == "Add":
        other = added.inputs[1] if added.inputs[0] is node.outputs[0] else added.inputs[0]
        if (b := _bias(other, w.shape[1])) is not None:
            nodes = (node, added)
    last = only_user(nodes[-1])
    activation = _activation(last)
    if last is not None and activation in activations:
        return Linear((*nodes, last), x, w, b, activation)
    return Linear(nodes, x, w, b, "")


def _activation(node: ir.Node | None) -> str:
    if node is None or node.op_type not in ("Relu", "Gelu"):
        return ""
    if node.op_type == "Relu":
        return "relu"
    return "gelu_tanh" if node.attributes.get_string("approximate", "none") == "tanh" else "gelu"


def _bias(value: ir.Value | None, width: int) -> np.ndarray[Any, Any] | None:
    """A constant that is added to every row, as a vector; None if it is another."""
    array = constant_of(value)
    return array.reshape(-1) if array is not None and array.shape in ((width,), (1, width)) else None


def constant_of(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """The values of a constant, None if it is none."""
    from collage_torch.ops import constant_array

    if value is None or value.const_value is None:
        return None
    array: np.ndarray[Any, Any] = constant_array(value.const_value)
    return array


def only_user(node: ir.Node) -> ir.Node | None:
    """The one node that reads a node's first output, if it leaves the graph nowhere else."""
    y = node.outputs[0]
    uses = list(y.uses())
    user: ir.Node | None = uses[0][0] if len(uses) == 1 and not y.is_graph_output() else None
    return user if user is not None and user.domain == "" else None
