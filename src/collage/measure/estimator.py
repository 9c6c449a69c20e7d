"""Cost estimators: functions that return the cost of a kernel on a target.

``CostEstimator`` is the extension point: ``estimate(module, target) -> Cost``, where the module is a kernel as a
standalone model. The measuring one is the rule; a custom callable may count something else (memory, energy) instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import onnx_ir as ir

from collage.cost.cost import Cost
from collage.cost.outcome import Outcome
from collage.measure.cache_pressure import CachePressure
from collage.measure.jobs import Job, structure_of
from collage.measure.session import MeasureSession
from collage.numerics.judge import REDUCED_TOLERANCE, tolerance_of
from collage.system.machine import this_machine

if TYPE_CHECKING:
    from collage.target import Target

__all__ = ["CostEstimator", "CustomCostEstimator", "MeasuringCostEstimator", "model_tolerance"]


@runtime_checkable
class CostEstimator(Protocol):
    """Returns the cost of a kernel."""

    def estimate(self, module: ir.Model, target: Target) -> Cost:
        """Cost of running ``module`` compiled for ``target``.

        Returns:
            Seconds; ``Cost.INVALID`` if it cannot be compiled and run; ``Cost.UNKNOWN`` if priorities should decide.
        """
        ...


class CustomCostEstimator:
    """Costs from a callable; it may return seconds, NaN for unknown, or infinity for invalid."""

    def __init__(self, function: Callable[[ir.Model, Target], float]) -> None:
        self._function = function

    def estimate(self, module: ir.Model, target: Target) -> Cost:
        """Return the cost that the callable states."""
        return Cost.of(self._function(module, target))


class MeasuringCostEstimator:
    """Costs by measurement, on the model's real intermediate values, as in the model rather than in a loop.

    Args:
        measure_session: Builds and measures.
        model_bytes: Weights of the whole model.
    """

    def __init__(self, measure_session: MeasureSession, model_bytes: int) -> None:
        self._session = measure_session
        self._surroundings = CachePressure(model_bytes, measure_session.values, measure_session.cores)
        self._structures: dict[str, str] = {}

    def estimate(self, module: ir.Model, target: Target) -> Cost:
        """Measure one kernel, unless its timing is known."""
        return self.measure([(module, target)])[0].cost

    def measure(
        self, kernels: Sequence[tuple[ir.Model, Target]], abandon_above_s: float = float("inf")
    ) -> list[Outcome]:
        """Measure several; builds run side by side.

        Args:
            kernels: Standalone models. Their inputs and outputs have the names of the values in the model.
            abandon_above_s: Kernels slower than this need not be measured precisely.
        """
        jobs = [self.job(module, target, abandon_above_s) for module, target in kernels]
        return self._session.measure(jobs)

    def measure_again(self, module: ir.Model, target: Target, abandon_above_s: float) -> Outcome | None:
        """Measure a kernel once more, see ``MeasureSession.measure_again``."""
        return self._session.measure_again(self.job(module, target, abandon_above_s))

    def why_wrong(self, module: ir.Model, target: Target) -> str | None:
        """Return the reason why this kernel, with its weights and on its values, is wrong; None if it is right.

        Raises:
            ToolchainError: It could not be built or run.
        """
        return self._session.check(self.job(module, target))

    def job(self, module: ir.Model, target: Target, abandon_above_s: float = float("inf")) -> Job:
        """The job of measuring a kernel."""
        graph = module.graph
        name = str(graph.name)
        if name not in self._structures:
            self._structures[name] = structure_of(module)
        return Job(
            kernel=module,
            structure=self._structures[name],
            target=target,
            inputs=tuple(str(value.name) for value in graph.inputs),
            outputs=tuple(str(value.name) for value in graph.outputs),
            tolerance=REDUCED_TOLERANCE if target.is_reduced else model_tolerance(module),
            context_bytes=self._surroundings.flush_bytes(module, target),
            abandon_above_s=abandon_above_s,
        )


def model_tolerance(model: ir.Model, *, saturating: bool | None = None) -> float:
    """Tolerance for the results of a model, by the coarsest type in it (see ``collage.numerics.judge``).

    Args:
        model: A model, or a kernel.
        saturating: True if sums of products of bytes may saturate; by default where toolchains let them on this machine.
    """
    if saturating is None:
        saturating = this_machine().saturates_products_of_bytes
    types: set[str] = set()
    quantised = False
    for node in model.graph.all_nodes():
        quantised = quantised or "Quantize" in node.op_type or node.op_type in ("MatMulInteger", "ConvInteger")
        types.update(value.dtype.name.lower() for value in node.outputs if value.dtype is not None)
    return tolerance_of((_numpy_name(name) for name in types), quantised, saturating)


def _numpy_name(name: str) -> str:
    """NumPy's name of an ONNX element type: ``FLOAT`` is ``float32``, ``DOUBLE`` is ``float64``."""
    return {"float": "float32", "double": "float64"}.get(name, name)
