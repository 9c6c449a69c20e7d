"""Recipes: the parts of an executable, as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from collage.explain import RECORD
from collage.report import Report
from collage.runtime._signature import Port
from collage.system.codec import RARE, Within, from_json, to_json
from collage.toolchains import Compiled

__all__ = ["WEIGHTS", "CopyRecord", "DeviceLayout", "KernelRecord", "Recipe"]

WEIGHTS = "weights.bin"
"""File of a workspace or artefact that holds large weights, once."""


# Metadata of a kernel may hold a table.
_LONGEST_TEXT = 16 << 20
_Cores = Annotated[tuple[Annotated[int, Within(0, 4095)], ...], Within(1)]
_Branch = Annotated[int, Within(1, 64)]


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A value that goes from one device to another.

    Attributes:
        source: Name of the value.
        result: Name of its copy.
        src: Scope in which the value lies.
        dst: Scope in which the copy lies.
    """

    source: str
    result: str
    src: str
    dst: str


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """The devices of an executable whose kernels were placed on some. Devices and scopes are texts such as ``cpu:1``.

    Attributes:
        cores: The core set of each device that has one.
        copies: Copies between devices, in an order in which they can be made.
        inputs: Scope in which each input of the model arrives.
    """

    cores: Mapping[str, _Cores]
    copies: tuple[CopyRecord, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One kernel of an executable, before it is loaded.

    Attributes:
        name: Its global symbol.
        target: Printed form.
        inputs: Names of the model's values that it reads, in the order of its own inputs.
        outputs: Names of the model's values that it makes, in order.
        compiled: The result of its toolchain.
        device: The device that it runs on, where the recipe has devices; likewise:
        reads: Scope in which it reads each input; None if it does not matter.
        writes: Scope in which it leaves each output.
        branch: The branch that it belongs to, from 1. Kernels of different branches run at the same time, each as soon
            as its inputs are ready. None if it is in none.
    """

    name: str
    target: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    compiled: Compiled
    device: str | None = field(default=None, metadata=RARE)
    reads: tuple[str | None, ...] = field(default=(), metadata=RARE)
    writes: tuple[str, ...] = field(default=(), metadata=RARE)
    branch: _Branch | None = field(default=None, metadata=RARE)

    def __post_init__(self) -> None:
        sizes = (len(self.inputs), len(self.outputs)) if self.device is not None else (0, 0)
        if (len(self.reads), len(self.writes)) != sizes:
            raise ValueError(f"kernel {self.name!r} does not give the scopes of all its inputs and outputs")

    @property
    def is_built(self) -> bool:
        """True if the kernel is compiled. Otherwise the record holds what is needed to build it."""
        return bool(self.compiled.files)

    @property
    def targets(self) -> tuple[str, ...]:
        """Its target, or those of the kernels in its bodies, each once."""
        return (
            tuple(dict.fromkeys(leaf.target for leaf in self.compiled.leaves))
            if self.compiled.parts
            else (self.target,)
        )

    def unbuilt(self) -> KernelRecord:
        """Return the record without the compiled files."""
        bare = Compiled(self.compiled.toolchain, self.target, (), self.inputs, self.outputs)
        return replace(self, compiled=bare)


@dataclass(frozen=True, slots=True)
class Recipe:
    """All parts of an executable, except the files of its workspace.

    Attributes:
        inputs: The model's inputs.
        outputs: The model's outputs.
        kernels: The kernels, in the order in which they run.
        threads: Threads that each kernel may use; 0 is the toolchains' default.
        model_file: The partitioned model, in the workspace.
        model: Facts about the original model: path, sha256, number of nodes.
        builds: Build of each toolchain used.
        report: The report of ``compile``; an empty one if there is none.
        devices: The devices that kernels run on, if they were placed on devices.
        empty: Dimensions that were 0 if kernels were checked, such as the length of a decoder's past. Kernels run where
            these are 0. If another one is, the host stands in.
        streams: Number of runs that go on at once where it was measured to be best; 0 if that was not asked for.
        listed: Names of the outputs in the order in which the model lists them, if it lists some more than once.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    kernels: tuple[KernelRecord, ...]
    threads: int
    model_file: str
    model: Mapping[str, Any]
    builds: Mapping[str, str]
    report: Report = field(default_factory=Report)
    devices: DeviceLayout | None = field(default=None, metadata=RARE)
    empty: tuple[str, ...] = field(default=(), metadata=RARE)
    streams: int = field(default=0, metadata=RARE)
    listed: tuple[str, ...] = field(default=(), metadata=RARE)

    @property
    def toolchains(self) -> tuple[str, ...]:
        """Toolchains that must be loaded, each once."""
        return tuple(dict.fromkeys(leaf.toolchain for kernel in self.kernels for leaf in kernel.compiled.leaves))

    @property
    def branches(self) -> int:
        """Number of branches whose kernels run at the same time; 0 if kernels run one after the other."""
        return len({kernel.branch for kernel in self.kernels} - {None})

    @property
    def files(self) -> tuple[str, ...]:
        """Files of the workspace that belong to it, besides the weights."""
        return tuple(dict.fromkeys([self.model_file, *(f for kernel in self.kernels for f in kernel.compiled.files)]))

    def files_with_weights(self, workspace: Path) -> tuple[str, ...]:
        """Return its files, and the weights and the record of what was tried if the workspace has them."""
        more = [name for name in (WEIGHTS, RECORD) if (workspace / name).exists()]
        return tuple(dict.fromkeys((*self.files, *more)))

    def as_json(self) -> dict[str, Any]:
        """JSON values only."""
        data = to_json(replace(self, report=Report()))
        builds = data.pop("builds")
        return {**data, "toolchains": builds, "report": self.report.as_json()}

    def check_wiring(self) -> None:
        """Check that every value is made once, before it is used; with devices, that it lies where it is read.

        Raises:
            ValueError: The first value that is not, or does not.
        """
        arrivals = {} if self.devices is None else self.devices.inputs
        made = {port.name: arrivals.get(port.name, "") for port in self.inputs}
        copies = [] if self.devices is None else list(self.devices.copies)
        for kernel in self.kernels:
            copies = _copied(copies, made)
            if kernel.device is not None and kernel.branch is not None:
                raise ValueError(f"kernel {kernel.name!r} is on a device and in a branch")
            if (kernel.device is None) != (self.devices is None):
                raise ValueError(f"kernel {kernel.name!r} is on a device, or on none, unlike the recipe")
            for name, scope in zip(kernel.inputs, kernel.reads or (None,) * len(kernel.inputs), strict=True):
                if name not in made:
                    raise ValueError(f"kernel {kernel.name!r} reads {name!r}, which nothing before it makes")
                if scope not in (None, made[name]):
                    raise ValueError(f"kernel {kernel.name!r} reads {name!r} in {scope}, but it is in {made[name]}")
            for name, scope in zip(kernel.outputs, kernel.writes or ("",) * len(kernel.outputs), strict=True):
                if name in made:
                    raise ValueError(f"kernel {kernel.name!r} makes {name!r}, which exists already")
                made[name] = scope
        if copies := _copied(copies, made):
            raise ValueError(f"{copies[0].source!r} is copied, and nothing makes it")
        for port in self.outputs:
            if port.name not in made:
                raise ValueError(f"nothing makes output {port.name!r}")
        if self.listed and set(self.listed) != {port.name for port in self.outputs}:
            raise ValueError("the list of outputs names others than there are")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        """Read what ``as_json`` wrote.

        Raises:
            ValueError: A value is of another type than its field, or out of its bounds.
            KeyError: The report or the builds are missing.
        """
        own = {name: value for name, value in data.items() if name != "report"}
        recipe: Recipe = from_json(cls, {**own, "builds": data["toolchains"]}, longest_text=_LONGEST_TEXT)
        return replace(recipe, report=Report.from_json(data["report"]))


def _copied(copies: Sequence[CopyRecord], made: dict[str, str]) -> list[CopyRecord]:
    """Make the copies whose source is there, in place, and return the others."""
    left = []
    for copy in copies:
        if copy.source not in made:
            left.append(copy)
            continue
        if copy.result in made:
            raise ValueError(f"the copy {copy.result!r} exists already")
        if made[copy.source] != copy.src:
            raise ValueError(f"{copy.source!r} is copied from {copy.src}, but it is in {made[copy.source]}")
        made[copy.result] = copy.dst
    return left
