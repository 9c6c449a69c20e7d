"""Jobs of a measure session, their batches, and counters of work done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from collage.cost.workload_key import WorkloadKey, digest_of
from collage.graph import structural_hash
from collage.system.machine import usable_memory_bytes
from collage.target import Target
from collage.toolchains import written_out

__all__ = ["COPIES", "Counters", "Job", "batches", "inner_targets", "may_hold_bytes", "structure_of", "weight_bytes"]

_LEAST_HELD_BYTES = 128 << 20
COPIES = 24
"""Copies of a model's weights that may be in memory at a time: up to eight processes, each with its packed weights."""


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to build and to measure.

    Attributes:
        kernel: The extracted model; its graph's name is unique in the workspace.
        structure: The computation without its weights, see ``structure_of``.
        target: The target that it is for.
        inputs: Names of its inputs in the value store, in order.
        outputs: Names of its outputs in the value store, in order.
        tolerance: See ``collage.numerics.judge``.
        context_bytes: Bytes that each processor touches between two runs of the kernel, see ``collage.measure.cache_pressure``.
        abandon_above_s: Not worth measuring precisely above this.
    """

    kernel: ir.Model
    structure: str
    target: Target
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tolerance: float
    context_bytes: int = 0
    abandon_above_s: float = float("inf")


@dataclass(slots=True)
class Counters:
    """Counters of the work of a session.

    Attributes:
        built: Kernels compiled.
        measured: Kernels timed.
        recorded: Outcomes that came from the database.
        elsewhere: Number of these that were measured on another machine of the same type.
    """

    built: int = 0
    measured: int = 0
    recorded: int = 0
    elsewhere: int = 0


def structure_of(kernel: ir.Model) -> str:
    """Return a digest of the computation of a kernel, as part of its key.

    Operators that ONNX Runtime's optimisers made are written out for toolchains that know only ONNX's own. What they are
    written out as is part of what is timed.
    """
    own = structural_hash(kernel)
    standard = written_out(kernel)
    parts = {"kernel": own} if standard is kernel else {"kernel": own, "standard": structural_hash(standard)}
    inner = [str(target) for target in inner_targets(kernel)]
    return digest_of({**parts, "inner": inner}) if inner or standard is not kernel else own


def inner_targets(kernel: ir.Model) -> list[Target]:
    """Return the targets of the kernels in the bodies of a kernel, in order of their functions."""
    texts = [function.metadata_props.get("target") for function in kernel.functions.values()]
    return [Target.parse(text) for text in texts if text is not None]


def weight_bytes(model: ir.Model) -> int:
    """Bytes of a model's initializers."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def may_hold_bytes() -> int:
    """Return the bytes of weights whose kernels workers may hold at once.

    A decoder of 489 MB was loaded ten times for its reference where workers could hold 128 MB, which took 6 of 18 s.
    """
    return max(_LEAST_HELD_BYTES, usable_memory_bytes() // COPIES)


def batches(jobs: Iterable[tuple[WorkloadKey, Job]]) -> Iterator[list[tuple[WorkloadKey, Job]]]:
    """Jobs whose kernels may all be loaded at once; one with large weights comes alone."""
    batch: list[tuple[WorkloadKey, Job]] = []
    held_bytes, most_bytes = 0, may_hold_bytes()
    for key, job in jobs:
        held_bytes += weight_bytes(job.kernel)
        if batch and held_bytes > most_bytes:
            yield batch
            batch, held_bytes = [], weight_bytes(job.kernel)
        batch.append((key, job))
    if batch:
        yield batch
