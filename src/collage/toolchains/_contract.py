"""The contract between Collage and every toolchain, which compiles and runs kernels.

A toolchain turns a kernel (a small, complete ONNX model whose weights are its initializers) into files, and files
into something that can be called. It has no other task. The choice of sub-graphs, checks of results and timing are done
elsewhere.

Everything here runs in a worker process while tuning (a crash costs one candidate) and in the user's process when an
artefact runs. ``docs/toolchains.md`` shows how to write one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from collage.system.codec import RARE, from_json, to_json

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from collage.target import Target

    Tensor = np.ndarray[Any, np.dtype[Any]]
    """A tensor as it crosses a kernel's border: row-major NumPy; ml_dtypes types where NumPy has none."""

__all__ = [
    "IN_FLOATS",
    "READ_BYTES",
    "TUNED",
    "AllocatingKernel",
    "Availability",
    "Compiled",
    "EmptyTakingKernel",
    "Importer",
    "InPlaceKernel",
    "Kernel",
    "Layout",
    "LoadOptions",
    "PatternEntry",
    "Profiler",
    "Support",
    "Toolchain",
    "Tuner",
    "TuningSession",
]

T = TypeVar("T")


TUNED = "collage.tuned"
"""Property of a kernel's model: the records of a ``Tuner`` by workload, as a JSON object of texts."""

IN_FLOATS = "in_floats"
"""Entry of the metadata of a kernel in a coarser type: positions of nodes with weights that compute in floats all the same."""

READ_BYTES = "read_bytes"
"""Entry of the metadata of a kernel: the bytes of large constants that a run reads, without tables of which it reads rows."""


@dataclass(frozen=True)
class Availability:
    """The answer to the question if a toolchain can be used here.

    Attributes:
        available: True if kernels can be compiled and run on this machine.
        version: Version of the toolchain, None if it is not installed.
        build: Everything that must be equal for timings to be comparable (version, build number, instruction set it chose).
        devices: Names of devices that it can use, for people.
        reason: The reason why it is not available.
        remedy: The way to make it available, such as ``pip install openvino``.
        precisions: Values of its target option ``precision`` for coarser types that this machine computes in faster.
            Such targets join the menu if the user grants an accuracy budget.
        compact: Values of ``precision`` with which compiled kernels hold weights of fewer bits, on any machine. Such targets
            join the menu if the user grants an accuracy budget, and bytes or the resident set decide.
    """

    available: bool
    version: str | None = None
    build: str = ""
    devices: tuple[str, ...] = ()
    reason: str | None = None
    remedy: str | None = None
    precisions: tuple[str, ...] = ()
    compact: tuple[str, ...] = ()


@dataclass(frozen=True)
class Support:
    """The answer to the question if a toolchain takes an operator. A refusal has a reason."""

    ok: bool
    reason: str | None = None


@dataclass(frozen=True)
class Compiled:
    """The result of compiling a kernel: files in a workspace, nothing else.

    Attributes:
        toolchain: Name of the toolchain that made it.
        target: Printed form of the target.
        files: Names of the files in the workspace that belong to it, without folders.
        inputs: Names of the kernel's inputs, in order.
        outputs: Names of the kernel's outputs, in order.
        portable: True if the files are plain ONNX and fit any machine; False for native code and caches.
        metadata: Whatever the toolchain needs to load it again: JSON values only, and no text that could be a path,
            since it comes back from artefacts that anybody may have written. Values are referred to by position, since
            names may hold slashes. With ``memory_scopes``, such as ``{"inputs": ["global.texture", None], "outputs":
            [None]}``, a kernel demands arguments, or leaves results, in memories of its device: plans of devices and
            the runtime see it.
        parts: Kernels inside, of an operator whose bodies are kernels of their own. Its files are those of its parts too.

    Raises:
        ValueError: The metadata holds a text that could be a path.
    """

    toolchain: str
    target: str
    files: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    portable: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Compiled, ...] = field(default=(), metadata=RARE)

    def __post_init__(self) -> None:
        for text in _texts(self.metadata):
            if "/" in text or "\\" in text or text == "..":
                raise ValueError(f"the metadata of a kernel for {self.target} holds the path {text[:80]!r}")

    def memory_scopes(self, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
        """Return the memories that the kernel demands.

        Args:
            inputs: The names of the values that it reads, in the order of its own inputs.
            outputs: The names of the values that it makes.

        Raises:
            TypeError: The metadata holds something other than lists of texts.
        """
        told = self.metadata.get("memory_scopes") or {}
        scopes = [
            *zip(inputs, told.get("inputs", ()), strict=False),
            *zip(outputs, told.get("outputs", ()), strict=False),
        ]
        if not all(isinstance(scope, str | None) for _, scope in scopes):
            raise TypeError(f"{self.target} demands the memories {str(told)[:80]}, which are not lists of texts")
        return {name: scope for name, scope in scopes if scope is not None}

    def as_json(self) -> dict[str, Any]:
        """JSON values only."""
        data: dict[str, Any] = to_json(self)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Compiled:
        """Parse the output of ``as_json``, before or after JSON.

        Raises:
            ValueError: A field is absent, of another type, or nested too deeply.
        """
        return from_json(cls, data)

    @property
    def inner(self) -> tuple[Compiled, ...]:
        """All kernels inside it, at any depth."""
        return tuple(inside for part in self.parts for inside in (part, *part.inner))

    @property
    def leaves(self) -> tuple[Compiled, ...]:
        """The kernels that toolchains load: the parts, or itself if it has none."""
        return tuple(leaf for part in self.parts for leaf in part.leaves) if self.parts else (self,)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (str(key), *_texts(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


@dataclass(frozen=True)
class LoadOptions:
    """Options of a kernel in the process that runs it.

    Attributes:
        threads: Number of threads to use; 0 is the toolchain's own default for this machine.
        exclusive: True if no other toolchain runs in this process, so that the toolchain may keep the machine to
            itself (spinning threads, pinned threads: its vendor's best settings). False if its threads must be
            quiet between two runs and leave the caller's affinity alone.
        streams: Number of kernels like this one that the executable runs at once, each with ``threads`` threads.
        shared: Storage that all contexts of one executable have in common; see ``once``. None if there is one context.
    """

    threads: int = 0
    exclusive: bool = False
    streams: int = 1
    shared: dict[Any, Any] | None = field(default=None, repr=False, compare=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of ``make``, which is called once for all contexts of an executable.

        So contexts share weights and code that a runtime lets several threads use at once. Contexts load one after the other.

        Args:
            key: The name of the result: the toolchain, and all that the result depends on.
            make: Makes it.
        """
        if self.shared is None:
            return make()
        if key not in self.shared:
            self.shared[key] = make()
        found: T = self.shared[key]
        return found


class Kernel(Protocol):
    """A loaded kernel.

    Attributes:
        reuses_outputs: True if the arrays that a call returns are overwritten by the next call of the same kernel.
    """

    reuses_outputs: bool

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run the kernel on inputs in the order of its model's inputs, and return outputs in the model's order.

        Inputs are not changed and are read only during the call. Outputs lie apart from them, from each other, from the
        kernel's constants and, unless ``reuses_outputs``, from those of earlier calls. Not reentrant: one call at a time.
        """
        ...


@runtime_checkable
class AllocatingKernel(Protocol):
    """A kernel that states if each call allocates all outputs again.

    Optional: ``Kernel`` demands that outputs share no memory. But runtimes may return an input, or one tensor twice,
        and few document this. So the executor compares every pair of tensors, which takes microseconds.

    Attributes:
        allocates_outputs: True if this is known from the way the kernel was made, so that the executor need not compare.
    """

    reuses_outputs: bool
    allocates_outputs: bool

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """See ``Kernel``."""
        ...


@runtime_checkable
class EmptyTakingKernel(Protocol):
    """A kernel that states if tensors without elements may be given to it.

    Optional: most toolchains compute something wrong of such tensors, so the host stands in for kernels that do not say.

    Attributes:
        takes_empty: True if it is right on such tensors, or raises an error.
    """

    reuses_outputs: bool
    takes_empty: bool

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """See ``Kernel``."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """The form of a buffer that a kernel can write to.

    Attributes:
        dtype: Name of the element type.
        shape: No length is 0.
    """

    dtype: str
    shape: tuple[int, ...]


@runtime_checkable
class InPlaceKernel(Protocol):
    """A kernel that can also write its outputs into buffers that it is given, so that they are not copied.

    Optional: the runtime asks for it, and plans buffers for such kernels ahead.

    Attributes:
        layouts: Layout of each output: known before the first call, and the same for all calls.
    """

    reuses_outputs: bool
    layouts: tuple[Layout, ...]

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run into buffers of its own; see ``Kernel``."""
        ...

    def run_into(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Run the kernel, and write every element of every output.

        The kernel may remember arrays of earlier calls, so passing the same objects again is cheaper. It keeps a
        reference to the last array of each output until it gets another one.

        Args:
            inputs: As for a call.
            outputs: Row-major and writeable, of these layouts; in memory apart from the inputs, and from each other.
        """
        ...


OptionValues = Mapping[str, tuple[str, ...] | None]
"""The values that target options take, by name: these texts, or any text if there are none, or for None a whole number from 1."""


@dataclass(frozen=True)
class PatternEntry:
    """One row of a toolchain's pattern table (``docs/fusion.md``, phase 1).

    Attributes:
        label: The Composite label, such as ``onednn.conv2d_bias_relu``.
        pattern: A pattern of ``collage.pattern``.
        predicate: Called with the match; False refuses it. None takes every match.
    """

    label: str
    pattern: Any
    predicate: Any = None


@runtime_checkable
class Toolchain(Protocol):
    """A source of kernels. Registered under the entry-point group ``collage.toolchains``.

    Subclass ``collage.toolchains.ToolchainBase`` for sensible defaults; test it with
    ``collage.testing.ToolchainTestCase``.

    Attributes:
        name: The ``-compiler`` or ``-libs`` value of its targets.
        targets: Stems of the targets it serves, such as ``llvm -compiler=openvino``; the first is its alias.
        options: Target options that it understands, each with a sentence for people.
        optimises_whole_graphs: True if it fuses operators itself, so that large regions are worth offering (region
            fusion); False if it fuses by rule, kernel by kernel.

    A toolchain may have a method ``option_values(target)`` that returns ``OptionValues``. A target with another value is then
    refused before anything is measured.

    A toolchain that takes long to build kernels may set ``on_default_menu = False``: it is then only used where it is named.
    One that reads operators which ONNX Runtime's optimisers make (``com.microsoft.FusedConv``) may set
    ``reads_contributed = True``: all others are given ONNX's own operators in their place. One that raises an error for every
    index beyond its tensor, as ONNX demands, may set ``checks_indices_on = ("llvm",)``, the kinds of target where it does.
    For all others Collage checks indices, see ``docs/security.md``. One that is right, or raises an error, for all sizes, axes
    and steps of an operator, and for indices that are longer than its data, may name it in ``checks_sizes_of``.
    """

    name: str
    targets: tuple[str, ...]
    options: Mapping[str, str]
    optimises_whole_graphs: bool

    def availability(self) -> Availability:
        """Return if it can be used here. Never raises, never takes more than a few seconds."""
        ...

    def pattern_table(self) -> Sequence[PatternEntry]:
        """Its fusion patterns; empty if it decides by operator."""
        ...

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Return if it takes this operator as it stands (attributes, types, constants). Never raises."""
        ...

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Compile a kernel: a function from model to files, with no other effect.

        Args:
            kernel: A complete ONNX model. Its graph's name is unique in the workspace. Large weights are external
                tensors in a file of the workspace, and the written files may refer to it.
            target: One of the toolchain's targets.
            workspace: A folder. Every file written must begin with the kernel's graph name.

        Raises:
            Unsupported: The toolchain cannot take this kernel.
            CompileError: It failed.
        """
        ...

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Make a compiled kernel callable in this process; its constants are bound once, here."""
        ...


@dataclass(frozen=True)
class TuningSession:
    """The means that a tuner may use.

    Attributes:
        budget_s: Seconds that it may take.
        threads: Threads that the kernel will run with; 0 is the toolchain's own default.
        known: Records of workloads that need not be tuned again.
        building: Entered while something is built: nothing is measured on this machine meanwhile.
        measuring: Entered while something is timed: nothing is built or measured on this machine meanwhile.
    """

    budget_s: float
    threads: int = 0
    known: Mapping[str, str] = field(default_factory=dict)
    building: Callable[[], AbstractContextManager[Any]] = nullcontext
    measuring: Callable[[], AbstractContextManager[Any]] = nullcontext


@runtime_checkable
class Tuner(Protocol):
    """A toolchain that finds faster code for a kernel by trying.

    Optional. Its targets take the options ``trials`` and ``seed``; such a target is another one than that without, so
    that timings never mix. Records are texts in the toolchain's own format, kept by workload. A workload is a part of a
    kernel that is tuned, such as one loop nest. Its name is the same for equal workloads in every model. A kernel whose
    model has the property ``TUNED`` is compiled with the records in it.
    """

    def tuning_workloads(self, kernel: ir.Model, target: Target, workspace: Path) -> Sequence[str]:
        """Return the workloads in a kernel that can be tuned, none if nothing can.

        Raises:
            Unsupported: The toolchain cannot take this kernel.
        """
        ...

    def tune(self, kernel: ir.Model, target: Target, workspace: Path, session: TuningSession) -> Mapping[str, str]:
        """Records of those workloads of a kernel that were tuned before the time was over.

        Each with all its trials. It may return before all workloads are tuned, and is then called again. Returned
        records are kept, even if the tuner is killed later.

        Args:
            kernel: As for ``compile``.
            target: Its options ``trials`` and ``seed`` set the number of trials for each workload and the random seed.
            workspace: A folder for temporary files.
            session: Time, threads and records that tuning may use.

        Raises:
            ToolchainError: Nothing can be tuned.
        """
        ...


@runtime_checkable
class Importer(Protocol):
    """A toolchain that can read a kernel much faster than build it.

    Optional. If the toolchain refuses a whole model, Collage asks it about each operator. A kernel that can be read and not
    built is found when the largest kernels are built.
    """

    def check_import(self, kernel: ir.Model, target: Target, workspace: Path) -> None:
        """Import a kernel as ``compile`` does, and lower it as far as is quick.

        Raises:
            ToolchainError: It cannot be read.
        """
        ...


@runtime_checkable
class Profiler(Protocol):
    """A toolchain that can measure the time of each step inside a kernel.

    Optional. Collage takes these figures as a first expectation of the cost of a part of the kernel alone, so that only
    promising parts are built and measured. They never replace a measurement.
    """

    def profile(
        self, compiled: Compiled, target: Target, workspace: Path, inputs: Sequence[Tensor], repeats: int
    ) -> Mapping[tuple[int, ...], float]:
        """Return the seconds of each step, the median of ``repeats`` runs.

        A step is named by the places, in the kernel's model, of the nodes that it computes. The first is the one whose time it
        is taken for, such as a convolution. The others, such as its activation, take no time of their own beside it.

        What is compiled may hold checks of indices, and what a precision adds. The place that each node has in the kernel is
        what ``collage.toolchains.sdk.profiler_names.places_of`` returns.
        """
        ...
