"""cuBLAS: matrix products, through PyTorch; bias and activation in the product's own kernel where cuBLASLt has it.

cuBLASLt adds a bias vector, and applies Relu or GELU (the form with tanh), before a result leaves the registers. Torch
exposes that for two-dimensional products; batches of vectors are flattened to one. Other products are cuBLAS's batched ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collage.toolchains._contract import PatternEntry
from collage.toolchains._cuda_library import TorchCudaLibrary

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.toolchains._torch_ops import Fused

__all__ = ["CublasToolchain"]


class CublasToolchain(TorchCudaLibrary):
    """Runs matrix products with cuBLAS and cuBLASLt."""

    name = "cublas"
    targets = ("cuda -libs=cublas",)
    packages = ("nvidia-cublas", "nvidia-cublas-cu12")
    operators = frozenset(("MatMul", "Gemm", "Add", "Relu", "Gelu"))
    what = "matrix products, a constant bias, Relu and Gelu"

    def pattern_table(self) -> Sequence[PatternEntry]:
        """Products; with constant weights, also what cuBLASLt computes in the same pass."""
        from collage.pattern import NonLeafExternUse, is_const, is_op, maybe, wildcard

        product = is_op("MatMul")(wildcard(), wildcard())
        gemm = is_op("Gemm")(wildcard(), wildcard(), maybe(wildcard()))
        biased = is_op("Add")(is_op("MatMul")(wildcard(), is_const()), is_const())
        linear = biased | is_op("Gemm")(wildcard(), is_const(), maybe(is_const()))
        gelu = is_op("Gelu")(linear).with_attr("approximate", "tanh")
        rows = {
            "cublas.matmul": product,
            "cublas.gemm": gemm,
            "cublas.matmul_bias": biased,
            "cublas.linear_relu": is_op("Relu")(linear),
            "cublas.linear_gelu": gelu,
        }
        for pattern in rows.values():
            pattern.add_graph_constraint(NonLeafExternUse(False))
        return [PatternEntry(label, pattern) for label, pattern in rows.items()]

    def find_groups(self, graph: ir.Graph, device: str, precision: str) -> Sequence[Fused]:
        """A group for each product."""
        return [
            group
            for node in graph
            if node.op_type in ("MatMul", "Gemm") and (group := _group(node, device, precision)) is not None
        ]


@dataclass(frozen=True)
class _Linear:
    """``activation(x @ w + b)``, one call of cuBLASLt.

    Attributes:
        w: [K, N], on the device.
        b: [N].
        activation: ``relu``, ``gelu`` or nothing.
    """

    w: Any
    b: Any
    activation: str

    def __call__(self, x: Any) -> Any:
        import torch

        rows = x.to(self.w.dtype).reshape(-1, self.w.shape[0])
        if self.activation:
            y = torch._addmm_activation(self.b, rows, self.w, use_gelu=self.activation == "gelu")
        else:
            y = torch.addmm(self.b, rows, self.w)
        return y.reshape(*x.shape[:-1], self.w.shape[1]).to(torch.float32)


def _group(node: ir.Node, device: str, precision: str) -> Fused | None:
    from collage.toolchains._torch_ops import Fused

    inputs = [value for value in node.inputs if value is not None]
    if len(inputs) < 2 or len(inputs) != len(node.inputs):
        return None
    linear = _linear(node, device, precision)
    if linear is not None:
        return linear
    return Fused((node,), node, tuple(inputs), _plain_product(node, precision))


def _linear(node: ir.Node, device: str, precision: str) -> Fused | None:
    """A product with constant weights, and what follows it that cuBLASLt computes along."""
    import torch

    from collage.toolchains._torch_ops import Fused

    w, x = _constant(node.inputs[1]), node.inputs[0]
    if w is None or w.ndim != 2 or 0 in w.shape or x is None or x.shape is None or len(x.shape) < 2:
        return None
    nodes: tuple[ir.Node, ...] = (node,)
    b = None
    if node.op_type == "Gemm":
        if node.attributes.get_int("transA", 0) or any(
            node.attributes.get_float(name, 1.0) != 1 for name in ("alpha", "beta")
        ):
            return None
        w = w.T if node.attributes.get_int("transB", 0) else w
        if len(node.inputs) > 2 and (b := _bias(node.inputs[2], w.shape[1])) is None:
            return None
    elif (added := _only_user(node)) is not None and added.op_type == "Add":
        other = added.inputs[1] if added.inputs[0] is node.outputs[0] else added.inputs[0]
        if (b := _bias(other, w.shape[1])) is not None:
            nodes = (node, added)
    activation, last = "", _only_user(nodes[-1])
    if last is not None and last.op_type == "Relu":
        activation = "relu"
    elif last is not None and last.op_type == "Gelu" and last.attributes.get_string("approximate", "none") == "tanh":
        activation = "gelu"
    if activation and last is not None:
        nodes = (*nodes, last)
    if b is None and not activation:
        return None
    dtype = torch.float16 if precision == "f16" else torch.float32
    weights = torch.from_numpy(w).to(device, dtype).contiguous()
    bias = torch.zeros(w.shape[1]) if b is None else torch.from_numpy(b)
    return Fused(nodes, nodes[-1], (x,), _Linear(weights, bias.to(device, dtype), activation))


def _plain_product(node: ir.Node, precision: str) -> Callable[..., Any]:
    import torch

    from collage.toolchains._torch_ops import OPS, Call

    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    call, function = Call(node.op_type, 21, attributes, 1), OPS[node.op_type].function
    if precision != "f16":
        return lambda *inputs: function(call, *inputs).contiguous()
    return lambda *inputs: function(call, *(x.to(torch.float16) for x in inputs)).to(torch.float32).contiguous()


def _bias(value: ir.Value | None, width: int) -> Any:
    """A constant that is added to every row, as a vector; None where it is another."""
    array = None if value is None else _constant(value)
    fits = array is not None and array.size == width and array.shape in ((width,), (1, width))
    return array.reshape(-1) if array is not None and fits else None


def _constant(value: ir.Value | None) -> Any:
    from collage.toolchains._torch_ops import constant_array

    return None if value is None or value.const_value is None else constant_array(value.const_value)


def _only_user(node: ir.Node) -> ir.Node | None:
    y = node.outputs[0]
    uses = list(y.uses())
    user: ir.Node | None = uses[0][0] if len(uses) == 1 and not y.is_graph_output() else None
    return user if user is not None and user.domain == "" else None
