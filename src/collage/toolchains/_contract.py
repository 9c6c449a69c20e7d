"""What a toolchain is: the contract between Collage and everything that compiles and runs kernels.

A toolchain turns a kernel (a small, complete ONNX model whose weights are its initializers) into files, and files
into something that can be called. Collage asks it for nothing else: which sub-graphs become kernels, whether they are
right, and whether they pay, is decided elsewhere, by measurement.

Everything here runs in a worker process while tuning (a crash costs one candidate) and in the user's process when an
artefact runs. Specification 003, "Robust BYOC integrations"; design section 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from collage.target import Target

    Tensor = np.ndarray[Any, np.dtype[Any]]
    """A tensor as it crosses a kernel's border: row-major NumPy; ml_dtypes types where NumPy has none."""

__all__ = [
    "Availability",
    "Compiled",
    "Kernel",
    "LoadOptions",
    "PatternEntry",
    "Profiler",
    "Support",
    "Toolchain",
]


@dataclass(frozen=True)
class Availability:
    """Whether a toolchain can be used here.

    Attributes:
        available: True if kernels can be compiled and run on this machine.
        version: Version of the toolchain, None if it is not installed.
        build: What must be equal for timings to be comparable (version, build number, instruction set it chose).
        devices: Names of devices that it can use, for people.
        reason: Why it is not available.
        remedy: What to do about it, such as ``pip install openvino``.
        precisions: Values of its target option ``precision`` for coarser types that this machine computes in faster.
            Such targets join the menu where a user grants an accuracy budget.
    """

    available: bool
    version: str | None = None
    build: str = ""
    devices: tuple[str, ...] = ()
    reason: str | None = None
    remedy: str | None = None
    precisions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Support:
    """Whether a toolchain takes an operator; a refusal says why."""

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
        metadata: Whatever the toolchain needs to load it again: JSON values only.
    """

    toolchain: str
    target: str
    files: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    portable: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadOptions:
    """How a kernel is to behave in the process that runs it.

    Attributes:
        threads: Number of threads to use; 0 is the toolchain's own default for this machine.
        exclusive: True if no other toolchain runs in this process, so that the toolchain may keep the machine to
            itself (spinning threads, pinned threads: its vendor's best settings). False if its threads must be
            quiet between two runs and leave affinities alone.
    """

    threads: int = 0
    exclusive: bool = False


class Kernel(Protocol):
    """A loaded kernel.

    Attributes:
        reuses_outputs: True if the arrays that a call returns are overwritten by the next call of the same kernel.
    """

    reuses_outputs: bool

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Runs the kernel on inputs in the order of its model's inputs; returns outputs in the model's order.

        Inputs are not changed and are read only during the call. Not reentrant: one call at a time.
        """
        ...


@dataclass(frozen=True)
class PatternEntry:
    """One row of a toolchain's pattern table (specification 003, phase 1, second case).

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
        optimises_whole_graphs: True if it merges operators by itself, so that large regions are worth offering
            (region fusion); False if it fuses by rule, kernel by kernel.

    A toolchain that takes long to build kernels may set ``on_default_menu = False``: it is then only used where it is named.
    """

    name: str
    targets: tuple[str, ...]
    options: Mapping[str, str]
    optimises_whole_graphs: bool

    def availability(self) -> Availability:
        """Whether it can be used here; never raises, never takes more than a few seconds."""
        ...

    def pattern_table(self) -> Sequence[PatternEntry]:
        """Its fusion patterns; empty if it decides by operator."""
        ...

    def supports(self, node: ir.Node, target: Target) -> Support:
        """Whether it takes this operator as it stands (attributes, types, constants). Never raises."""
        ...

    def compile(self, kernel: ir.Model, target: Target, workspace: Path) -> Compiled:
        """Compiles a kernel: a function from model to files, with no other effect.

        Args:
            kernel: A complete ONNX model. Its graph's name is unique in the workspace. Large weights are external
                tensors in a file of the workspace, and may be referred to by what is written.
            target: One of the toolchain's targets.
            workspace: A folder. Every file written must begin with the kernel's graph name.

        Raises:
            Unsupported: The toolchain cannot take this kernel.
            CompileError: It failed.
        """
        ...

    def load(self, compiled: Compiled, target: Target, workspace: Path, options: LoadOptions) -> Kernel:
        """Makes a compiled kernel callable in this process; its constants are bound once, here."""
        ...


@runtime_checkable
class Profiler(Protocol):
    """A toolchain that can say where the time goes inside one of its kernels.

    Optional. Collage takes these figures as a first expectation of what a part of the kernel would cost by itself, so
    that only promising parts are built and measured. They are never believed without a measurement.
    """

    def profile(
        self, compiled: Compiled, target: Target, workspace: Path, inputs: Sequence[Tensor], repeats: int
    ) -> Mapping[str, float]:
        """Seconds per node name of the kernel's model, median of ``repeats`` runs.

        Nodes merged into others may be missing: their time is with the node that they were merged into.
        """
        ...
