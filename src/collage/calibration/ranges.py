"""Ranges of activations: the smallest and the largest that each floating-point value of a model takes over samples.

They are collected one sample at a time, in a worker process, so that memory holds the values of one sample at most. For
each value two numbers are kept, and the mean of each channel if a product reads it. A static 8-bit target reads them from the
metadata of the values, see ``annotate_ranges``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage.calibration.samples import holds_nan, put_values
from collage.graph import constant_tensor, set_value_means, set_value_range
from collage.system.codec import Count
from collage.workers.worker import Worker

__all__ = [
    "Ranges",
    "annotate_ranges",
    "collect_ranges",
    "mean_axes",
    "runs_worker",
    "share_outside",
    "touches_unbounded",
]

_SERVICE = "collage.calibration._runs_worker:RunsService"
_ON_FIRST_AXIS, _ON_LAST_AXIS = ("Conv", "ConvTranspose"), ("Gemm", "MatMul")
"""Products that add up over the axis after the batch, and over the last one."""
_RUN_S = 180.0
_SENTINEL = 1e6
"""Numbers of at least this magnitude count as infinite, as in masks: 8 bits cannot hold it beside others."""


@dataclass(slots=True)
class Ranges:
    """Ranges found so far.

    Attributes:
        extents: The smallest and the largest finite element by the name of each value.
        unbounded: Names of values that had NaN or infinite elements, or magnitudes that stand for infinity.
        means: The mean of each channel over all samples, of values in ``mean_axes``.
        samples: Samples that were looked at.
        skipped: Number of these that were left out, since their inputs hold NaN.
    """

    extents: dict[str, tuple[float, float]] = field(default_factory=dict)
    unbounded: set[str] = field(default_factory=set)
    means: dict[str, list[float]] = field(default_factory=dict)
    samples: Count = 0
    skipped: Count = 0

    def skip(self) -> None:
        """Note that a sample is left out."""
        self.samples += 1
        self.skipped += 1

    def add(self, found: Mapping[str, Iterable[float]], means: Mapping[str, Sequence[float]] | None = None) -> None:
        """Widen the ranges by one more sample: low, high, and the number of elements that are not finite."""
        for name, (low, high, others) in found.items():
            known_low, known_high = self.extents.get(name, (math.inf, -math.inf))
            self.extents[name] = min(low, known_low), max(high, known_high)
            if others or max(-low, high) >= _SENTINEL:
                self.unbounded.add(name)
        known = self.samples - self.skipped
        for name, fresh in (means or {}).items():
            old = self.means.get(name, [] if known else [0.0] * len(fresh))
            share = 1.0 / (known + 1)
            # Channels that come and go have no mean, and no correction.
            self.means[name] = (
                [a + (b - a) * share for a, b in zip(old, fresh, strict=True)] if len(old) == len(fresh) else []
            )
        self.samples += 1


def mean_axes(model: ir.Model) -> dict[str, int]:
    """Return the values that a product with constant weights reads, with the axis over which it adds up."""
    found: dict[str, int] = {}
    for node in model.graph:
        is_known = node.op_type in (*_ON_FIRST_AXIS, *_ON_LAST_AXIS) and node.domain == ""
        if is_known and all(value is not None for value in node.inputs[:2]):
            value, weights = node.inputs[:2]
            assert value is not None and weights is not None
            if constant_tensor(weights) is not None and constant_tensor(value) is None:
                found.setdefault(str(value.name), 1 if node.op_type in _ON_FIRST_AXIS else -1)
    return found


def runs_worker(model_file: Path, *, watches: bool = True, memory_bytes: int | None = None) -> Worker:
    """Return a worker process that runs a model file unoptimised; its service is ``RunsService``."""
    return Worker(_SERVICE, {"model": str(model_file), "watches": watches}, memory_bytes=memory_bytes)


def collect_ranges(
    worker: Worker,
    samples: Iterable[Mapping[str, Any]],
    folder: Path,
    ranges: Ranges | None = None,
    after_each: Callable[[Ranges], None] = lambda _: None,
    axes: Mapping[str, int] | None = None,
) -> Ranges:
    """Run a model on samples, one at a time, and return the ranges of all its floating-point values.

    Args:
        worker: See ``runs_worker``.
        samples: Inputs by name, read one after the other; those whose inputs hold NaN are left out.
        folder: Folder for the inputs of one sample at a time.
        ranges: Ranges from earlier samples; they are widened.
        after_each: Called with the ranges after each sample.
        axes: Values of which means are collected, see ``mean_axes``.

    Raises:
        ToolchainError: The model cannot be run on a sample.
    """
    ranges = Ranges() if ranges is None else ranges
    for sample in samples:
        if holds_nan(sample):
            ranges.skip()
        else:
            at = str(put_values(folder, sample).folder)
            ranges.add(*worker.call("ranges", _RUN_S, values=at, axes=dict(axes or {})))
        after_each(ranges)
    return ranges


def share_outside(worker: Worker, samples: Iterable[Mapping[str, Any]], folder: Path, ranges: Ranges) -> float | None:
    """Return the share of elements of all values that lie outside their range on further samples; None if there are none."""
    outside = elements = 0
    extents = {name: list(extent) for name, extent in ranges.extents.items()}
    for sample in samples:
        found = worker.call("outside", _RUN_S, values=str(put_values(folder, sample).folder), extents=extents)
        outside, elements = outside + found[0], elements + found[1]
    return outside / elements if elements else None


def annotate_ranges(model: ir.Model, ranges: Ranges) -> None:
    """Write the range and the means of each value of a model's main graph into the value's metadata."""
    graph, axes = model.graph, mean_axes(model)
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        extent = ranges.extents.get(str(value.name))
        if extent is not None:
            set_value_range(value, *extent)
        means = ranges.means.get(str(value.name))
        if means and value.name in axes:
            set_value_means(value, axes[value.name], means)


def touches_unbounded(node: ir.Node, ranges: Ranges) -> bool:
    """Return True if a node reads or makes a value without bounds, which no 8-bit scale can hold."""
    return any(value is not None and value.name in ranges.unbounded for value in (*node.inputs, *node.outputs))
