"""Elements of a reference run that rounding errors decide: there, two right kernels may return anything.

Probing inputs are chosen to find faults, and meet points where a model itself is ill-conditioned: a normalisation of equal
numbers divides rounding errors by their own size. So the model runs once more with errors of about two units in the last
place in the operands of operators that may cancel them. Elements that change by more than half of the tolerance are not
compared on these inputs.
"""

from __future__ import annotations

import onnx_ir as ir

from collage.measure.estimator import model_tolerance
from collage.measure.reference_run import with_all_outputs
from collage.measure.session import MeasureSession
from collage.numerics.value_store import ValueStore
from collage.target import HOST_TARGET

__all__ = ["capture_unstable", "with_rounding_errors"]

_ERRORS = {ir.DataType.FLOAT: 2.0**-22, ir.DataType.FLOAT16: 2.0**-10}
"""Relative errors: two units in the last place at most."""
_CANCELLING = frozenset(
    (
        *("Add", "GlobalAveragePool", "GroupNormalization", "InstanceNormalization", "LayerNormalization"),
        *("LpNormalization", "MeanVarianceNormalization", "ReduceMean", "ReduceSum", "Sub"),
    )
)
"""Operators whose results may be small differences of large numbers, and so errors of these."""


def capture_unstable(model: ir.Model, measure_session: MeasureSession, values: ValueStore) -> None:
    """Mark the elements of a reference run that change with rounding errors.

    Args:
        model: The prepared model.
        measure_session: Runs it once more.
        values: All values of the run; the marks are put there.

    Raises:
        ToolchainError: It cannot be run with rounding errors.
    """
    tolerance = model_tolerance(model, saturating=False) / 2.0
    measure_session.mark_unstable(with_rounding_errors(with_all_outputs(model)), HOST_TARGET, values, tolerance)


def with_rounding_errors(model: ir.Model) -> ir.Model:
    """Multiply operands that may cancel by random numbers close to 1, in the main graph of a model, in place.

    Other operators enlarge the errors of their operands by no more than the tolerance of kernels.

    Returns:
        The model, whose values keep their names.
    """
    graph = model.graph
    graph.name = "collage_rounding"
    for number, node in enumerate(list(graph)):
        if node.domain != "" or node.op_type not in _CANCELLING:
            continue
        operands = [value if value is not None and _is_computed_float(value) else None for value in node.inputs]
        if node.op_type == "Add" and None in operands:
            continue  # A bias.
        for index, value in enumerate(operands):
            if value is None or value.dtype is None:
                continue
            size = _ERRORS[value.dtype]
            name = f"collage_near_1_{number}_{index}"
            attributes = {"low": 1.0 - size, "high": 1.0 + size, "seed": float(number)}
            draw = ir.node("RandomUniformLike", [value], attributes, name=name)
            multiply = ir.node("Mul", [value, draw.outputs[0]], name=f"collage_noisy_{number}_{index}")
            for made in (draw, multiply):
                made.outputs[0].name = f"{made.name}_value"
                made.outputs[0].type, made.outputs[0].shape = value.type, value.shape
            graph.insert_before(node, [draw, multiply])
            node.replace_input_with(index, multiply.outputs[0])
    return model


def _is_computed_float(value: ir.Value) -> bool:
    return value.producer() is not None and value.dtype in _ERRORS
