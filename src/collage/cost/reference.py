"""The reference run: every intermediate value of the model, once, on real inputs (design section 7).

Kernels are then measured on what they will really be given (indices in range, masks that mask), and checked against what
they should return.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from collage._errors import NothingCanRun, ToolchainError
from collage.cost.values import ValueStore
from collage.cost.workshop import Workshop
from collage.graph import used_values
from collage.target import HOST_TARGET
from collage.transform import is_random

__all__ = ["capture_reference", "unrepeatable_values"]


def capture_reference(
    model: ir.Model, inputs: Mapping[str, Any], workshop: Workshop, values: ValueStore | None = None
) -> None:
    """Runs the model on the host, unoptimised, and stores all inputs and values.

    Args:
        model: A prepared model.
        inputs: One value per graph input, by name.
        workshop: Runs it in a worker process.
        values: Where to store them; the workshop's own store by default.

    Raises:
        NothingCanRun: Not even the host can run the model.
    """
    store = workshop.values if values is None else values
    for name, value in inputs.items():
        store.put(name, value)
    store.flush()
    try:
        workshop.capture(_with_all_outputs(model), HOST_TARGET, store)
    except ToolchainError as error:
        raise NothingCanRun(
            f"the model cannot be run at all, not even operator by operator on the host: {error}"
        ) from error


def unrepeatable_values(model: ir.Model) -> frozenset[str]:
    """Names of values that depend on a random operator, and so differ from run to run."""
    tainted: set[str] = set()
    for node in model.graph:
        reads = {str(value.name) for value in used_values(node)}
        if is_random(node) or reads & tainted:
            tainted.update(str(value.name) for value in node.outputs)
    return frozenset(tainted)


def _with_all_outputs(model: ir.Model) -> ir.Model:
    """A copy whose outputs are all values of its main graph. With every value wanted, nothing can be fused away."""
    copy = model.clone()
    copy.graph.name = "collage_reference"
    known = set(copy.graph.outputs)
    for node in copy.graph:
        for value in node.outputs:
            if value.name and value not in known and not isinstance(value.type, ir.SequenceType | ir.OptionalType):
                copy.graph.outputs.append(value)
    return copy
