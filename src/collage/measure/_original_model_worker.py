"""The original model in a process of its own: runs it as its file stands, and compares prepared values. Runs in the child."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage._errors import CompileError
from collage.measure._evidence_worker import Witness, settled
from collage.numerics.judge import judge
from collage.numerics.value_store import ValueStore
from collage.toolchains import UnoptimisedModel

__all__ = ["OriginalService"]


class OriginalService:
    """Serves one model file at a time."""

    def __init__(self) -> None:
        self._model: UnoptimisedModel | None = None
        self._latest: dict[str, Any] = {}
        self._path = Path()
        self._usual: dict[str, Any] = {}

    def open(self, model: str) -> dict[str, Any]:
        """Load a model file; return the evaluator's name, and the names of all values that it can return."""
        self.drop()
        self._path = Path(model)
        loaded = self._model = UnoptimisedModel(self._path)
        return {"evaluator": loaded.evaluator, "outputs": loaded.outputs, "values": sorted(loaded.values)}

    def drop(self) -> None:
        """Forget the model and its outputs."""
        self._model, self._latest, self._usual = None, {}, {}

    def run(self, values: str, names: Sequence[str]) -> int:
        """Run the model on the inputs in a store, and keep its outputs for ``settle``.

        Args:
            values: Folder of a ``ValueStore`` that holds the inputs.
            names: Values to keep.

        Returns:
            The number of elements of its outputs that are NaN or infinite.
        """
        assert self._model is not None
        store = ValueStore(Path(values))
        feeds = {name: store.input(name) for name in self._model.inputs if store.holds_input(name)}
        try:
            self._latest = self._model.run(feeds, [*self._model.outputs, *names])
        except Exception as error:
            raise CompileError(f"{self._model.evaluator}: {' '.join(str(error).split())[:500]}") from error
        outputs = [self._latest[name] for name in self._model.outputs if name in self._latest]
        return sum(_not_finite(value) for value in outputs if isinstance(value, np.ndarray))

    def settle(self, values: str, names: Sequence[str], tolerance: float) -> list[list[Any]]:
        """Compare the outputs of the latest run with a store, and keep them there if they are alike.

        Args:
            values: Folder of a ``ValueStore`` with the values of the prepared model on the same inputs.
            names: Values to compare, in the order of the model.
            tolerance: Largest difference, see ``collage.numerics.judge``.

        Returns:
            Name, reason and relative error of each value that differs by more than the tolerance.
        """
        assert self._model is not None
        store = ValueStore(Path(values))
        usual, judged, right, differences = self._usual, {}, {}, list[list[Any]]()
        for name in names:
            if name not in store or name not in self._latest or not store.is_repeatable(name):
                continue
            is_inside = name not in self._model.outputs
            found = judge(store.get(name), self._latest[name], tolerance, usual=usual.get(name), is_inside=is_inside)
            if found.is_open:
                judged[name], right[name] = store.get(name), self._latest[name]
            elif not found.ok:
                differences.append([name, found.reason, _finite(found.max_rel)])
            elif isinstance(self._latest[name], np.ndarray) and not is_inside:
                self._usual.setdefault(name, self._latest[name])
        if judged and not differences:
            feeds = {name: store.input(name) for name in self._model.inputs if store.holds_input(name)}
            witness = Witness(self._path, is_original=True)
            found_all = settled(witness, feeds, judged, right, tolerance, usual)
            differences = [
                [name, each.reason, _finite(each.max_rel)] for name, each in found_all.items() if not each.ok
            ]
        if not differences:
            answers = store.answers
            for name in self._model.outputs:
                if name in store and store.is_repeatable(name):
                    answers.put(name, self._latest.get(name))
            answers.flush()
        self._latest = {}
        return differences

    def keep_outputs(self, values: str) -> None:
        """Put the outputs of the latest run into a store that holds only the inputs."""
        assert self._model is not None
        store = ValueStore(Path(values))
        for name in self._model.outputs:
            store.put(name, self._latest.get(name))
        store.flush()


def _finite(error: float) -> float:
    """Return an error as a number that JSON has: values of another type or shape err by infinity."""
    return error if math.isfinite(error) else sys.float_info.max


def _not_finite(array: np.ndarray[Any, Any]) -> int:
    if not ("float" in array.dtype.name or "complex" in array.dtype.name):
        return 0
    return int(np.count_nonzero(~np.isfinite(array.astype(np.complex128))))
