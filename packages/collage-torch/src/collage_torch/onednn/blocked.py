"""Chains of 3-D convolutions and pools, between which tensors stay in the blocked layout that oneDNN computes in.

Where a filter has a side of more than three, oneDNN takes 10 to 25 % longer on channels-last tensors than between blocked
ones. These are opaque to everything else, so it pays only from one call of oneDNN's to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from collage_torch.op_groups import call_of, constant, only_user, static_shape
from collage_torch.ops import Fused
from collage_torch.ops._neural import Window

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["blocked_chain"]

_RANK = 5
_LARGE = 4
"""Longest side of a filter from which blocked tensors pay: with (1, 3, 3) they take 29 % longer, with 3 x 3 x 3 as long."""


@dataclass(frozen=True)
class _Link:
    nodes: tuple[ir.Node, ...]
    make: Callable[[], Callable[[Any], Any]]
    is_pool: bool = False
    is_large: bool = False
    is_positive: bool = False


def blocked_chain(node: ir.Node) -> Fused | None:
    """A chain that begins with this convolution of a large filter, up to the pools after the last such one.

    Returns:
        None if the convolution is another one, or has neither a pool nor a second convolution after it.
    """
    links: list[_Link] = []
    following = node if _is_large(constant(node, 1)) else None
    while following is not None and (link := _link(following)) is not None:
        # OneDNN's pools ignore NaN, and make negative infinity the lowest number. Its ReLU has left neither.
        if link.is_pool and links and not links[-1].is_positive:
            break
        links.append(link)
        following = only_user(link.nodes[-1])
    if not links:
        return None
    end = max(i for i, link in enumerate(links) if link.is_large) + 1
    while end < len(links) and links[end].is_pool:
        end += 1
    if end == 1:
        return None
    nodes = tuple(node for link in links[:end] for node in link.nodes)
    return Fused(nodes, nodes[-1], (node.inputs[0],), partial(_run, [link.make() for link in links[:end]]))


def _run(calls: list[Callable[[Any], Any]], x: Any) -> Any:
    x = x.contiguous().to_mkldnn()
    for call in calls:
        x = call(x)
    return x.to_dense()


def _link(node: ir.Node) -> _Link | None:
    shape = static_shape(node.inputs[0]) if node.domain == "" and node.inputs else None
    if shape is None or len(shape) != _RANK or 0 in shape:
        return None
    if node.op_type == "Conv":
        return _convolution(node, shape)
    return _max_pool(node) if node.op_type == "MaxPool" and len(node.outputs) == 1 else None


def _convolution(node: ir.Node, shape: list[int]) -> _Link | None:
    w, b, call = constant(node, 1), constant(node, 2), call_of(node)
    is_bound = len(node.inputs) < 3 or node.inputs[2] is None or b is not None
    if w is None or w.dtype != torch.float32 or not is_bound or call.get("group", 1) != 1:
        return None
    where = Window(call, shape[2:], w.shape[2:])
    if not where.symmetric:
        return None
    how = (where.begin, where.stride, where.dilation, 1)
    user = only_user(node)
    has_relu = user is not None and user.op_type == "Relu"
    nodes = (node, user) if user is not None and has_relu else (node,)
    make = partial(_packed, w, b, how, shape, has_relu)
    return _Link(nodes, make, is_large=_is_large(w), is_positive=has_relu)


def _is_large(w: Any) -> bool:
    return w is not None and w.ndim == _RANK and max(w.shape[2:]) >= _LARGE


def _packed(w: Any, b: Any, how: tuple[Any, ...], shape: list[int], has_relu: bool) -> Callable[[Any], Any]:
    """A convolution with packed weights. They are packed only when it is known to be part of a chain."""
    packed = torch._C._nn.mkldnn_reorder_conv3d_weight(w.contiguous().to_mkldnn(), *how, shape)

    def convolve(x: Any) -> Any:
        y = torch.mkldnn_convolution(x, packed, b, *how)
        return torch.relu_(y) if has_relu else y

    return convolve


def _max_pool(node: ir.Node) -> _Link | None:
    call = call_of(node)
    where = Window(call, [0] * (_RANK - 2), call.get("kernel_shape"))
    is_plain = call.get("auto_pad", "NOTSET") == "NOTSET" and not call.get("ceil_mode", 0)
    if not is_plain or not where.symmetric or set(where.dilation) != {1}:
        return None
    if any(2 * pad > side for pad, side in zip(where.begin, where.kernel, strict=True)):
        return None  # Torch refuses these.
    pool = partial(torch.max_pool3d, kernel_size=where.kernel, stride=where.stride, padding=where.begin)
    return _Link((node,), lambda: pool, is_pool=True, is_positive=True)
