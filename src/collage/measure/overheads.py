"""The cost of calling a toolchain on this machine, for any kernel. It is measured once and kept."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from collage._errors import ToolchainError
from collage.cost.workload_key import METHOD, runtime_settings
from collage.database import FactKind
from collage.measure.session import MeasureSession
from collage.system.codec import Share
from collage.system.machine import this_machine
from collage.target import Target

__all__ = ["Overheads", "measure_overheads"]


@dataclass(frozen=True, slots=True)
class Overheads:
    """Overheads of one target.

    Attributes:
        dispatch_s: Seconds that an empty kernel takes inside a model. Part of every measured cost.
        launch_s: The launch penalty: seconds that each kernel of a chain costs beyond its own measured time.
    """

    dispatch_s: Share
    launch_s: Share


_OVERHEADS: FactKind[Overheads] = FactKind("overheads", Overheads)


def measure_overheads(target: Target, measure_session: MeasureSession) -> Overheads:
    """The overheads of a target, from the database if they are known for this machine and build.

    They are 0 if the empty kernel cannot be built or run.
    """
    name = {
        "method": METHOD,
        "target": str(target),
        "build": measure_session.build_of(target),
        "machine": this_machine().fingerprint,
        "threads": measure_session.threads,
        "settings": runtime_settings(),
    }
    found = measure_session.recall_fact(_OVERHEADS, **name)
    if found is None:
        try:
            measured = measure_session.overheads(_next_to_nothing(f"collage_empty_{target.toolchain}"), target)
        except ToolchainError as error:
            measured = {"dispatch_s": 0.0, "launch_s": 0.0}
            if error.is_accident:
                return Overheads(**measured)
        found = Overheads(measured["dispatch_s"], measured["launch_s"])
        measure_session.database.keep_fact(_OVERHEADS, found, **name)
    return found


def _next_to_nothing(name: str) -> ir.Model:
    """The smallest kernel that does something: the negative of float32 [16]."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([16]))
    y = ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([16]))
    node = ir.Node("", "Neg", [x], outputs=[y], name="neg")
    return ir.Model(ir.Graph([x], [y], nodes=[node], opset_imports={"": 17}, name=name), ir_version=10)
