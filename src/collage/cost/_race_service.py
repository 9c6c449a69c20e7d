"""A finalist in a process of its own: loads one executable, checks it, runs it when told to. Runs in the child."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.cost.numerics import compare
from collage.cost.values import ValueStore
from collage.runtime import Executable, Recipe
from collage.target import Target
from collage.toolchains import LoadOptions

__all__ = ["RaceService", "VendorService"]


class _Service:
    """What can be checked and timed."""

    _store: ValueStore
    _call: Callable[[], Mapping[str, Any]]

    def check(self, tolerance: float) -> dict[str, Any]:
        """Runs once and compares every output with the reference; the worst difference."""
        worst: dict[str, Any] = {"max_abs": 0.0, "max_rel": 0.0, "reason": None}
        for name, value in self._call().items():
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
        call, clock = self._call, time.perf_counter
        for _ in range(warm_up):
            call()
        samples = []
        for _ in range(runs):
            before = clock()
            call()
            samples.append(clock() - before)
        return samples


class RaceService(_Service):
    """Runs one executable on stored inputs.

    Args:
        recipe: ``Recipe`` as JSON.
        workspace: Folder of its files.
        values: Folder of a ``ValueStore`` with the model's inputs and reference outputs.
    """

    def __init__(self, recipe: Mapping[str, Any], workspace: str, values: str) -> None:
        executable = Executable(Recipe.from_json(recipe), Path(workspace))
        self._store = ValueStore(Path(values))
        feeds = {port.name: np.array(self._store.get(port.name)) for port in executable.inputs}
        self._call = lambda: executable.run(feeds)


class VendorService(_Service):
    """Runs the original model on one toolchain, with its vendor's defaults.

    Args:
        factory: ``module:Class`` of the toolchain.
        arguments: Keyword arguments of the class.
        target: Printed form.
        model: File of the model in the workspace.
        workspace: The folder.
        values: Folder of a ``ValueStore`` with the model's inputs and reference outputs.
        threads: Threads to use; 0 is the toolchain's default.
    """

    def __init__(
        self,
        factory: str,
        arguments: Mapping[str, Any],
        target: str,
        model: str,
        workspace: str,
        values: str,
        threads: int,
    ) -> None:
        module, _, name = factory.partition(":")
        toolchain = getattr(importlib.import_module(module), name)(**arguments)
        source, folder, goal = ir.load(Path(workspace) / model), Path(workspace), Target.parse(target)
        source.graph.name = f"original_{toolchain.name}"
        compiled = toolchain.compile(source, goal, folder)
        kernel = toolchain.load(compiled, goal, folder, LoadOptions(threads, exclusive=True))
        self._store = ValueStore(Path(values))
        feeds = [np.array(self._store.get(name)) for name in compiled.inputs]
        self._call = lambda: dict(zip(compiled.outputs, kernel(feeds), strict=True))
