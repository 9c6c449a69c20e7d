"""Restore the names of outputs, and a separate value for each, after a pass of another library."""

from __future__ import annotations

import onnx_ir as ir

from collage.frontend import name_everything

__all__ = ["output_names", "restore_outputs"]


def output_names(model: ir.Model) -> list[str]:
    """Names of the model's outputs, which are its interface."""
    return [str(value.name) for value in model.graph.outputs]


def restore_outputs(model: ir.Model, names: list[str]) -> None:
    """Give outputs that were merged or renamed an Identity of their own, and name everything uniquely."""
    for graph in model.graphs():
        seen: set[ir.Value] = set()
        for index, value in enumerate(graph.outputs):
            name = names[index] if graph is model.graph else None
            if value in seen or (name is not None and value.name != name):
                graph.outputs[index] = _identity(graph, value, name)
            seen.add(graph.outputs[index])
    name_everything(model)


def _identity(graph: ir.Graph, value: ir.Value, name: str | None) -> ir.Value:
    node = ir.node("Identity", [value])
    graph.append(node)
    (result,) = node.outputs
    result.name, result.type, result.shape = name, value.type, value.shape
    return result
