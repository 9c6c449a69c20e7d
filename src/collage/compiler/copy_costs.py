"""The cost of handing a tensor from one device to another. It is measured once on this machine and kept.

Sets of this machine's cores share its memory, so nothing is copied between them. It is not free either: the other core
set's thread has to be woken, and has to fetch the tensor from the caches of the cores that wrote it. Both are measured
in the way in which the executor starts kernels. Sets that are names only, without cores of their own, cost nothing.
Costs of devices with a memory of their own are assumed, not measured.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.compiler.device_placement import DevicePlacement
from collage.database import Database, FactKind
from collage.device import SEScope
from collage.graph import DataflowGraph
from collage.runtime import CoreSets
from collage.search import Transfer
from collage.system.codec import Share
from collage.system.machine import this_machine
from collage.workers.machine_lock import measurement_lock

__all__ = ["CopyCost", "hand_overs", "measure_copy_cost", "transfers_of"]

_ROUNDS = 101
_SMALL_BYTES = 64
_LARGE_BYTES = 1 << 20
"""Bytes of a copy that fits into a core's own cache, as most intermediate values do."""

Cores = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CopyCost:
    """The cost of a tensor that another core set reads, beyond that of the core set that wrote it.

    Attributes:
        latency_s: Seconds until the other thread is awake.
        s_per_byte: Seconds for each byte that it fetches.
    """

    latency_s: Share = 0.0
    s_per_byte: Share = 0.0

    def seconds(self, nbytes: int) -> float:
        """Return the seconds of copying a tensor of ``nbytes`` bytes."""
        return self.latency_s + nbytes * self.s_per_byte


_HAND_OVER: FactKind[CopyCost] = FactKind("hand-over", CopyCost)
_ACROSS = CopyCost(20e-6, 1e-10)
"""Assumed of a copy from or to a device with a memory of its own, which is not measured: 10 GB/s from memory that is not
pinned, and the launch and the wait. Never nothing: kernels there are timed between tensors that are there already.
"""


def measure_copy_cost(src: Cores, dst: Cores, database: Database, remeasure: bool = False) -> CopyCost:
    """Return the cost of handing a tensor from one core set to another, from the database if it is known for this machine.

    Args:
        src: The cores that write it.
        dst: The cores that read it; empty for any.
        database: The database that holds facts.
        remeasure: Measure again even if the costs are known.
    """
    name = {"machine": this_machine().fingerprint, "src": list(src), "dst": list(dst)}
    known = None if remeasure else database.local_fact(_HAND_OVER, **name)
    if known is not None:
        return known
    with measurement_lock():
        devices = CoreSets({"src": src, "dst": dst})
        small, large = (_extra_s(devices, nbytes) for nbytes in (_SMALL_BYTES, _LARGE_BYTES))
    found = CopyCost(small, max(0.0, large - small) / _LARGE_BYTES)
    database.keep_local_fact(_HAND_OVER, found, **name)
    return found


def transfers_of(
    placement: DevicePlacement,
    graph: DataflowGraph,
    nbytes_of: Callable[[ir.Value], int],
    database: Database,
    *,
    remeasure: bool = False,
) -> list[Transfer]:
    """Return the values that operators pass to each other, with the cost of copying them, if the search places operators."""
    costs: dict[tuple[SEScope, SEScope], CopyCost] = {}

    def copy_s(src: SEScope, dst: SEScope, nbytes: int) -> float:
        if (src, dst) not in costs:
            costs[src, dst] = _copy_cost(src, dst, placement.cores, database, remeasure)
        return costs[src, dst].seconds(nbytes)

    return placement.transfers(graph, copy_s, nbytes_of)


def hand_overs(
    graph: DataflowGraph,
    lanes: int,
    nbytes_of: Callable[[ir.Value], int],
    database: Database,
    *,
    remeasure: bool = False,
) -> list[Transfer]:
    """Return the values that operators pass to each other, with the cost of passing them between lanes.

    A lane is a thread that may use any core, so all costs are alike.
    """
    cost = measure_copy_cost((), (), database, remeasure)
    found = []
    for node in range(len(graph)):
        seconds = cost.seconds(sum(map(nbytes_of, graph.node(node).outputs)))
        prices = [[0.0 if src == dst else seconds for dst in range(lanes)] for src in range(lanes)]
        found.append(Transfer(node, dict.fromkeys(graph.consumers(node)), prices))
    return found


def _copy_cost(
    src: SEScope, dst: SEScope, cores: Mapping[SEScope, Cores], database: Database, remeasure: bool
) -> CopyCost:
    if {src.device_type, dst.device_type} != {"cpu"}:
        return _ACROSS
    if not (cores.get(src) or cores.get(dst)):
        return CopyCost()
    return measure_copy_cost(cores.get(src, ()), cores.get(dst, ()), database, remeasure)


def _extra_s(devices: CoreSets, nbytes: int) -> float:
    """Return the extra seconds of reading a tensor on the other device; never negative."""
    array = np.zeros(max(1, nbytes // 8))
    times: Mapping[str, list[float]] = {"src": [], "dst": []}
    for turn in range(_ROUNDS):
        for reader in times:
            times[reader].append(_handed_s(devices, array, float(turn), reader))
    there, here = (statistics.median(times[reader][_ROUNDS // 10 :]) for reader in ("dst", "src"))
    return max(0.0, there - here)


def _handed_s(devices: CoreSets, array: np.ndarray[Any, Any], content: float, reader: str) -> float:
    """Seconds from a tensor's being written on one device to its having been read on another, or the same."""
    done, span = threading.Event(), [0.0, 0.0]

    def read() -> None:
        array.sum()
        span[1] = time.perf_counter()
        done.set()

    def write() -> None:
        array.fill(content)
        span[0] = time.perf_counter()
        devices.submit(reader, read)

    devices.submit("src", write)
    done.wait()
    return span[1] - span[0]
