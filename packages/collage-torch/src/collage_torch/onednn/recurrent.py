"""LSTMs whose weights are packed once: torch's own call packs them again in every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from collage.toolchains import Unsupported
from collage_torch.ops import OPS, Call, Fused, constant_array
from collage_torch.ops._recurrent import check, layer, torch_weights

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["lstm"]

_LSTM = 2
"""The kind of layer, as torch numbers them."""


def lstm(node: ir.Node, call: Call, sizes: Sequence[int] | None) -> Fused | None:
    """An LSTM with constant weights; None if they vary, or torch's layers have no like of it.

    Args:
        node: The node.
        call: Its attributes.
        sizes: Sizes of its input ``[steps, batch, size]``, for which weights are packed; None if they vary.
    """
    x, w, r, b, lengths, h, c, peepholes = [*node.inputs, *[None] * 8][:8]
    try:
        check(call, lengths, peepholes)
    except Unsupported:
        return None
    if w is None or r is None or any(value is not None and value.const_value is None for value in (w, r, b)):
        return None
    packed = _PackedLstm(call, _tensor(w), _tensor(r), None if b is None else _tensor(b), sizes)
    return Fused((node,), node, (x, h, c), packed)


def _tensor(value: ir.Value) -> Any:
    return torch.from_numpy(constant_array(value.const_value))


class _PackedLstm:
    """An LSTM of one or two directions."""

    def __init__(self, call: Call, w: Any, r: Any, b: Any, sizes: Sequence[int] | None) -> None:
        self._call, self._hidden = call, r.shape[-1]
        self._plain: Callable[..., Any] = lambda x, h, c: OPS["LSTM"].function(call, x, w, r, b, None, h, c)
        weights = torch_weights(call, w, r, b)
        self._ways = []
        for way in range(w.shape[0]):
            from_input, from_state, *biases = weights[4 * way : 4 * way + 4]
            packed = torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight(
                from_input, from_state, self._hidden, way == 1, True, False, sizes
            )
            self._ways.append((*packed[:2], *biases))

    def __call__(self, x: Any, h: Any = None, c: Any = None) -> Any:
        if not x.numel():
            return self._plain(x, h, c)
        y, (last_h, last_c) = layer(self._call, x, self._hidden, [h, c], self._run)
        return y, last_h, last_c

    def _run(self, x: Any, first: list[Any]) -> Any:
        x, (h, c) = x.contiguous(), first
        ways = [
            torch.ops.aten.mkldnn_rnn_layer(
                x, *weights, h[way], c[way], way == 1, [], _LSTM, self._hidden, 1, True, False, False, False
            )[:3]
            for way, weights in enumerate(self._ways)
        ]
        ys, *last = zip(*ways, strict=True)
        return ys[0] if len(ys) == 1 else torch.cat(ys, -1), *(torch.stack(states) for states in last)
