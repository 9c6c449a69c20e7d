"""Elements of a reference run that rounding errors decide: there, two right kernels may return anything.

Probing inputs are chosen to find faults, and meet points where a model itself is ill-conditioned: a normalisation of equal
numbers divides rounding errors by their own size. So the model runs once more with every computed float off by about one
unit in its last place. What changes by more than half of what is tolerated is not compared on these inputs.
"""

from __future__ import annotations

import onnx_ir as ir

from collage.measure.estimator import model_tolerance
from collage.measure.reference_run import with_all_outputs
from collage.measure.session import MeasureSession
from collage.numerics.rounding_ties import only_moves
from collage.numerics.value_store import ValueStore
from collage.target import HOST_TARGET

__all__ = ["capture_unstable", "with_rounding_errors"]

_ERRORS = {ir.DataType.FLOAT: 2.0**-22, ir.DataType.FLOAT16: 2.0**-10}
"""Relative errors: two units in the last place at most."""
_EXACT = frozenset(
    {
        "Abs",
        "Clip",
        "GlobalMaxPool",
        "Identity",
        "Max",
        "MaxPool",
        "Min",
        "Neg",
        "ReduceMax",
        "ReduceMin",
        "Relu",
        "Where",
    }
)
"""Operators that return one of the numbers that they are given, or its negative."""


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
    """Multiply every computed float of a model's main graph by a random number close to 1, in place.

    Returns:
        The model, whose values keep their names.
    """
    graph = model.graph
    graph.name = "collage_rounding"
    for number, node in enumerate(list(graph)):
        if node.domain == "" and (node.op_type in _EXACT or only_moves(node)):
            continue
        for index, value in enumerate(node.outputs):
            size = _ERRORS.get(value.dtype) if value.dtype is not None else None
            if size is None or not value.name:
                continue
            near_1 = ir.Value(name=f"collage_near_1_{number}_{index}", shape=value.shape, type=value.type)
            noisy = ir.Value(shape=value.shape, type=value.type)
            value.replace_all_uses_with(noisy, replace_graph_outputs=True)
            noisy.name, value.name = value.name, f"collage_exact_{number}_{index}"
            draw = ir.node(
                "RandomUniformLike",
                [value],
                {"low": 1.0 - size, "high": 1.0 + size, "seed": float(number)},
                outputs=[near_1],
                name=near_1.name,
            )
            multiply = ir.node("Mul", [value, near_1], outputs=[noisy], name=f"collage_noisy_{number}_{index}")
            graph.insert_after(node, [draw, multiply])
    return model
