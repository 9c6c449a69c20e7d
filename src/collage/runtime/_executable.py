"""``Executable``: what ``compile`` returns and ``load`` reads back."""

from __future__ import annotations

import shutil
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collage.runtime._executor import Executor, Step
from collage.runtime._recipe import Recipe
from collage.runtime._signature import Signature
from collage.target import Target
from collage.toolchains import LoadOptions, Registry, registry

__all__ = ["Executable"]


class Executable:
    """A model, compiled: kernels of one or several toolchains behind one call.

    Safe to share between threads: concurrent runs wait for each other.

    Args:
        recipe: What it consists of.
        workspace: The folder that holds its files.
        owns_workspace: Delete the folder when the executable is gone.
        toolchains: Where its toolchains are found.

    Attributes:
        inputs: The model's inputs.
        outputs: The model's outputs.
        report: What ``compile`` found out, as JSON (design section 10).
        notes: What a user should know of how it was loaded, such as kernels that were rebuilt.
    """

    def __init__(
        self, recipe: Recipe, workspace: Path, *, owns_workspace: bool = False, toolchains: Registry | None = None
    ) -> None:
        self.recipe = recipe
        self.workspace = workspace
        self.inputs = recipe.inputs
        self.outputs = recipe.outputs
        self.report = recipe.report
        self.notes: list[str] = []
        self._bind = Signature(recipe.inputs).bind
        self._output_names = tuple(port.name for port in recipe.outputs)
        self._only_output = self._output_names[0] if len(self._output_names) == 1 else None
        self._run = self._load(toolchains or registry()).run
        self._turn = threading.Lock()
        if owns_workspace:
            weakref.finalize(self, shutil.rmtree, workspace, ignore_errors=True)

    def run(self, inputs: Mapping[str, Any] | Sequence[Any] = ()) -> dict[str, Any]:
        """Runs the model.

        Args:
            inputs: Tensors by name, or in the model's order.

        Returns:
            Outputs by name, in the model's order.

        Raises:
            InputError: A name, type or shape does not fit.
        """
        values = self._bind(inputs)
        with self._turn:
            results = self._run(values)
        if self._only_output is not None:  # A dictionary display is the faster one, and this is the usual model.
            return {self._only_output: results[0]}
        return dict(zip(self._output_names, results, strict=True))

    def __call__(self, *inputs: Any) -> Any:
        """Runs the model on inputs in the model's order; returns its output, or a tuple of them."""
        results = tuple(self.run(inputs).values())
        return results[0] if len(results) == 1 else results

    def save(self, path: str | Path) -> Path:
        """Writes the artefact, atomically: the folder is there whole, or as it was before.

        Args:
            path: A folder that does not exist, or an artefact to replace.

        Returns:
            The path.
        """
        from collage.runtime._artefact import save

        return save(self.recipe, self.workspace, Path(path))

    def _load(self, toolchains: Registry) -> Executor:
        # A kernel alone may keep the machine to itself; with others, of the same toolchain too, it must be quiet between
        # runs: threads that spin for the last kernel take the cores from the next one.
        options = LoadOptions(self.recipe.threads, exclusive=len(self.recipe.kernels) == 1)
        steps = []
        for record in self.recipe.kernels:
            toolchain = toolchains.get(record.compiled.toolchain)
            kernel = toolchain.load(record.compiled, Target.parse(record.target), self.workspace, options)
            steps.append(Step(record.name, kernel, record.inputs, record.outputs))
        inputs = [port.name for port in self.inputs]
        return Executor(steps, inputs, self._output_names)
