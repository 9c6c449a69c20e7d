"""The features that times are predicted from: the work of a kernel by class of operator, and the machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.graph import OpKind, declared_kind
from collage.measure.operator_work import OperatorWork, WorkByOperator
from collage.system.codec import Positive

__all__ = ["CLASSES", "ONE_KERNEL", "Rates", "amounts", "class_of", "columns", "parts_s"]

_PRODUCTS = {
    "Conv": "conv",
    "Conv.pointwise": "conv.pointwise",
    "Conv.depthwise": "conv.depthwise",
    "Conv.grouped": "conv.depthwise",
    "Conv.1d": "conv",
    "Conv.3d": "conv.3d",
    "ConvTranspose": "conv.transpose",
    "MatMul": "product",
    "Gemm": "product",
    "GRU": "recurrent",
    "LSTM": "recurrent",
    "RNN": "recurrent",
}
_KINDS = {
    OpKind.ELEMWISE: "elementwise",
    OpKind.BROADCAST: "elementwise",
    OpKind.INJECTIVE: "move",
    OpKind.COMM_REDUCE: "reduce",
    OpKind.OUT_ELEMWISE_FUSABLE: "layer",
}
CLASSES = (*dict.fromkeys(_PRODUCTS.values()), "elementwise", "move", "reduce", "layer", "other", "quantised")
ONE_KERNEL = "kernel"
"""The part of a time that each kernel has, whatever it does."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of the processors that run a kernel.

    Attributes:
        flops_per_s: Floating-point operations per second, of all that run it.
        bytes_per_s: Bytes per second to and from a cache, of all that run it.
        threads: Number of them.
    """

    flops_per_s: Positive
    bytes_per_s: Positive
    threads: Positive


def class_of(label: str) -> str:
    """Return the class of an operator by its label in a ``WorkByOperator``."""
    name, _, dtype = label.partition("/")
    if "Quantize" in name or "INT8" in dtype or name in ("MatMulInteger", "ConvInteger", "QLinearConv"):
        return "quantised"
    domain, _, op_type = ("", "", name) if name in _PRODUCTS else name.rpartition(".")
    return _PRODUCTS.get(name) or _KINDS.get(declared_kind(domain, op_type), "other")


def amounts(work: WorkByOperator, rates: Rates) -> dict[str, float]:
    """Return seconds by part of a kernel at the full rates of the machine: of arithmetic and of memory by class, and counts."""
    found = {ONE_KERNEL: 1.0, "operators": 0.0}
    for label, operator in work.operators.items():
        name = class_of(label)
        found["operators"] += operator.count
        for part, seconds in (
            (f"{name} flops", operator.flops / rates.flops_per_s),
            (f"{name} bytes", (operator.read_bytes + operator.written_bytes) / rates.bytes_per_s),
        ):
            if seconds:
                found[part] = found.get(part, 0.0) + seconds
    return found


def parts_s(work: WorkByOperator, rates: Rates, coefficients: Mapping[str, float]) -> dict[str, float]:
    """Return the expected seconds of a kernel by class of operator."""
    found: dict[str, float] = {}
    for part, amount in amounts(work, rates).items():
        name = part.partition(" ")[0]
        found[name] = found.get(name, 0.0) + coefficients.get(part, 0.0) * amount
    return found


def columns(work: WorkByOperator, rates: Rates, parts: Mapping[str, float]) -> Sequence[float]:
    """Return the features by which the trees correct the sum of the parts."""
    base_s = sum(parts.values())
    every: Sequence[OperatorWork] = list(work.operators.values())
    products = sum(each.count for each in every if each.flops)
    flops = sum(each.flops for each in every)
    nbytes = sum(each.read_bytes + each.written_bytes for each in every)
    count = sum(each.count for each in every)
    return [
        math.log(base_s),
        math.log1p(count),
        math.log1p(flops / max(products, 1)),
        math.log1p(nbytes / max(count, 1)),
        math.log1p(flops) - math.log1p(nbytes),
        rates.threads,
        *(parts.get(name, 0.0) / base_s for name in CLASSES),
    ]
