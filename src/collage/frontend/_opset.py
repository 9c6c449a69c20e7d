"""Raising old operator sets to one that the whole menu reads."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import onnx_ir as ir

from collage._errors import ModelError
from collage.frontend._canonical import canonicalise
from collage.frontend._checker import check_model
from collage.frontend._confined import convert_version
from collage.frontend._proto import reattach_weights, skeleton
from collage.frontend.contributed import give_domain, take_domain

__all__ = ["MIN_OPSET", "raise_opset"]

MIN_OPSET = 13
"""Since it, axes are inputs everywhere that they are today, and toolchains test nothing older much."""

_CHANGED_SILENTLY = ("Scan",)
"""Operators that meant something else in an older set, which the converter passes on as they are."""

_SLOPES_ARE_BROADCAST = 7

_logger = logging.getLogger(__name__)


def raise_opset(model: ir.Model) -> None:
    """Converts a model of an older operator set to ``MIN_OPSET``, in place, where the converter can.

    A model that cannot be converted is left as it is: some toolchain may still read it.

    Raises:
        ModelError: To convert it takes more than any real model needs.
    """
    version = model.opset_imports.get("", MIN_OPSET)
    if version >= MIN_OPSET:
        return
    inputs, outputs = _interface(model.graph.inputs), _interface(model.graph.outputs)
    try:
        if any(node.op_type in _CHANGED_SILENTLY for node in model.graph.all_nodes()):
            raise ValueError(f"the converter gets {', '.join(_CHANGED_SILENTLY)} wrong")
        proto = skeleton(model)
        give_domain(proto)
        proto = convert_version(proto, MIN_OPSET)
        take_domain(proto)
        check_model(proto)
        converted = ir.from_proto(proto)
        if version < _SLOPES_ARE_BROADCAST:
            _lay_slopes_along_channels(converted)
    except ModelError:
        raise
    except Exception as error:
        _logger.info("left at operator set %s: %s", model.opset_imports.get(""), error)
        return
    graph = converted.graph
    reattach_weights(converted, model)
    if _interface(graph.inputs) != inputs or _interface(graph.outputs) != outputs:
        _logger.info("left at operator set %s: the converter changed the interface", model.opset_imports.get(""))
        return
    canonicalise(converted)
    model.graph = graph


def _lay_slopes_along_channels(model: ir.Model) -> None:
    """The slopes of an old PRelu lie along axis 1; later ones are broadcast, so that theirs would lie along the last.

    Raises:
        ValueError: Nobody knows which axis that is.
    """
    for node in list(model.graph.all_nodes()):
        if node.op_type != "PRelu" or node.domain:
            continue
        x, slope = node.inputs
        if x is None or slope is None or x.shape is None or slope.shape is None:
            raise ValueError(f"the rank of what {node.name!r} reads is not known")
        if len(slope.shape) == 1 and slope.shape[0] != 1 and len(x.shape) > 2:
            axes = ir.node("Constant", [], {"value": ir.tensor(range(1, len(x.shape) - 1), ir.DataType.INT64)})
            laid = ir.node("Unsqueeze", [slope, axes.outputs[0]])
            assert isinstance(node.graph, ir.Graph)
            node.graph.insert_before(node, [axes, laid])
            node.replace_input_with(1, laid.outputs[0])


def _interface(values: Iterable[ir.Value]) -> list[tuple[str | None, str, str]]:
    return [(value.name, str(value.type), str(value.shape)) for value in values]
