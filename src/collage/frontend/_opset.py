"""Raising old operator sets to one that the whole menu reads."""

from __future__ import annotations

import logging

import onnx
import onnx.version_converter
import onnx_ir as ir

from collage.frontend._canonical import canonicalise
from collage.frontend._proto import skeleton

__all__ = ["MIN_OPSET", "raise_opset"]

MIN_OPSET = 13
"""Since it, axes are inputs everywhere that they are today, and toolchains test nothing older much."""

_logger = logging.getLogger(__name__)


def raise_opset(model: ir.Model) -> None:
    """Converts a model of an older operator set to ``MIN_OPSET``, in place, where the converter can.

    A model that cannot be converted is left as it is: some toolchain may still read it.
    """
    if model.opset_imports.get("", MIN_OPSET) >= MIN_OPSET:
        return
    weights = dict(model.graph.initializers)
    inputs = [value.name for value in model.graph.inputs]
    outputs = [value.name for value in model.graph.outputs]
    try:
        converted = ir.from_proto(onnx.version_converter.convert_version(skeleton(model), MIN_OPSET))
    except Exception as error:
        _logger.info("left at operator set %s: %s", model.opset_imports.get(""), error)
        return
    graph = converted.graph
    for value in list(graph.inputs):
        if value.name in weights and value.name not in inputs:
            graph.inputs.remove(value)
            value.const_value = weights[value.name].const_value
            graph.register_initializer(value)
    if [v.name for v in graph.inputs] != inputs or [v.name for v in graph.outputs] != outputs:
        _logger.info("left at operator set %s: the converter changed the interface", model.opset_imports.get(""))
        return
    canonicalise(converted)
    model.graph = graph
