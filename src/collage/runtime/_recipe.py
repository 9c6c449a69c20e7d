"""Recipes: what an executable consists of, as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
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

    @property
    def is_built(self) -> bool:
        """Whether there is anything to load; if not, it is known only where and from what to build it."""
        return bool(self.compiled.files)

    def unbuilt(self) -> KernelRecord:
        """The kernel without what its toolchain made of it."""
        bare = Compiled(self.compiled.toolchain, self.target, (), self.inputs, self.outputs)
        return replace(self, compiled=bare)

    def as_json(self) -> dict[str, Any]:
        """JSON values only."""
        compiled = {**asdict(self.compiled), "metadata": dict(self.compiled.metadata)} if self.is_built else None
        return {**asdict(self), "compiled": compiled}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelRecord:
        """Reads what ``as_json`` wrote; wrong types raise TypeError, ValueError or KeyError."""
        target = Target.parse(data["target"])
        inputs, outputs = _names(data["inputs"]), _names(data["outputs"])
        compiled = Compiled(target.toolchain, str(target), (), inputs, outputs)
        if data["compiled"] is not None:
            fields = dict(data["compiled"])
            fields |= {name: _names(fields[name]) for name in ("files", "inputs", "outputs")}
            compiled = Compiled(**fields)
            if not compiled.files:
                raise ValueError(f"kernel {data['name']!r} has no files")
        return cls(str(data["name"]), str(target), inputs, outputs, compiled)


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

    def check_wiring(self) -> None:
        """Checks that every value is made once, before it is used.

        Raises:
            ValueError: The first value that is not.
        """
        made = {port.name for port in self.inputs}
        for kernel in self.kernels:
            for name in kernel.inputs:
                if name not in made:
                    raise ValueError(f"kernel {kernel.name!r} reads {name!r}, which nothing before it makes")
            for name in kernel.outputs:
                if name in made:
                    raise ValueError(f"kernel {kernel.name!r} makes {name!r}, which is there already")
                made.add(name)
        for port in self.outputs:
            if port.name not in made:
                raise ValueError(f"nothing makes output {port.name!r}")

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


def _names(data: Any) -> tuple[str, ...]:
    if not isinstance(data, list | tuple) or not all(isinstance(name, str) for name in data):
        raise TypeError(f"{str(data)[:80]!r} is no list of names")
    return tuple(data)
