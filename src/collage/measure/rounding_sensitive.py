"""Elements of the model's values that depend on decisions within the tolerance, and are not compared.

A decision is a comparison, a rounding, an argument of a maximum. Each decision of the reference run that lies within
the tolerance is reversed, and the values that depend on it are computed once more. Elements that change are marked. If
more than a small share of a value changes, all of it is compared: a kernel must not be excused from everything.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from collage._errors import ToolchainError
from collage.graph import constant_tensor
from collage.measure.estimator import model_tolerance
from collage.measure.session import MeasureSession
from collage.numerics.compare import differing_elements
from collage.numerics.rounding_ties import Decision, close_decisions, followers
from collage.numerics.value_store import ValueStore
from collage.target import HOST_TARGET

__all__ = ["MOST_UNSETTLED", "capture_rounding_sensitive"]

Array = np.ndarray[Any, Any]

MOST_UNSETTLED = 0.05
"""Share of a value's elements that may be left out of a comparison."""
_TURNABLE = frozenset({"bool", "float32", "float64", "int32", "int64", "uint8"})
"""Element types for which the host's runtime has the operators that turn a decision over."""


def capture_rounding_sensitive(
    model: ir.Model, measure_session: MeasureSession, values: ValueStore, *, exempt: bool = False
) -> None:
    """Find the elements of a reference run that depend on rounding, and store them with its values.

    Args:
        model: The model that was run.
        measure_session: Runs it once more, if any decision is close. If that fails, everything is compared.
        values: All values of the run.
        exempt: Leave out all values that follow from decisions if most of these are close, as on probing inputs that
            are all equal.
            Else that is compared as if they were not.
    """

    def value_of(value: ir.Value) -> Array | None:
        tensor = constant_tensor(value)
        if tensor is not None:
            return tensor.numpy()
        return values.get(str(value.name)) if value.name in values else None

    tolerance = model_tolerance(model, saturating=False)
    close = list(close_decisions(model.graph, value_of, tolerance))
    decisions = [d for d in close if d.close.mean() <= MOST_UNSETTLED and d.otherwise.dtype.name in _TURNABLE]
    if exempt:
        for name in followers(model.graph, (d.value for d in close if d.close.mean() > MOST_UNSETTLED)):
            if name in values:
                values.put_rounding_sensitive(name, np.ones(values.shape(name), bool))
        values.flush()
    if not decisions:
        return
    turned = ValueStore(values.folder.with_name(f"{values.folder.name}_turned"))
    try:
        copy = _with_turns(model, decisions, turned)
        for value in model.graph.inputs:
            if values.holds_input(str(value.name)):
                turned.put_input(str(value.name), values.input(str(value.name)))
        turned.flush()
        measure_session.capture(copy, HOST_TARGET, turned)
        for value in copy.graph.outputs:
            name = str(value.name)
            if name in values and name in turned and values.shape(name) == turned.shape(name):
                # Half of what is tolerated, so that no other half hides behind it.
                rounding_sensitive = differing_elements(turned.get(name), values.get(name), tolerance / 2.0)
                if (
                    values.rounding_sensitive(name) is None
                    and rounding_sensitive.any()
                    and rounding_sensitive.mean() <= MOST_UNSETTLED
                ):
                    values.put_rounding_sensitive(name, rounding_sensitive)
        values.flush()
    except ToolchainError:
        return
    finally:
        shutil.rmtree(turned.folder, ignore_errors=True)


def _with_turns(model: ir.Model, decisions: Sequence[Decision], feeds: ValueStore) -> ir.Model:
    """A copy whose close decisions are reversed. Its outputs are all values that follow from them.

    Args:
        model: The model.
        decisions: The decisions to reverse.
        feeds: The store that takes the values of the copy's further inputs.
    """
    copy = model.clone()
    copy.graph.name = "collage_turned"
    by_name = {str(value.name): value for node in copy.graph for value in node.outputs}
    wanted = followers(copy.graph, [by_name[str(decision.value.name)] for decision in decisions])
    for number, decision in enumerate(decisions):
        was = by_name[str(decision.value.name)]
        node = was.producer()
        assert node is not None
        told = {f"collage_close_{number}": decision.close, f"collage_otherwise_{number}": decision.otherwise}
        added = [
            ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(ir.tensor(array).dtype))
            for name, array in told.items()
        ]
        for name, array in told.items():
            feeds.put(name, array)
        result = ir.Value(shape=was.shape, type=was.type)
        was.replace_all_uses_with(result, replace_graph_outputs=True)
        if decision.close.dtype == decision.otherwise.dtype:  # ONNX Runtime's Where takes no truths.
            turn = ir.node("Xor", [was, added[0]], outputs=[result], name=f"collage_turn_{number}")
            added.pop()
        else:
            turn = ir.node("Where", [*added, was], outputs=[result], name=f"collage_turn_{number}")
        copy.graph.inputs.extend(added)
        result.name, was.name = was.name, f"collage_was_{number}"
        copy.graph.insert_after(node, turn)
    copy.graph.outputs.clear()
    for node in copy.graph:
        for value in node.outputs:
            if value.name in wanted and not isinstance(value.type, ir.SequenceType | ir.OptionalType):
                copy.graph.outputs.append(value)
    return copy
