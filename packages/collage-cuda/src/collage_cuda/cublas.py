"""cuBLAS: matrix products, through PyTorch; bias and activation in the product's own kernel where cuBLASLt has it.

cuBLASLt adds a bias vector, and applies Relu or GELU (the form with tanh), before a result leaves the registers. Torch
exposes that for two-dimensional products; batches of vectors are flattened to one. Other products are cuBLAS's batched ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collage_cuda.cuda_library import TorchCudaLibrary
from collage_cuda.linear_group import find_linear

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage_torch.ops import Fused

__all__ = ["CublasToolchain"]

_ACTIVATIONS = frozenset(("relu", "gelu_tanh"))


class CublasToolchain(TorchCudaLibrary):
    """Runs matrix products with cuBLAS and cuBLASLt."""

    name = "cublas"
    targets = ("cuda -libs=cublas",)
    packages = ("nvidia-cublas", "nvidia-cublas-cu12")
    operators = frozenset(("MatMul", "Gemm", "Add", "Relu", "Gelu"))
    heads = frozenset(("MatMul", "Gemm"))
    what = "matrix products, a constant bias, Relu and Gelu"

    def patterns(self) -> Mapping[str, Any]:
        """Products; with constant weights, also the operators that cuBLASLt computes in the same pass."""
        from collage.pattern import is_const, is_op, maybe, wildcard

        product = is_op("MatMul")(wildcard(), wildcard())
        gemm = is_op("Gemm")(wildcard(), wildcard(), maybe(wildcard()))
        biased = is_op("Add")(is_op("MatMul")(wildcard(), is_const()), is_const())
        linear = biased | is_op("Gemm")(wildcard(), is_const(), maybe(is_const()))
        gelu = is_op("Gelu")(linear).with_attr("approximate", "tanh")
        return {
            "matmul": product,
            "gemm": gemm,
            "matmul_bias": biased,
            "linear_relu": is_op("Relu")(linear),
            "linear_gelu": gelu,
        }

    def group(self, head: ir.Node, device: str, precision: str) -> Fused | None:
        """Return the call for a product."""
        return _group(head, device, precision)


@dataclass(frozen=True)
class _Linear:
    """``activation(x @ w + b)``, one call of cuBLASLt.

    Attributes:
        w: [K, N], on the device.
        b: [N].
        activation: ``relu``, ``gelu_tanh`` or nothing.
    """

    w: Any
    b: Any
    activation: str

    def __call__(self, x: Any) -> Any:
        import torch

        rows = x.to(self.w.dtype).reshape(-1, self.w.shape[0])
        if self.activation:
            y = torch._addmm_activation(self.b, rows, self.w, use_gelu=self.activation == "gelu_tanh")
        else:
            y = torch.addmm(self.b, rows, self.w)
        return y.reshape(*x.shape[:-1], self.w.shape[1]).to(torch.float32)


def _group(node: ir.Node, device: str, precision: str) -> Fused | None:
    import torch

    from collage_torch.ops import Fused

    linear = find_linear(node, _ACTIVATIONS)
    if linear is None or (linear.b is None and not linear.activation):
        inputs = tuple(value for value in node.inputs if value is not None)
        fits = len(inputs) == len(node.inputs)
        return Fused((node,), node, inputs, _plain_product(node, precision)) if fits else None
    dtype = torch.float16 if precision == "f16" else torch.float32
    weights = torch.from_numpy(linear.w).to(device, dtype).contiguous()
    bias = torch.zeros(linear.w.shape[1]) if linear.b is None else torch.from_numpy(linear.b)
    function = _Linear(weights, bias.to(device, dtype), linear.activation)
    return Fused(linear.nodes, linear.nodes[-1], (linear.x,), function)


def _plain_product(node: ir.Node, precision: str) -> Callable[..., Any]:
    import torch

    from collage_torch.ops import OPS, Call

    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    call, function = Call(node.op_type, 21, attributes, 1), OPS[node.op_type].function
    if precision != "f16":
        return lambda *inputs: function(call, *inputs).contiguous()
    return lambda *inputs: function(call, *(x.to(torch.float16) for x in inputs)).to(torch.float32).contiguous()
