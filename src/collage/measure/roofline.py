"""A time that no kernel can undercut on this machine: the roofline, with all assumptions on the fast side.

These are *proof* bounds: with them the lazy search can state how far its result is from the optimum at most.
They are sound as long as a toolchain

* does the multiplications of a product or convolution, less what Winograd's algorithm saves (a factor of 5, that of
  F(6x6, 3x3), at most), and
* reads each weight of theirs once, and writes each result once, to a cache;

and as long as the machine's peak is at most one and a half times the rate of a large matrix product, nor its cache twice as
fast as copying inside it. Whatever else operators do counts as nothing, so bounds of kernels without products are low.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from collage.database import MACHINE, Database, FactKind
from collage.graph import SubGraph, is_view, value_nbytes
from collage.measure.machine_rates import PEAK_SERVICE, SINGLE_THREADED
from collage.measure.work import ShapeOf, product_flops
from collage.system.codec import Positive
from collage.system.machine import this_machine
from collage.target import Target
from collage.workers.machine_lock import measurement_lock
from collage.workers.worker import Worker

__all__ = ["Peak", "Roofline", "known_rates", "measure_peak", "measured_rates"]

_WINOGRAD = (6 * 3 / (6 + 3 - 1)) ** 2
"""Multiplications saved by F(6x6, 3x3), the largest tile in use for floating point."""
_REDUCED = 16.0
"""The largest speed-up of a coarser type over f32: tile units do sixteen 8-bit products in the time of one in f32."""
_ABOVE_GEMM = 3.0
"""A processor that the measured library does not know yet is twice as fast in another one, and clocks vary."""
_ABOVE_COPY = 2.0
_PATIENCE_S = 60.0
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "GRU", "LSTM", "MatMul", "RNN"})
"""Products that every toolchain computes by their definition, but for Winograd's algorithm."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak rates of this machine.

    Attributes:
        flops_per_s: Floating-point operations per second, f32, all cores.
        bytes_per_s: Bytes per second to and from a cache, all cores.
    """

    flops_per_s: Positive
    bytes_per_s: Positive


_PEAK: FactKind[Peak] = FactKind("peak", Peak)


def known_rates(database: Database, machine: str) -> tuple[float, float, int] | None:
    """Return the measured rates of a machine, by its fingerprint; None if they are not known.

    Returns:
        Floating-point operations and bytes per second of all processors, and their number.
    """
    is_this = machine == this_machine().fingerprint
    peak, facts = database.fact(_PEAK, machine=machine), database.fact(MACHINE, machine=machine) or {}
    cores = this_machine().cores if is_this else facts.get("cores")
    if peak is None or not isinstance(cores, int) or cores < 1:
        return None
    return peak.flops_per_s * cores, peak.bytes_per_s * cores, cores


def measured_rates(database: Database) -> tuple[float, float, int]:
    """The rates of this machine, see ``known_rates``: measured once, and kept."""
    name = this_machine().fingerprint
    found = known_rates(database, name)
    if found is not None:
        return found
    with measurement_lock(), Worker(PEAK_SERVICE, environment=SINGLE_THREADED) as worker:
        peak = Peak(*(worker.call(rate, _PATIENCE_S) for rate in ("flops_per_s", "bytes_per_s")))
    database.keep_fact(_PEAK, peak, machine=name)
    cores = this_machine().cores
    return peak.flops_per_s * cores, peak.bytes_per_s * cores, cores


def measure_peak(database: Database) -> Peak:
    """The rates that no kernel on this machine exceeds."""
    flops_per_s, bytes_per_s, _ = measured_rates(database)
    return Peak(_ABOVE_GEMM * flops_per_s, _ABOVE_COPY * bytes_per_s)


class Roofline:
    """Proof bounds of the kernels of one model.

    Args:
        nodes: The graph's nodes, by index.
        shape_of: Shape of a value, or None if it is unknown.
        peak: Peak rates of the machine.
    """

    def __init__(self, nodes: Iterable[ir.Node], shape_of: ShapeOf, peak: Peak) -> None:
        self._shape_of = shape_of
        self._peak = peak
        nodes = tuple(nodes)
        self._arithmetic_s = [self._flops(node) / peak.flops_per_s for node in nodes]
        self._written_bytes = [self._written(node) for node in nodes]
        self._read_bytes = [self._weight_bytes(node) for node in nodes]

    def bound_s(self, sub_graph: SubGraph, target: Target) -> float:
        """Seconds that a kernel over this sub-graph cannot undercut on this target."""
        arithmetic_s = sum(self._arithmetic_s[i] for i in sub_graph.inside)
        written = sum(self._written_bytes[i] for i in sub_graph.exit)
        if target.is_reduced:
            return max(arithmetic_s, written / self._peak.bytes_per_s) / _REDUCED
        read = sum(self._read_bytes[i] for i in sub_graph.inside)
        return max(arithmetic_s, (written + read) / self._peak.bytes_per_s)

    def node_s(self, index: int) -> float:
        """Seconds that a node cannot undercut in the model's own type, if its result is written."""
        return max(self._arithmetic_s[index], self._written_bytes[index] / self._peak.bytes_per_s)

    def _flops(self, node: ir.Node) -> float:
        """Floating-point operations that no way of computing the node can do without; 0 if that is not known."""
        if node.op_type not in _PRODUCTS:
            return 0.0
        kernel = self._shape_of(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
        is_saved = node.op_type == "ConvTranspose" or (node.op_type == "Conv" and math.prod((kernel or ())[2:]) > 1)
        return product_flops(node, self._shape_of) / (_WINOGRAD if is_saved else 1.0)

    def _weight_bytes(self, node: ir.Node) -> float:
        if node.op_type not in ("Conv", "ConvTranspose", "MatMul", "Gemm"):
            return 0.0
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        return self._bytes(weight) if weight is not None and weight.const_value is not None else 0.0

    def _written(self, node: ir.Node) -> float:
        """Bytes of a result that leaves the kernel; of several results, which ones do is not looked into."""
        return self._bytes(node.outputs[0]) if len(node.outputs) == 1 and not is_view(node) else 0.0

    def _bytes(self, value: ir.Value) -> float:
        shape = self._shape_of(value)
        return 0.0 if shape is None else value_nbytes(value, shape) or 0.0
