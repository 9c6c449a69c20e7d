"""Ranges of activations: the smallest and the largest that each floating-point value of a model takes over samples.

They are collected one sample at a time, in a worker process, so that memory holds the values of one sample at most. What is
kept of a value is two numbers. A static 8-bit target reads them from the metadata of the values, see ``annotate_ranges``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from collage.calibration.samples import put_values
from collage.graph import set_value_range
from collage.workers.worker import Worker

__all__ = [
    "Ranges",
    "annotate_ranges",
    "collect_ranges",
    "runs_worker",
    "share_outside",
    "touches_unbounded",
]

_SERVICE = "collage.calibration._runs_worker:RunsService"
_RUN_S = 180.0
_SENTINEL = 1e6
"""From this magnitude on, a number stands for infinity, as in masks: 8 bits cannot hold it beside others."""


@dataclass(slots=True)
class Ranges:
    """Ranges found so far.

    Attributes:
        extents: The smallest and the largest finite element by the name of each value.
        unbounded: Names of values that had NaN or infinite elements, or magnitudes that stand for infinity.
        samples: Samples that they come from.
    """

    extents: dict[str, tuple[float, float]] = field(default_factory=dict)
    unbounded: set[str] = field(default_factory=set)
    samples: int = 0

    def add(self, found: Mapping[str, Iterable[float]]) -> None:
        """Widen the ranges by what one more sample showed: low, high, and the number of elements that are not finite."""
        for name, (low, high, others) in found.items():
            known_low, known_high = self.extents.get(name, (math.inf, -math.inf))
            self.extents[name] = min(low, known_low), max(high, known_high)
            if others or max(-low, high) >= _SENTINEL:
                self.unbounded.add(name)
        self.samples += 1

    def as_json(self) -> dict[str, Any]:
        """Return what ``from_json`` reads."""
        extents = {name: list(extent) for name, extent in self.extents.items()}
        return {"extents": extents, "unbounded": sorted(self.unbounded), "samples": self.samples}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Ranges:
        """Return ranges that were written down."""
        extents = {name: (float(low), float(high)) for name, (low, high) in told["extents"].items()}
        return cls(extents, set(told["unbounded"]), int(told["samples"]))


def runs_worker(model_file: Path, *, watches: bool = True, memory_bytes: int | None = None) -> Worker:
    """Return a worker process that runs a model file unoptimised; its service is ``RunsService``."""
    return Worker(_SERVICE, {"model": str(model_file), "watches": watches}, memory_bytes=memory_bytes)


def collect_ranges(
    worker: Worker,
    samples: Iterable[Mapping[str, Any]],
    folder: Path,
    ranges: Ranges | None = None,
    after_each: Callable[[Ranges], None] = lambda _: None,
) -> Ranges:
    """Run a model on samples, one at a time, and return the ranges of all its floating-point values.

    Args:
        worker: See ``runs_worker``.
        samples: Inputs by name; read one after the other.
        folder: Where the inputs of one sample lie meanwhile.
        ranges: What earlier samples showed; it is widened.
        after_each: Told of the ranges after each sample.

    Raises:
        ToolchainError: The model cannot be run on a sample.
    """
    ranges = Ranges() if ranges is None else ranges
    for sample in samples:
        ranges.add(worker.call("ranges", _RUN_S, values=str(put_values(folder, sample).folder)))
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
    """Write the range of each value of a model's main graph into the value's metadata."""
    graph = model.graph
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        extent = ranges.extents.get(str(value.name))
        if extent is not None:
            set_value_range(value, *extent)


def touches_unbounded(node: ir.Node, ranges: Ranges) -> bool:
    """Return True if a node reads or makes a value without bounds, which no 8-bit scale can hold."""
    return any(value is not None and value.name in ranges.unbounded for value in (*node.inputs, *node.outputs))
