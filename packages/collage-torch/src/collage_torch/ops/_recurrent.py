"""Recurrent layers: torch's own kernels where they compute the same, the recurrence written out where not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from collage.toolchains import Unsupported
from collage_torch.ops._table import Call, op

__all__ = ["check", "layer", "torch_weights"]

Tensor = Any

Run = Callable[[Tensor, list[Tensor]], Any]
"""``(x, first states)`` to the output and the last states."""

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""ONNX's gates (iofc, zrh) in torch's order (ifgo, rzn)."""


def check(call: Call, lengths: Tensor | None, peepholes: Tensor | None = None) -> None:
    """Refuse variants that torch's layers do not have."""
    directions = 2 if call.get("direction", "forward") == "bidirectional" else 1
    wanted = [name.lower() for name in call.get("activations") or _DEFAULTS[call.op_type] * directions]
    if wanted != [name.lower() for name in _DEFAULTS[call.op_type]] * directions:
        raise Unsupported(f"{call.op_type} with activations {', '.join(wanted)}")
    if lengths is not None or peepholes is not None or call.get("clip") is not None or call.get("input_forget", 0):
        raise Unsupported(f"{call.op_type} with sequence lengths, peepholes, clip or input_forget")


def torch_weights(call: Call, w: Tensor, r: Tensor, b: Tensor | None) -> list[Tensor]:
    """Input weights, recurrent weights, and a bias for each, by direction."""
    gates, order = _GATES[call.op_type], _ORDER[call.op_type]
    ways, rows, hidden = r.shape
    if rows != gates * hidden or w.shape[:2] != (ways, rows) or (b is not None and b.shape != (ways, 2 * rows)):
        raise ValueError(f"{call.op_type} has weights that do not fit each other: {list(w.shape)} and {list(r.shape)}")

    def ordered(x: Tensor) -> Tensor:
        parts = x.chunk(gates, 0)
        return torch.cat([parts[i] for i in order]).contiguous()

    result = []
    for d in range(w.shape[0]):
        bias = torch.zeros(2 * w.shape[1], dtype=w.dtype, device=w.device) if b is None else b[d]
        result += [ordered(w[d]), ordered(r[d]), *(ordered(half) for half in bias.chunk(2))]
    return result


def layer(call: Call, x: Tensor, hidden: int, states: list[Tensor | None], run: Run) -> tuple[Tensor, list[Tensor]]:
    """Run a layer of one or two directions.

    Args:
        call: The node.
        x: Its input, ``[steps, batch, size]``; batch first where the node says so.
        hidden: Size of a state.
        states: The first ones, ``[directions, batch, hidden]``, None for zeros.
        run: Computes the layer, steps first: ``[steps, batch, directions * hidden]`` and the last states.

    Returns:
        ``[steps, directions, batch, hidden]``, and the last states.
    """
    directions = 2 if call.get("direction", "forward") == "bidirectional" else 1
    batch_first = bool(call.get("layout", 0))
    x = x.transpose(0, 1) if batch_first else x
    steps, batch = x.shape[:2]
    first = [
        torch.zeros(directions, batch, hidden, dtype=x.dtype, device=x.device)
        if state is None
        else (state.transpose(0, 1) if batch_first else state).contiguous()
        for state in states
    ]
    # Torch's LSTM takes any, and reads and writes beyond them.
    for state in first:
        if tuple(state.shape) != (directions, batch, hidden):
            raise ValueError(f"a first state of shape {list(state.shape)} where {[directions, batch, hidden]} belongs")
    backwards = call.get("direction") == "reverse"
    # Of a view, torch's product of all steps takes twice as long.
    x = (x.flip(0) if backwards else x).contiguous()
    y, *last = run(x, first)
    y = y.reshape(steps, batch, directions, hidden).transpose(1, 2)
    y = y.flip(0) if backwards else y
    if batch_first:
        y, last = y.permute(2, 0, 1, 3), [state.transpose(0, 1) for state in last]
    return y, last


def _run_with(call: Call, w: Tensor, r: Tensor, b: Tensor | None) -> Run:
    weights = call.once("weights", lambda: torch_weights(call, w, r, b), 1, 2, 3, given=w.device)
    return lambda x, first: _run(call, x, first, weights, w.shape[0] == 2)


def _run(call: Call, x: Tensor, first: list[Tensor], weights: list[Tensor], both: bool) -> Any:
    if x.shape[-1] != weights[0].shape[-1]:
        raise ValueError(f"{call.op_type} has weights for {weights[0].shape[-1]} numbers of a step, not {x.shape[-1]}")
    if call.op_type == "LSTM":
        return torch.lstm(x, first, weights, True, 1, 0.0, False, both, False)
    if call.op_type == "RNN":
        return torch.rnn_tanh(x, first[0], weights, True, 1, 0.0, False, both, False)
    if call.get("linear_before_reset", 0):
        return torch.gru(x, first[0], weights, True, 1, 0.0, False, both, False)
    ways = [
        _gru(x if way == 0 else x.flip(0), first[0][way], *weights[4 * way : 4 * way + 4]) for way in range(1 + both)
    ]
    ys = [y if way == 0 else y.flip(0) for way, (y, _) in enumerate(ways)]
    return torch.cat(ys, -1), torch.stack([state for _, state in ways])


def _gru(x: Tensor, state: Tensor, w: Tensor, r: Tensor, wb: Tensor, rb: Tensor) -> tuple[Tensor, Tensor]:
    """A GRU that resets its state before the product, which torch's does after it."""
    from_input = torch.nn.functional.linear(x, w, wb)
    size, ys = state.shape[-1], []
    for reset_x, update_x, new_x in (step.chunk(3, -1) for step in from_input):
        gates = torch.nn.functional.linear(state, r[: 2 * size], rb[: 2 * size])
        reset, update = (torch.sigmoid(a + b) for a, b in zip(gates.chunk(2, -1), (reset_x, update_x), strict=True))
        new = torch.tanh(new_x + torch.nn.functional.linear(reset * state, r[2 * size :], rb[2 * size :]))
        state = (1 - update) * new + update * state
        ys.append(state)
    return torch.stack(ys), state


@op("LSTM")
def lstm(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    p: Tensor | None = None,
) -> Any:
    check(call, lengths, p)
    y, (last_h, last_c) = layer(call, x, r.shape[-1], [h, c], _run_with(call, w, r, b))
    return (y, last_h, last_c)


@op("GRU", "RNN")
def gru(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
) -> Any:
    check(call, lengths)
    y, (last,) = layer(call, x, r.shape[-1], [h], _run_with(call, w, r, b))
    return (y, last)
