"""A plan that answers samples, in a process of its own. Runs in the child."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collage._errors import CompileError
from collage.numerics.value_store import ValueStore
from collage.runtime import Executable, Recipe
from collage.toolchains import Registry

__all__ = ["PlanService"]


class PlanService:
    """Serve one executable.

    Args:
        recipe: ``Recipe`` as JSON.
        workspace: Folder of its files.
        factories: The factory of each toolchain, by name: ``module:Class`` and keyword arguments.
    """

    def __init__(
        self, recipe: Mapping[str, Any], workspace: str, factories: Mapping[str, tuple[str, Mapping[str, Any]]]
    ) -> None:
        toolchains = Registry(())
        for factory, arguments in factories.values():
            module, _, name = factory.partition(":")
            toolchains.add(getattr(importlib.import_module(module), name)(**arguments))
        self._executable = Executable(Recipe.from_json(recipe), Path(workspace), toolchains=toolchains)
        self._inputs = [port.name for port in self._executable.inputs]

    def answer(self, values: Sequence[str], into: Sequence[str]) -> None:
        """Answer the inputs in each of several stores, and put the outputs into others.

        Raises:
            CompileError: A kernel failed, and the host stood in for it.
        """
        for source, goal in zip(values, into, strict=True):
            store, answers = ValueStore(Path(source)), ValueStore(Path(goal))
            noted = len(self._executable.notes)
            feeds = {name: store.input(name) for name in self._inputs if store.holds_input(name)}
            found = self._executable.run_tensors(feeds)
            if len(self._executable.notes) > noted:
                raise CompileError(self._executable.notes[-1])
            for name, value in found.items():
                answers.put_answer(name, value)
            answers.flush()
