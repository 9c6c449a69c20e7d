"""Outputs that are maps from classes to numbers (``ZipMap`` of ONNX-ML), as exporters of scikit-learn write them.

The front door makes such an output the tensor behind it, and keeps the classes in the metadata of the model. The runtime makes
maps of the tensor again. So no other room meets a map, for which the library of the intermediate representation has no type.
"""

from __future__ import annotations

import json

import onnx
import onnx_ir as ir

from collage._errors import ModelError

__all__ = ["CLASSES", "Classes", "classes_of", "with_tensors_for_maps"]

CLASSES = "collage.classes"
"""Metadata key of a model: the classes of each output that is made of maps, as JSON."""

Classes = tuple[str, ...] | tuple[int, ...]

_ML = "ai.onnx.ml"
_OPSET_OF_IDENTITY = 13


def with_tensors_for_maps(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose outputs of ``ZipMap`` are tensors: a copy if there are any.

    Maps that another operator reads, or that are made in a body, stay as they are.

    Args:
        model: The model. Its size is bounded, and nothing else is checked.
    """
    labels = _mapped_outputs(model.graph)
    if not labels:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for output in copy.graph.output:
        if output.name in labels:
            output.CopyFrom(onnx.ValueInfoProto(name=output.name))
            output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for node in copy.graph.node:
        if _is_zip_map(node) and node.output[0] in labels:
            node.op_type, node.domain = "Identity", ""
            node.ClearField("attribute")
    if all(entry.domain not in ("", "ai.onnx") for entry in copy.opset_import):
        copy.opset_import.add(domain="", version=_OPSET_OF_IDENTITY)
    copy.metadata_props.add(key=CLASSES, value=json.dumps(labels))
    return copy


def classes_of(model: ir.Model) -> dict[str, Classes]:
    """Return the classes of each output that is made of maps, by its name.

    Raises:
        ModelError: Their entry among the metadata of the model is damaged.
    """
    text = model.metadata_props.get(CLASSES)
    if text is None:
        return {}
    try:
        found = json.loads(text)
        names = {str(value.name) for value in model.graph.outputs}
        if set(found) <= names and all(_is_all(each, str) or _is_all(each, int) for each in found.values()):
            return {name: tuple(labels) for name, labels in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    raise ModelError("the classes of an output, among the model's metadata, are damaged")


def _is_all(labels: object, kind: type) -> bool:
    return isinstance(labels, list) and bool(labels) and all(type(label) is kind for label in labels)


def _mapped_outputs(graph: onnx.GraphProto) -> dict[str, list[str] | list[int]]:
    """Return the classes of the outputs that a ``ZipMap`` makes and nothing reads."""
    outputs = {output.name for output in graph.output if output.type.HasField("sequence_type")}
    makers = [node for node in graph.node if _is_zip_map(node) and node.output[0] in outputs]
    if not makers:
        return {}
    read = {name for node in graph.node for name in node.input}
    return {
        node.output[0]: labels
        for node in makers
        if node.output[0] not in read and (labels := _labels(node)) is not None
    }


def _is_zip_map(node: onnx.NodeProto) -> bool:
    return (node.domain, node.op_type, len(node.input), len(node.output)) == (_ML, "ZipMap", 1, 1)


def _labels(node: onnx.NodeProto) -> list[str] | list[int] | None:
    """Return the classes of a ``ZipMap``; None if they are not what ONNX defines."""
    given = {attribute.name: attribute for attribute in node.attribute}
    if len(given) != 1:
        return None
    if (texts := given.get("classlabels_strings")) is not None and texts.strings:
        return [text.decode(errors="replace") for text in texts.strings]
    if (numbers := given.get("classlabels_int64s")) is not None and numbers.ints:
        return list(numbers.ints)
    return None
