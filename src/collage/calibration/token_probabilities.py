"""Probabilities that a language model's scores give tokens, of a few positions at a time: a vocabulary has 150,000 tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from collage._errors import InputError

__all__ = ["divergence", "scores_of", "surprise"]

Array = np.ndarray[Any, np.dtype[Any]]

_LEAST_LOG = -700.0
"""Logarithm of the probability that an answer's probability of 0 counts as."""
_AT_A_TIME = 1 << 17
"""Scores that are looked at at a time, which stay in a core's cache. With eight times as many a text takes ten times as long."""


def scores_of(outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> tuple[Array, Array | None]:
    """Return the original's scores [..., tokens], and those of an answer; None if it has none of this shape.

    Raises:
        InputError: The original has no scores.
    """
    name = next((name for name, v in expected.items() if "float" in v.dtype.name and v.ndim and v.shape[-1] > 1), None)
    if name is None:
        raise InputError("kl and perplexity need an output of scores, one for each token, and the model has none")
    right, found = expected[name], outputs.get(name)
    return right, found if found is not None and np.shape(found) == np.shape(right) else None


def divergence(right: Array, found: Array | None) -> float:
    """Return the mean over all positions of the Kullback-Leibler divergence of an answer's probabilities, in nats."""
    flat = right.reshape(-1, right.shape[-1])
    other = None if found is None else found.reshape(flat.shape)
    total = 0.0
    for part in _parts(*flat.shape):
        logs = _log_softmax(flat[part])
        answer = _LEAST_LOG if other is None else _log_softmax(other[part])
        total += float(np.sum(np.exp(logs) * (logs - answer)))
    return total / len(flat) if right.size else 0.0


def surprise(scores: Array | None, label: Array | None, shape: tuple[int, ...]) -> float:
    """Return the mean negative logarithm of the probabilities of the right tokens; those of no scores are 0.

    Args:
        scores: The scores [..., tokens].
        label: The right tokens [...]; negative ones do not count.
        shape: The shape that scores should have.

    Raises:
        InputError: Labels do not fit the scores, or none counts.
    """
    label = np.asarray(-1 if label is None else label)
    if label.dtype.kind not in "iu" or label.size != math.prod(shape[:-1]) or (label >= shape[-1]).any():
        raise InputError(
            f"the tokens that follow are {label.dtype}{list(label.shape)}; the output has {list(shape[:-1])} positions "
            f"and {shape[-1]} tokens"
        )
    tokens = label.reshape(-1)
    counted = np.flatnonzero(tokens >= 0)
    if not counted.size:
        raise InputError("no token that follows is given: add labels, or texts of two tokens or more")
    if scores is None:
        return -_LEAST_LOG
    flat, total = scores.reshape(-1, shape[-1]), 0.0
    for part in _parts(len(counted), shape[-1]):
        places = counted[part]
        total += float(np.sum(_logs_of(flat[places], tokens[places].astype(np.int64))))
    return -total / len(counted)


def _parts(positions: int, tokens: int) -> Iterator[slice]:
    """Yield slices of positions that have scores for so many tokens each."""
    step = max(1, _AT_A_TIME // max(1, tokens))
    for start in range(0, positions, step):
        yield slice(start, start + step)


def _logs_of(scores: Array, tokens: Array) -> Array:
    """Return the logarithm of the probability of one token at each position. Only sums are in float64."""
    with np.errstate(all="ignore"):
        rows = scores if scores.dtype == np.float64 else scores.astype(np.float32, copy=False)
        most = rows.max(axis=-1, keepdims=True)
        shifted = rows - most
        sums = np.exp(shifted, out=shifted).sum(axis=-1, dtype=np.float64)
        at = rows[np.arange(len(rows)), tokens].astype(np.float64) - most[:, 0]
        return _bounded(at - np.log(sums))


def _log_softmax(scores: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        rows = scores.astype(np.float64)
        shifted = rows - rows.max(axis=-1, keepdims=True)
        return _bounded(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _bounded(logs: Array) -> Array:
    """Return logarithms of which those of answers that are not finite are those of probabilities of 0."""
    return np.asarray(np.clip(np.nan_to_num(logs, nan=_LEAST_LOG), _LEAST_LOG, 0.0))
