"""Outputs that a model lists several times, which ONNX permits: later rooms know each by its name, and meet it once."""

from __future__ import annotations

import json

import onnx_ir as ir

__all__ = ["LISTED", "list_once", "listed_outputs"]

LISTED = "collage.outputs"
"""Metadata key of a model: the names of all outputs as they were listed, as JSON."""


def list_once(model: ir.Model) -> None:
    """Keep the first of equal outputs of the main graph, in place, and note in the metadata how they were listed."""
    outputs = list(model.graph.outputs)
    once = list(dict.fromkeys(outputs))
    if len(once) < len(outputs):
        model.metadata_props[LISTED] = json.dumps([str(value.name) for value in outputs])
        model.graph.outputs[:] = once


def listed_outputs(model: ir.Model) -> tuple[str, ...]:
    """Return the names of the outputs as the model listed them, if it listed some more than once; else nothing."""
    names = {str(value.name) for value in model.graph.outputs}
    try:
        listed = json.loads(model.metadata_props.get(LISTED, "[]"))
    except (ValueError, RecursionError):
        return ()
    is_known = isinstance(listed, list) and all(isinstance(name, str) for name in listed) and set(listed) == names
    return tuple(listed) if is_known else ()
