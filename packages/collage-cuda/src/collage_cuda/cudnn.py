"""cuDNN: convolutions with bias, residual and Relu in one call, through PyTorch's bindings.

Two decisions, and why:

* **Layout.** Tensor cores read channels last: in TF32 and f16 cuDNN would otherwise transpose on every call, so activations
  and weights are laid out like that. In f32 it computes without tensor cores, and its fast algorithms (Winograd's, FFT) are
  written for [N, C, H, W], which is also what crosses a kernel's border: nothing is transposed.
* **Benchmark mode.** Which of its algorithms is fastest depends on the shape by factors, and its heuristics miss. A kernel
  is made once and runs often, so the first call of each shape tries them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collage_cuda.cuda_library import TorchCudaLibrary
from collage_cuda.linear_group import constant_of, only_user

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage_torch.ops import Fused

__all__ = ["CudnnToolchain"]


class CudnnToolchain(TorchCudaLibrary):
    """Runs convolutions with cuDNN."""

    name = "cudnn"
    targets = ("cuda -libs=cudnn",)
    packages = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
    operators = frozenset(("Conv", "ConvTranspose", "Add", "Relu"))
    heads = frozenset(("Conv", "ConvTranspose"))
    what = "convolutions with constant weights, a residual and Relu"

    def patterns(self) -> Mapping[str, Any]:
        """Convolutions, with the operators that cuDNN computes in the same pass."""
        from collage.pattern import is_const, is_op, maybe, wildcard

        conv = is_op("Conv")(wildcard(), is_const(), maybe(is_const()))
        transposed = is_op("ConvTranspose")(wildcard(), is_const(), maybe(is_const()))
        residual = is_op("Relu")(is_op("Add")(conv, ~is_const() & wildcard()))
        return {
            "conv": conv,
            "conv_relu": is_op("Relu")(conv),
            "conv_add_relu": residual,
            "conv_transpose": transposed,
        }

    def group(self, head: ir.Node, device: str, precision: str) -> Fused | None:
        """Return the call for a convolution."""
        return _group(head, device, precision)


def _group(node: ir.Node, device: str, precision: str) -> Fused | None:
    from collage_torch.ops import Fused

    w, b = (constant_of(node.inputs[i]) if i < len(node.inputs) else None for i in (1, 2))
    given = len(node.inputs) > 2 and node.inputs[2] is not None
    if w is None or (given and b is None) or w.ndim not in (3, 4, 5) or 0 in w.shape or node.inputs[0] is None:
        return None
    geometry = _geometry(node, w)
    if geometry is None:
        return None
    nodes, added, relu = _epilogue(node)
    function = _Convolution(w, b, geometry, relu, device, precision)
    inputs = (node.inputs[0],) if added is None else (node.inputs[0], added)
    return Fused(nodes, nodes[-1], inputs, function)


def _epilogue(node: ir.Node) -> tuple[tuple[ir.Node, ...], ir.Value | None, bool]:
    """The nodes after a convolution that are part of the call, the added value, and True if Relu follows."""
    if node.op_type == "ConvTranspose" or (user := only_user(node)) is None:
        return (node,), None, False
    if user.op_type == "Relu":
        return (node, user), None, True
    last = only_user(user)
    if user.op_type == "Add" and last is not None and last.op_type == "Relu":
        left, right = user.inputs
        other = right if left is node.outputs[0] else left
        if other is not None and other is not node.outputs[0] and _same_static_shape(other, node.outputs[0]):
            return (node, user, last), other, True
    return (node,), None, False


@dataclass(frozen=True)
class _Geometry:
    """Return the geometry of the window, with spatial dimensions of size 1 put first until there are two.

    Attributes:
        pad: Padding on both sides.
        uneven: Padding beforehand, in the order of ``torch.nn.functional.pad``; empty if both sides are equal.
        stride: Steps.
        dilation: Distances within the window.
        groups: Groups of channels.
        extra: Output padding of a transposed convolution; None for any other.
    """

    pad: list[int]
    uneven: list[int]
    stride: list[int]
    dilation: list[int]
    groups: int
    extra: list[int] | None


def _geometry(node: ir.Node, w: Any) -> _Geometry | None:
    from collage_torch.ops import Call
    from collage_torch.ops._neural import Window

    attributes = {name: _plain(attribute.value) for name, attribute in node.attributes.items()}
    call = Call(node.op_type, 21, attributes, 1)
    x = node.inputs[0]
    sizes = [size if isinstance(size, int) else 0 for size in (x.shape if x is not None and x.shape else ())][2:]
    transposed = node.op_type == "ConvTranspose"
    if call.get("auto_pad", "NOTSET").startswith("SAME") and (transposed or not all(sizes) or not sizes):
        return None
    where = Window(call, sizes or [0] * (w.ndim - 2), w.shape[2:])
    if transposed and (not where.symmetric or call.get("output_shape") is not None):
        return None
    missing = 4 - w.ndim
    zeros, ones = [0] * missing, [1] * missing
    return _Geometry(
        pad=zeros + (where.begin if where.symmetric else [0] * len(where.begin)),
        uneven=[] if where.symmetric else where.pad,
        stride=ones + where.stride,
        dilation=ones + where.dilation,
        groups=call.get("group", 1),
        extra=zeros + (call.get("output_padding") or [0] * (w.ndim - 2)) if transposed else None,
    )


class _Convolution:
    """One call of cuDNN."""

    def __init__(self, w: Any, b: Any, geometry: _Geometry, relu: bool, device: str, precision: str) -> None:
        import torch

        self._torch = torch
        self._geometry = geometry
        self._relu = relu
        self._tf32 = precision == "tf32"
        self._dtype = torch.float16 if precision == "f16" else torch.float32
        self._flat = w.ndim == 3
        self._layout = torch.contiguous_format
        if precision != "f32":
            self._layout = torch.channels_last_3d if w.ndim == 5 else torch.channels_last
        w = torch.from_numpy(w)
        w = w.unsqueeze(2) if self._flat else w
        self._w = w.to(device, self._dtype).contiguous(memory_format=self._layout)
        self._b = None if b is None else torch.from_numpy(b).to(device, self._dtype)

    def __call__(self, x: Any, added: Any = None) -> Any:
        x = self._prepared(x)
        if self._geometry.uneven:
            x = self._torch.nn.functional.pad(x, self._geometry.uneven).contiguous(memory_format=self._layout)
        y = self._called(x, None if added is None else self._prepared(added))
        return (y.squeeze(2) if self._flat else y).to(self._torch.float32).contiguous()

    def _prepared(self, x: Any) -> Any:
        x = x.unsqueeze(2) if self._flat else x
        return x.to(self._dtype).contiguous(memory_format=self._layout)

    def _called(self, x: Any, added: Any) -> Any:
        aten, g, w, b = self._torch.ops.aten, self._geometry, self._w, self._b
        if self._relu:
            where = (g.stride, g.pad, g.dilation, g.groups)
            if added is None:
                return aten.cudnn_convolution_relu(x, w, b, *where)
            return aten.cudnn_convolution_add_relu(x, w, added, 1.0, b, *where)
        how = (True, False, self._tf32)  # benchmark, deterministic, TF32
        if g.extra is not None:
            y = aten.cudnn_convolution_transpose(x, w, g.pad, g.extra, g.stride, g.dilation, g.groups, *how)
        else:
            y = aten.cudnn_convolution(x, w, g.pad, g.stride, g.dilation, g.groups, *how)
        return y if b is None else y.add_(b.reshape(1, -1, *([1] * (y.ndim - 2))))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value


def _same_static_shape(left: ir.Value, right: ir.Value) -> bool:
    if left.shape is None or right.shape is None or left.const_value is not None:
        return False
    sizes = [
        [size for size in value.shape if isinstance(size, int)] for value in (left, right) if value.shape is not None
    ]
    return sizes[0] == sizes[1] and len(sizes[0]) == len(left.shape)
