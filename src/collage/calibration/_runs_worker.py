"""Runs of one model file on stored inputs, in a process of their own: ranges of all values, and outputs. Runs in the child."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage._errors import CompileError
from collage.numerics.value_store import ValueStore
from collage.toolchains import UnoptimisedModel

__all__ = ["RunsService"]


class RunsService:
    """Serve one model file, run by ONNX Runtime without graph optimisations.

    Args:
        model: The ONNX file, its weights beside it.
        watches: Return ranges of values in between. Without, the process holds outputs alone.
    """

    def __init__(self, model: str, watches: bool = True) -> None:
        self._model = UnoptimisedModel(Path(model))
        names = sorted(self._model.values) if watches else []
        self._names = list(dict.fromkeys([*self._model.outputs, *names]))
        self._fixed: dict[str, Any] = {}

    def fix(self, values: str) -> None:
        """Have all further runs read the inputs in a store, beside those of their own."""
        self._fixed = self._inputs(values)

    def ranges(
        self, values: str, axes: Mapping[str, int] | None = None
    ) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Run the model on the inputs in a store.

        Returns:
            By the name of each floating-point value, the smallest and largest finite element, and the number of others. For
            those values for which an axis is given, the mean at each place along it.
        """
        feeds, found = self._run(values)
        known = {**feeds, **found}
        extents = {name: told for name, value in known.items() if (told := _extent(value)) is not None}
        wanted = (axes or {}).items()
        means = {name: told for name, axis in wanted if (told := _means(known.get(name), axis)) is not None}
        return extents, means

    def outside(self, values: str, extents: dict[str, list[float]]) -> list[int]:
        """Run the model on the inputs in a store.

        Returns:
            The number of elements, of values that have a range, outside of it, and the number of all their elements.
        """
        feeds, found = self._run(values)
        outside = elements = 0
        for name, value in {**feeds, **found}.items():
            if name in extents and isinstance(value, np.ndarray):
                low, high = extents[name]
                outside += int(np.count_nonzero((value < low) | (value > high)))
                elements += value.size
        return [outside, elements]

    def answer(self, values: Sequence[str], into: Sequence[str]) -> None:
        """Run the model on the inputs in each of several stores, and put the outputs into others."""
        for source, goal in zip(values, into, strict=True):
            _, found = self._run(source)
            store = ValueStore(Path(goal))
            for name in self._model.outputs:
                store.put_answer(name, found.get(name))
            store.flush()

    def _run(self, values: str, names: Sequence[str] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        feeds = self._fixed | self._inputs(values)
        try:
            return feeds, self._model.run(feeds, self._names if names is None else names)
        except Exception as error:
            raise CompileError(f"{self._model.evaluator}: {' '.join(str(error).split())[:500]}") from error

    def _inputs(self, values: str) -> dict[str, Any]:
        store = ValueStore(Path(values))
        return {name: store.input(name) for name in self._model.inputs if store.holds_input(name)}


def _extent(value: Any) -> list[float] | None:
    """Return the smallest and the largest finite element, and the number of others; None for other types than floats."""
    if not isinstance(value, np.ndarray) or "float" not in value.dtype.name or not value.size:
        return None
    wide = value if value.dtype in (np.float32, np.float64) else value.astype(np.float32)
    low, high = float(wide.min()), float(wide.max())
    if np.isfinite(low) and np.isfinite(high):  # NaN and infinity show at one end or the other.
        return [low, high, 0]
    finite = wide[np.isfinite(wide)]
    others = wide.size - finite.size
    return [float(finite.min()), float(finite.max()), others] if finite.size else [0.0, 0.0, others]


def _means(value: Any, axis: int) -> list[float] | None:
    """Return the mean at each place along an axis; None for other types than floats, and if one is not finite."""
    if not isinstance(value, np.ndarray) or "float" not in value.dtype.name or not value.size or value.ndim < 2:
        return None
    others = tuple(i for i in range(value.ndim) if i != axis % value.ndim)
    means = value.mean(axis=others, dtype=np.float64)
    return [float(mean) for mean in means] if np.isfinite(means).all() else None
