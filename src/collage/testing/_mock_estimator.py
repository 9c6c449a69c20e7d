"""Costs from a formula: for tests of search and partitioning that must not depend on the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from collage.cost import Cost

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.target import Target

__all__ = ["MockCostEstimator"]


class MockCostEstimator:
    """The k-th operator of a kernel costs ``c * 0.9**k``, counting from 0, where ``c`` is its target's cost.

    So fusing always pays a little, and a cheaper target pays more: the model that TVM's tests of Collage use.

    Args:
        target_costs: Cost of one operator by printed target; targets that are missing cannot run anything.
        max_estimates: Fail if more kernels are estimated, None for no limit.

    Attributes:
        estimates: Number of kernels estimated so far.
    """

    def __init__(self, target_costs: Mapping[str, float], max_estimates: int | None = None) -> None:
        self._target_costs = dict(target_costs)
        self._max_estimates = max_estimates
        self.estimates = 0

    def estimate(self, module: ir.Model, target: Target) -> Cost:
        """Cost by the formula.

        Raises:
            AssertionError: More kernels were estimated than allowed.
        """
        self.estimates += 1
        assert self._max_estimates is None or self.estimates <= self._max_estimates, "too many estimates"
        cost = self._target_costs.get(str(target))
        if cost is None:
            return Cost.INVALID
        return Cost(seconds=sum(cost * 0.9**k for k in range(module.graph.num_nodes())))
