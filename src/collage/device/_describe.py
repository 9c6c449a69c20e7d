"""A plan of devices as data: the device of each operator, the copies, and the reasons."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from collage.device._plan import DevicePlan
from collage.device._toml import DeviceRequests

__all__ = ["describe_plan"]


def describe_plan(model: ir.Model, requests: DeviceRequests, fallback_device: str = "cpu") -> dict[str, Any]:
    """Return where a plan of devices puts the operators of a model, as values of JSON.

    Args:
        model: The model, which gets the annotations.
        requests: The demands of a user.
        fallback_device: Device of operators that have no demand, if the plan has no default.

    Returns:
        ``devices``, ``default``, ``nodes`` and ``copies``. Each node has its name, operator, scope and reason. Each copy has
        the value, from where to where it goes, and why.

    Raises:
        ConfigError: The plan names a value or node that the model lacks.
        DeviceConflict: Demands contradict each other.
    """
    requests.annotate(model)
    plan = DevicePlan(model, requests.config(fallback_device))
    planned = set(plan.nodes)
    nodes = [node for graph in model.graphs() for node in graph if node in planned]
    return {
        "devices": [str(scope) for scope in plan.config.scopes],
        "default": str(plan.config.default),
        "nodes": [
            {
                "name": str(node.name),
                "operator": node.op_type,
                "scope": str(plan.scope_of(node)),
                "reason": plan.reason(node),
            }
            for node in nodes
        ],
        "copies": [
            {"value": str(copy.value.name), "from": str(copy.src), "to": str(copy.dst), "why": plan.why_copy(copy)}
            for copy in plan.copies()
        ],
    }
