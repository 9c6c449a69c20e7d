"""Predict the cost of kernels that are not measured, so that only promising ones are built.

An expectation is learned, not proved: a search that relies on it may miss an optimum, and must not claim one. It comes from

* where the time goes inside kernels that were measured whole, as the toolchain's own profiler reports (the *base* of a node);
* for nodes that were computed there together with another one, in a kernel without that one: the least that they take alone;
* for toolchains without a profiler, the best base that any other has for the node, optimistically;
* errors of earlier estimates for this toolchain, by operator type, and for kernels that overlap this one. Measurements
  of similar kernels count most. Two kernels are similar if they share nodes that make up
  most of the time.

The cost of a measured kernel is its measurement, not an expectation.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice

from collage.graph import iterate_bits

__all__ = ["LearnedCostModel"]

_OPTIMISM = 0.95
"""Factor on the estimate of unmeasured kernels: a missed win costs more than a measurement."""
_STRANGER = 0.8
"""The same if nothing is known about the toolchain for these operators."""
_PRIOR = 0.05
"""Weight of the corrections by operator type; a measured kernel over the same nodes has weight 1."""
_LEAST_S = 1e-9
"""Least base of a node, so that shares are defined where a profile says zero (the node was merged into another)."""
_PURITY = 4
"""A kernel teaches an operator type in proportion to the type's share of it, raised to this power.

The kernel's error may be due to its other operators. So a kernel that is half Conv and half Resize teaches little of either.
"""
_TYPE_PRIOR = 0.05
"""Weight of "no correction"; a measured kernel that consists of this operator type has weight 1."""


@dataclass(slots=True)
class _Known:
    """The measured costs of one target on one model.

    Attributes:
        dispatch_s: Seconds of an empty kernel.
        base_s: Seconds of nodes inside larger kernels, as profiled.
        known_by: The node with whose seconds those of a node are.
        measured: Kernels measured: by their nodes as bits, the logarithm of measured over raw estimate.
        sums_s: Seconds of all nodes before each.
        type_weight: Total weight of the measured kernels, by operator type.
        type_log: Sum of weight times logarithm of the surprise, by operator type.
    """

    dispatch_s: float
    base_s: dict[int, float] = field(default_factory=dict)
    known_by: dict[int, int] = field(default_factory=dict)
    measured: dict[int, float] = field(default_factory=dict)
    sums_s: Sequence[float] = ()
    type_weight: dict[str, float] = field(default_factory=dict)
    type_log: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Estimate:
    """A kernel's raw estimate, and how surprising the measured kernels near it were.

    Attributes:
        raw_s: Dispatch plus the bases of its nodes.
        shares: Share of each operator type in the estimate.
        seen: Number of the target's measurements in the two sums.
        near_log: Sum of nearness times surprise.
        near: Sum of nearness.
    """

    raw_s: float
    shares: dict[str, float]
    seen: int = 0
    near_log: float = 0.0
    near: float = 0.0


class LearnedCostModel:
    """Expected seconds of kernels on one model. Sets of nodes are bits.

    Args:
        op_types: Operator type of each node, by index.
        dispatch_s: Seconds that an empty kernel takes, by target.
        alone_s: The least seconds of each node, by index, where it is not computed together with others.
    """

    def __init__(
        self, op_types: Sequence[str], dispatch_s: Mapping[Hashable, float], alone_s: Sequence[float] = ()
    ) -> None:
        self._op_types = op_types
        self._alone_s = alone_s or [0.0] * len(op_types)
        self._known = {target: _Known(seconds) for target, seconds in dispatch_s.items()}
        self._best_base: dict[int, float] = {}
        self._estimates: dict[tuple[Hashable, int], _Estimate] = {}

    def introduce(self, target: Hashable, like: Hashable) -> None:
        """Register a target that is called in the same way as another one."""
        self._known.setdefault(target, _Known(self._known[like].dispatch_s))

    def learn_profile(
        self, target: Hashable, seconds: Mapping[int, float], known_by: Mapping[int, int] | None = None
    ) -> None:
        """Take over the profile of a target.

        Args:
            target: The target.
            seconds: Seconds by node index, measured inside a larger kernel.
            known_by: The node with whose seconds those of a node are, which may be the node itself.
        """
        self._known[target].base_s.update(seconds)
        self._known[target].known_by.update(known_by or {})
        for node, value in seconds.items():
            self._best_base[node] = min(self._best_base.get(node, math.inf), value)
        self._estimates.clear()
        for known in self._known.values():
            known.sums_s = ()

    def weights(self, nodes: Iterable[int]) -> dict[int, float]:
        """Return the cost of nodes inside larger kernels, on the fastest target for each."""
        return {i: self._best_base.get(i, 0.0) + _LEAST_S for i in nodes}

    def node_s(self, target: Hashable, node: int) -> float:
        """Return the cost of a node inside larger kernels on a target, or on the fastest if this one's profile lacks it."""
        return self._node_s(self._known[target], node)

    def learn_measurement(self, target: Hashable, nodes: int, seconds: float) -> None:
        """Take over the measured time of a kernel; a later measurement replaces an earlier one."""
        estimate = self._estimate(target, nodes)
        if estimate.raw_s <= 0 or not seconds > 0:
            return
        known = self._known[target]
        surprise = math.log(seconds / estimate.raw_s)
        earlier = known.measured.get(nodes)
        known.measured[nodes] = surprise
        for op_type, share in estimate.shares.items():
            weight = share**_PURITY
            if earlier is None:
                known.type_weight[op_type] = known.type_weight.get(op_type, 0.0) + weight
            known.type_log[op_type] = known.type_log.get(op_type, 0.0) + weight * (surprise - (earlier or 0.0))
        if earlier is not None:
            for (other, _), near in self._estimates.items():
                if other == target:
                    near.seen, near.near_log, near.near = 0, 0.0, 0.0

    def expected_s(self, target: Hashable, nodes: int) -> float:
        """Expected seconds of a kernel over these nodes on this target, on the optimistic side."""
        known = self._known[target]
        estimate = self._estimate(target, nodes)
        for other, surprise in islice(known.measured.items(), estimate.seen, None):
            if common := nodes & other:
                near = (self._base_s(target, common) / self._base_s(target, nodes | other)) ** 2
                estimate.near_log += near * surprise
                estimate.near += near
        estimate.seen = len(known.measured)
        by_type = self._type_correction(known, estimate.shares)
        correction = (estimate.near_log + _PRIOR * by_type) / (estimate.near + _PRIOR)
        optimism = _OPTIMISM if known.base_s or estimate.near > _PRIOR else _STRANGER
        return optimism * estimate.raw_s * math.exp(correction)

    def _estimate(self, target: Hashable, nodes: int) -> _Estimate:
        key = (target, nodes)
        if key not in self._estimates:
            known = self._known[target]
            seconds: dict[str, float] = {}
            for i in iterate_bits(nodes):
                base = self._node_s(known, i)
                if not nodes >> known.known_by.get(i, i) & 1:
                    base += self._alone_s[i]
                seconds[self._op_types[i]] = seconds.get(self._op_types[i], 0.0) + base
            total = sum(seconds.values())
            shares = {op_type: value / total for op_type, value in seconds.items()}
            self._estimates[key] = _Estimate(known.dispatch_s + total, shares)
        return self._estimates[key]

    def _node_s(self, known: _Known, node: int) -> float:
        """Base of a node on the fastest target that has a profile of it."""
        return known.base_s.get(node, self._best_base.get(node, 0.0)) + _LEAST_S

    def _base_s(self, target: Hashable, nodes: int) -> float:
        """Sum of the bases of nodes; most kernels are ranges of them, for which it is known already."""
        known = self._known[target]
        if not known.sums_s:
            every = (self._node_s(known, i) for i in range(len(self._op_types)))
            known.sums_s = list(accumulate(every, initial=0.0))
        first = (nodes & -nodes).bit_length() - 1
        run = nodes >> first
        if run & (run + 1) == 0:
            return known.sums_s[nodes.bit_length()] - known.sums_s[first]
        return sum(known.sums_s[i + 1] - known.sums_s[i] for i in iterate_bits(nodes))

    @staticmethod
    def _type_correction(known: _Known, shares: Mapping[str, float]) -> float:
        """Logarithm of the correction that the kernel's operator types have needed so far."""
        if not known.type_weight:
            return 0.0
        ratio = 0.0
        for op_type, share in shares.items():
            weight = known.type_weight.get(op_type, 0.0) + _TYPE_PRIOR
            ratio += share * math.exp(known.type_log.get(op_type, 0.0) / weight)
        return math.log(ratio)
