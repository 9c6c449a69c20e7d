"""A finalist in a process of its own: loads one executable, checks it, runs it when told to. Runs in the child."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage.cost.numerics import compare
from collage.cost.values import ValueStore
from collage.runtime import Executable, Recipe

__all__ = ["RaceService"]


class RaceService:
    """Runs one executable on stored inputs.

    Args:
        recipe: ``Recipe`` as JSON.
        workspace: Folder of its files.
        values: Folder of a ``ValueStore`` with the model's inputs and reference outputs.
    """

    def __init__(self, recipe: Mapping[str, Any], workspace: str, values: str) -> None:
        self._executable = Executable(Recipe.from_json(recipe), Path(workspace))
        self._store = ValueStore(Path(values))
        self._feeds = {port.name: self._store.get(port.name).copy() for port in self._executable.inputs}

    def check(self, tolerance: float) -> dict[str, Any]:
        """Runs once and compares every output with the reference; the worst difference."""
        worst = {"max_abs": 0.0, "max_rel": 0.0, "reason": None}
        for name, value in self._executable.run(self._feeds).items():
            if name not in self._store:
                continue
            difference = compare(value, self._store.get(name), tolerance)
            if difference.reason is not None:
                reason = f"output {name!r}: {difference.reason}"
                return {"max_abs": difference.max_abs, "max_rel": difference.max_rel, "reason": reason}
            if difference.max_rel >= worst["max_rel"]:
                worst = {"max_abs": difference.max_abs, "max_rel": difference.max_rel, "reason": None}
        return worst

    def run(self, runs: int, warm_up: int) -> list[float]:
        """Seconds of each of ``runs`` runs, after ``warm_up`` that do not count."""
        run, feeds, clock = self._executable.run, self._feeds, time.perf_counter
        for _ in range(warm_up):
            run(feeds)
        samples = []
        for _ in range(runs):
            before = clock()
            run(feeds)
            samples.append(clock() - before)
        return samples
