"""Recipes: what an executable consists of, as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from collage.runtime._signature import Port
from collage.target import Target
from collage.toolchains import Compiled

__all__ = ["WEIGHTS", "KernelRecord", "Recipe"]

WEIGHTS = "weights.bin"
"""File of a workspace or artefact that holds large weights, once."""


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One kernel of an executable, before it is loaded.

    Attributes:
        name: Its global symbol.
        target: Printed form.
        inputs: Names of the model's values that it reads, in the order of its own inputs.
        outputs: Names of the model's values that it makes, in order.
        compiled: What its toolchain made of it.
    """

    name: str
    target: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    compiled: Compiled

    def as_json(self) -> dict[str, Any]:
        """JSON values only."""
        return {**asdict(self), "compiled": {**asdict(self.compiled), "metadata": dict(self.compiled.metadata)}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelRecord:
        """Reads what ``as_json`` wrote; wrong types raise TypeError, ValueError or KeyError."""
        compiled = dict(data["compiled"])
        for name in ("files", "inputs", "outputs"):
            compiled[name] = tuple(str(item) for item in compiled[name])
        return cls(
            name=str(data["name"]),
            target=str(Target.parse(data["target"])),
            inputs=tuple(map(str, data["inputs"])),
            outputs=tuple(map(str, data["outputs"])),
            compiled=Compiled(**compiled),
        )


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that an executable consists of, besides the files of its workspace.

    Attributes:
        inputs: The model's inputs.
        outputs: The model's outputs.
        kernels: In the order in which they run.
        threads: Threads that each kernel may use; 0 is the toolchains' default.
        model_file: The partitioned model, in the workspace.
        model: Facts about the original model: path, sha256, number of nodes.
        builds: Build of each toolchain used.
        report: What ``compile`` found out, as JSON (design section 10).
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    kernels: tuple[KernelRecord, ...]
    threads: int
    model_file: str
    model: Mapping[str, Any]
    builds: Mapping[str, str]
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def toolchains(self) -> tuple[str, ...]:
        """Toolchains that must be loaded, each once."""
        return tuple(dict.fromkeys(kernel.compiled.toolchain for kernel in self.kernels))

    @property
    def files(self) -> tuple[str, ...]:
        """Files of the workspace that belong to it, besides the weights."""
        return tuple(dict.fromkeys([self.model_file, *(f for kernel in self.kernels for f in kernel.compiled.files)]))

    def files_with_weights(self, workspace: Path) -> tuple[str, ...]:
        """Its files, and the weights file if the workspace has one."""
        weights = (WEIGHTS,) if (workspace / WEIGHTS).exists() else ()
        return tuple(dict.fromkeys((*self.files, *weights)))

    def as_json(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "model": dict(self.model),
            "toolchains": dict(self.builds),
            "threads": self.threads,
            "inputs": [port.as_json() for port in self.inputs],
            "outputs": [port.as_json() for port in self.outputs],
            "model_file": self.model_file,
            "kernels": [kernel.as_json() for kernel in self.kernels],
            "report": dict(self.report),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        """Reads what ``as_json`` wrote; wrong types raise TypeError, ValueError or KeyError."""
        return cls(
            inputs=tuple(Port.from_json(port) for port in data["inputs"]),
            outputs=tuple(Port.from_json(port) for port in data["outputs"]),
            kernels=tuple(KernelRecord.from_json(kernel) for kernel in data["kernels"]),
            threads=int(data["threads"]),
            model_file=str(data["model_file"]),
            model=dict(data["model"]),
            builds=dict(data["toolchains"]),
            report=dict(data["report"]),
        )
