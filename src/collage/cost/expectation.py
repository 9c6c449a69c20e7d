"""What an unmeasured kernel can be expected to cost, so that only promising ones are built.

An expectation is learned, not proved: a search that relies on it may miss an optimum, and must not claim one. It comes from

* where the time goes inside kernels that were measured whole, as the toolchain's own profiler tells (the *base* of a node);
* for toolchains that cannot tell, the best base that any other has for the node, optimistically;
* how far measurements of this toolchain were off so far, for the operator types in question, and for kernels that
  overlap this one. What was learned nearby counts most.

Design section 6, "Lazy": expected bounds. A measurement is never an expectation: what was measured is what it costs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Expectation"]

_OPTIMISM = 0.95
"""Unmeasured kernels are taken to be this much cheaper than the estimate: a missed win costs more than a measurement."""
_STRANGER = 0.8
"""The same where nothing at all is known of the toolchain for these operators."""
_PRIOR = 0.15
"""Weight of what operator types say, against one for a measured kernel over the same nodes."""
_TYPE_PRIOR = 0.05
"""Weight of "no correction", against one for a measured kernel that consists of this operator type."""


@dataclass(slots=True)
class _Known:
    """What is known of one toolchain (with its options) on one model."""

    base_s: dict[int, float] = field(default_factory=dict)
    dispatch_s: float = 0.0
    measured: list[tuple[int, float]] = field(default_factory=list)
    type_weight: dict[str, float] = field(default_factory=dict)
    type_log: dict[str, float] = field(default_factory=dict)


class Expectation:
    """Expected seconds of kernels on one model.

    Args:
        op_types: Operator type of each node, by index.
        dispatch_s: Seconds that an empty kernel takes, by target.
    """

    def __init__(self, op_types: Sequence[str], dispatch_s: Mapping[Hashable, float]) -> None:
        self._op_types = op_types
        self._known = {target: _Known(dispatch_s=seconds) for target, seconds in dispatch_s.items()}
        self._best_base: dict[int, float] = {}

    def learn_profile(self, target: Hashable, seconds: Mapping[int, float]) -> None:
        """Takes over where the time goes on a target: seconds by node index, measured inside a larger kernel."""
        self._known[target].base_s.update(seconds)
        for node, value in seconds.items():
            self._best_base[node] = min(self._best_base.get(node, math.inf), value)

    def learn_measurement(self, target: Hashable, nodes: Iterable[int], seconds: float) -> None:
        """Takes over what a kernel really took."""
        members = tuple(nodes)
        raw = self._raw(target, members)
        if raw <= 0 or not seconds > 0:
            return
        known = self._known[target]
        surprise = math.log(seconds / raw)
        known.measured.append((_bits(members), surprise))
        for op_type, share in self._shares(target, members).items():
            known.type_weight[op_type] = known.type_weight.get(op_type, 0.0) + share
            known.type_log[op_type] = known.type_log.get(op_type, 0.0) + share * surprise

    def expected_s(self, target: Hashable, nodes: Iterable[int]) -> float:
        """Expected seconds of a kernel over these nodes on this target, on the optimistic side."""
        members = tuple(nodes)
        known = self._known[target]
        raw = self._raw(target, members)
        bits = _bits(members)
        log_sum, weight = 0.0, 0.0
        for other, surprise in known.measured:
            common = (bits & other).bit_count()
            if common:
                near = (common / (bits | other).bit_count()) ** 2
                log_sum += near * surprise
                weight += near
        by_type = self._type_correction(target, members)
        log_sum += _PRIOR * by_type
        optimism = _OPTIMISM if known.base_s or weight > _PRIOR else _STRANGER
        return optimism * raw * math.exp(log_sum / (weight + _PRIOR))

    def _raw(self, target: Hashable, members: Sequence[int]) -> float:
        known = self._known[target]
        base = sum(known.base_s.get(i, self._best_base.get(i, 0.0)) for i in members)
        return known.dispatch_s + base

    def _shares(self, target: Hashable, members: Sequence[int]) -> dict[str, float]:
        """Which share of a kernel's time each operator type has."""
        known = self._known[target]
        seconds: dict[str, float] = {}
        for i in members:
            base = known.base_s.get(i, self._best_base.get(i, 0.0)) + 1e-9
            seconds[self._op_types[i]] = seconds.get(self._op_types[i], 0.0) + base
        total = sum(seconds.values())
        return {op_type: value / total for op_type, value in seconds.items()}

    def _type_correction(self, target: Hashable, members: Sequence[int]) -> float:
        known = self._known[target]
        if not known.type_weight:
            return 0.0
        ratio = sum(
            share * math.exp(known.type_log.get(op_type, 0.0) / (known.type_weight.get(op_type, 0.0) + _TYPE_PRIOR))
            for op_type, share in self._shares(target, members).items()
        )
        return math.log(ratio)


def _bits(members: Iterable[int]) -> int:
    bits = 0
    for i in members:
        bits |= 1 << i
    return bits
