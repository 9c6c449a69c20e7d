"""The partitioned model as the source of its kernels, to build them again and to know their inputs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from collage._errors import InputError, ToolchainError
from collage.frontend import inline_functions
from collage.graph import kernel_model, kernels_of
from collage.runtime._bodies import compile_bodies, has_bodies
from collage.runtime._pinned import PinnedFiles
from collage.runtime._recipe import KernelRecord, Recipe
from collage.system.scratch import scratch
from collage.target import HOST_TARGET, Target
from collage.toolchains import TUNED, Compiled, Kernel, LoadOptions, Registry, compile_for, load_for

__all__ = ["HostKernels", "KernelSources"]


class KernelSources:
    """The kernels of a partitioned model, as standalone models.

    Args:
        file: The partitioned model.
    """

    def __init__(self, file: Path) -> None:
        self._model = ir.load(file)
        self._calls = {str(call.node.name): call for call in kernels_of(self._model)}

    def model(self, name: str) -> ir.Model:
        """The kernel called ``name``; its inputs and outputs have the names that they have in the whole.

        Raises:
            ToolchainError: The model calls no such kernel.
        """
        if name not in self._calls:
            raise ToolchainError(f"the partitioned model has no kernel {name}")
        call = self._calls[name]
        model = kernel_model(self._model, call.node, name)
        model.metadata_props.update({key: text for key, text in call.metadata.items() if key == TUNED})
        return model

    def compile(self, record: KernelRecord, target: Target, toolchains: Registry, workspace: Path) -> Compiled:
        """Compiles a kernel for a target, with the kernels inside it, into a workspace that holds its weights."""

        def build(model: ir.Model, owner: Target) -> Compiled:
            if has_bodies(owner):
                return compile_bodies(model, owner, workspace, build)
            return compile_for(toolchains.for_target(owner), model, owner, workspace)

        return build(self.model(record.name), target)


class HostKernels:
    """The host in place of kernels that gave up on their inputs, such as a length that their toolchain does not take.

    The host computes ONNX's definition at any shape, so an executable is right there or raises an error with the
    reason. A rescue is warned of, once for each kernel: this is slow.

    Args:
        recipe: The recipe of the executable.
        workspace: Its folder.
        pinned: The files in it.
        toolchains: The registry of its toolchains.
        notes: Takes a sentence for each kernel that the host replaced.
    """

    def __init__(
        self, recipe: Recipe, workspace: Path, pinned: PinnedFiles, toolchains: Registry, notes: list[str]
    ) -> None:
        self._recipe = recipe
        self._pinned = pinned
        self._model_file = workspace / recipe.model_file
        self._toolchains = toolchains
        self._notes = notes
        self._turn = threading.Lock()
        self._kernels: dict[str, tuple[Kernel, Compiled]] = {}
        self._rescued: set[str] = set()

    def run(self, position: int, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the operators of the kernel at a position.

        Raises:
            ToolchainError: The host cannot.
        """
        record = self._recipe.kernels[position]
        values = dict(zip(record.inputs, inputs, strict=True))
        with self._turn:
            try:
                kernel, compiled = self._kernel(record)
                made = kernel([values[name] for name in compiled.inputs])
            except Exception as error:
                raise ToolchainError(f"the host cannot run {record.name}: {_reason(error)}") from error
            outputs = dict(zip(compiled.outputs, made, strict=True))
            return [np.array(outputs[name]) if kernel.reuses_outputs else outputs[name] for name in record.outputs]

    def rescue(self, position: int, inputs: Sequence[Any], error: Exception) -> Sequence[Any]:
        """Run the operators of a kernel that failed, and note that it did.

        Raises:
            InputError: The kernel found that its inputs are wrong, so that no toolchain can take them.
            ToolchainError: The host cannot either.
        """
        if isinstance(error, InputError):
            raise error
        record = self._recipe.kernels[position]
        failure = f"kernel {record.name} ({record.target}) failed on {_shapes(record, inputs)}: {_reason(error)}"
        if record.target == str(HOST_TARGET):
            raise ToolchainError(failure) from error
        try:
            outputs = self.run(position, inputs)
        except ToolchainError as second:
            raise ToolchainError(f"{failure}; and {second}") from error
        if record.name not in self._rescued:
            self._rescued.add(record.name)
            self._notes.append(f"{failure}; the host ran it instead")
            warnings.warn(self._notes[-1], RuntimeWarning, stacklevel=2)
        return outputs

    def _kernel(self, record: KernelRecord) -> tuple[Kernel, Compiled]:
        if record.name not in self._kernels:
            with scratch() as folder:
                model = KernelSources(self._model_file).model(record.name)
                if model.functions:
                    inline_functions(model)
                ir.external_data.load_to_model(model)
                host = self._toolchains.for_target(HOST_TARGET)
                compiled = compile_for(host, model, HOST_TARGET, folder)
                kernel = load_for(host, compiled, HOST_TARGET, folder, LoadOptions(self._recipe.threads))
                self._pinned.check()
                self._kernels[record.name] = kernel, compiled
        return self._kernels[record.name]


def _shapes(record: KernelRecord, inputs: Sequence[Any]) -> str:
    shown = [f"{name}{list(np.shape(x))}" for name, x in zip(record.inputs, inputs, strict=True)]
    return ", ".join(shown[:4]) or "no inputs"


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
