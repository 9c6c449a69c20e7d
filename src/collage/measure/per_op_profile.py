"""A profile for toolchains that have none: one operator of each important type is measured alone.

The time of a type on another toolchain is a poor estimate if toolchains differ, and that is when mixing pays. A
few small kernels give these times. They are candidates themselves, so nothing is measured for this alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = ["parts_to_measure", "profile_from_parts"]

_WORTH = 0.1
"""Share from which on a type of operator is worth a kernel: of square roots of times, since what takes a hundredth of
another toolchain's time may take a tenth of this one's."""
_MOST = 8


def parts_to_measure(op_types: Sequence[str], weights: Mapping[int, float]) -> list[int]:
    """The node to measure for each type of operator that matters, the type that takes longest first.

    Args:
        op_types: Operator type of each node, by index.
        weights: Estimated cost of each node, in any unit. Nodes of a type cost in proportion to it.
    """
    of_type: dict[str, list[int]] = {}
    for node in weights:
        of_type.setdefault(op_types[node], []).append(node)
    totals = {op_type: math.sqrt(sum(weights[node] for node in nodes)) for op_type, nodes in of_type.items()}
    worth = [t for t, total in totals.items() if total >= _WORTH * sum(totals.values())]
    worth.sort(key=lambda op_type: (-totals[op_type], op_type))
    return [max(of_type[op_type], key=lambda node: (weights[node], -node)) for op_type in worth[:_MOST]]


def profile_from_parts(
    op_types: Sequence[str], weights: Mapping[int, float], seconds: Mapping[int, float], total_s: float | None
) -> dict[int, float]:
    """Seconds of every node inside a large kernel.

    Args:
        op_types: As for ``parts_to_measure``.
        weights: As for ``parts_to_measure``.
        seconds: Measured seconds by node, without the cost of the call.
        total_s: Seconds of all nodes as one kernel, to which the profile is scaled; None if that is not known.

    Returns:
        Seconds by node. Types that were not measured keep the proportions that weights give them. Empty without parts.
    """
    if not seconds:
        return {}
    rates = {op_types[node]: took / weights[node] for node, took in seconds.items() if weights[node] > 0}
    typical = sorted(rates.values())[len(rates) // 2] if rates else 1.0
    profile = {node: weight * rates.get(op_types[node], typical) for node, weight in weights.items()}
    sum_s = sum(profile.values())
    scale = total_s / sum_s if total_s and sum_s > 0 else 1.0
    return {node: value * scale for node, value in profile.items()}
