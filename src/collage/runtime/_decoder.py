"""Decoders: their interface, by which tokens are fed to them one after the other.

A model is a decoder if it takes ``past`` caches and returns ``present`` ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.runtime._signature import Port

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.frontend import Lengths

__all__ = ["Decoder", "decoder_of", "token_symbol", "with_empty_past", "with_length_0"]

_PAST, _PRESENT = ("past_key_values", "past"), ("present", "present_key_values")


@dataclass(frozen=True, slots=True)
class Decoder:
    """The interface of a decoder, by which tokens can be fed to it one after the other.

    Attributes:
        tokens: The input of tokens.
        caches: Each input that holds a cache, with the output that is its next value.
        others: Further inputs: masks and positions.
    """

    tokens: Port
    caches: Mapping[Port, str]
    others: tuple[Port, ...]

    def feeds(self, rows: int, done: int, caches: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return inputs for tokens that follow others.

        Args:
            rows: Number of tokens.
            done: Number of tokens before them.
            caches: The outputs of the last run; None before the first one.
        """
        made = {self.tokens.name: _filled(self.tokens, rows)}
        for port, output in self.caches.items():
            made[port.name] = _filled(port, done) if caches is None else caches[output]
        for port in self.others:
            if "mask" in port.name:
                made[port.name] = _filled(port, done + rows) + np.ones((), port.dtype)
            else:
                ids = _filled(port, rows)
                made[port.name] = ids + np.arange(done, done + ids.shape[-1]).astype(port.dtype)
        return made


def decoder_of(inputs: Sequence[Port], outputs: Sequence[Port]) -> Decoder | None:
    """Return a model's interface as a decoder's; None if it is another one."""
    names = {port.name for port in outputs}
    caches, others = dict[Port, str](), list[Port]()
    for port in inputs:
        options = {port.name.replace(old, new, 1) for old in _PAST if old in port.name for new in _PRESENT}
        if found := sorted(options & names):
            caches[port] = found[0]
        else:
            others.append(port)
    tokens = [port for port in others if "mask" not in port.name and "position" not in port.name]
    if not caches or len(tokens) != 1 or any(port.dtype is None or not port.shape for port in inputs):
        return None
    if not str(tokens[0].dtype).startswith("int") or any(port.shape is None or len(port.shape) > 2 for port in others):
        return None
    return Decoder(tokens[0], caches, tuple(port for port in others if port is not tokens[0]))


def with_empty_past(model: ir.Model, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the inputs of a decoder that begins with these tokens: empty caches, masks of ones, and positions from 0.

    Args:
        model: Any model.
        feeds: Its inputs that are given. They stay as they are.

    Returns:
        None if the model is not a decoder, or if the inputs are not one row of tokens, or have a cache.
    """
    decoder = _decoder_in(model)
    if decoder is None or decoder.tokens.name not in feeds or any(port.name in feeds for port in decoder.caches):
        return None
    shape = np.shape(feeds[decoder.tokens.name])
    return None if shape[:-1] not in ((), (1,)) else {**decoder.feeds(shape[-1], 0), **feeds}


def token_symbol(model: ir.Model) -> str | None:
    """Return the symbol of the number of new tokens of a decoder; None if a model is not a decoder, or takes a fixed number."""
    decoder = _decoder_in(model)
    length = decoder.tokens.shape[-1] if decoder is not None and decoder.tokens.shape else None
    return length if isinstance(length, str) else None


def with_length_0(model: ir.Model, dims: Lengths) -> Lengths:
    """Return lengths with 0 among those of a decoder's past, with which texts begin; itself if a model has no such length.

    A text begins once for as many steps as its past is usually long.
    """
    from collage.frontend import bind_dims, shape_profiles

    decoder = _decoder_in(model)
    free = [
        (port.name, axis, dim)
        for port in (() if decoder is None else decoder.caches)
        for axis, dim in enumerate(port.shape or ())
        if isinstance(dim, str) and axis
    ]
    if len({dim for *_, dim in free}) != 1:
        return dims
    name, axis, past = free[0]
    told = dims.get(past)
    if told is None:
        told = bind_dims(model, shape_profiles(dims)[0].dims)[name][axis]
    lengths = told if isinstance(told, Mapping) else {told: float(max(told, 1))}
    return {**dims, past: lengths if 0 in lengths else {**lengths, 0: sum(lengths.values()) / max(lengths)}}


def _decoder_in(model: ir.Model) -> Decoder | None:
    inputs, outputs = ([Port.of(value) for value in values] for values in (model.graph.inputs, model.graph.outputs))
    return decoder_of(inputs, outputs)


def _filled(port: Port, length: int) -> Any:
    """Return zeros of a port's shape, with this length along its last symbolic axis, and 1 along the others."""
    assert port.shape is not None
    free = [axis for axis, size in enumerate(port.shape) if not isinstance(size, int)]
    shape = [size if isinstance(size, int) else 1 for size in port.shape]
    if free:
        shape[free[-1]] = length
    return np.zeros(shape, port.dtype)
