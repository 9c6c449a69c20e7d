"""Raising old operator sets to one that the whole menu reads.

ONNX's converter does most of it. Operators that it leaves unchanged although their meaning changed are rewritten here,
before or after.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from collage._errors import ModelError
from collage.frontend._canonical import canonicalise
from collage.frontend._checker import check_model
from collage.frontend._inferable import inferable
from collage.frontend._opset_7 import raise_to_7
from collage.frontend._proto import reattach_weights, skeleton
from collage.frontend._sandbox import convert_version, infer_shapes
from collage.frontend.contrib_ops import give_domain, take_domain

__all__ = ["MIN_OPSET", "in_opset", "raise_opset"]

MIN_OPSET = 13
"""Since it, axes are inputs everywhere that they are today, and toolchains test nothing older much."""

_CHANGED_SILENTLY = ("Scan",)
"""Operators that meant something else in an older set, which the converter passes on as they are."""

_BROADCASTS_LIKE_NUMPY = 7
_RESIZES_UP_AND_DOWN = 10
_CLIPS_WITH_INPUTS = 11
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_PLACES_PIXELS = 11
_MASKS_ARE_TRUE = 12

_logger = logging.getLogger(__name__)


def raise_opset(model: ir.Model) -> None:
    """Raise a model of an older operator set to ``MIN_OPSET``, in place, if each of its operators has an equivalent there.

    A model that cannot be raised is left as it is, or at set 7 if it is older: some toolchain may still read it.

    Raises:
        ModelError: To convert it takes more than any real model needs.
    """
    if model.opset_imports.get("", MIN_OPSET) >= MIN_OPSET:
        return
    try:
        if model.opset_imports[""] < _BROADCASTS_LIKE_NUMPY:
            older = model.clone()
            raise_to_7(older)
            check_model(skeleton(older))
            _replace(model, older)
        _replace(model, _converted(model, MIN_OPSET))
    except ModelError:
        raise
    except Exception as error:
        _logger.info("left at operator set %s: %s", model.opset_imports.get(""), error)


def in_opset(model: ir.Model, version: int) -> ir.Model:
    """Return a canonical copy of a model in a newer operator set, with the interface that it has.

    Raises:
        ModelError: To convert it takes more than any real model needs.
        ValueError: It cannot be converted.
    """
    if model.functions:
        raise ValueError("ONNX's converter leaves model-local functions as they are")
    try:
        raised = _converted(model, version)
    except ModelError:
        raise
    except Exception as error:
        raise ValueError(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__) from error
    # The converter drops what is noted on nodes.
    noted = {value.name: node.metadata_props for node in model.graph.all_nodes() for value in node.outputs}
    for node in raised.graph.all_nodes():
        node.metadata_props.update(noted.get(node.outputs[0].name, {}) if node.outputs else {})
    copy = model.clone()
    _replace(copy, raised)
    return copy


def _converted(model: ir.Model, target: int) -> ir.Model:
    """A copy of a model of set 7 or later in a newer set, which is 13 or later.

    Raises:
        ModelError: To convert it takes more than any real model needs.
        Exception: It cannot be converted.
    """
    version = model.opset_imports[""]
    if version >= MIN_OPSET:
        return _converted_as_it_is(model.clone(), target)
    if any(node.op_type in _CHANGED_SILENTLY for node in model.graph.all_nodes()):
        raise ValueError(f"the converter gets {', '.join(_CHANGED_SILENTLY)} wrong")
    older = model.clone()
    for node in _standard_nodes(older):
        if node.op_type == "Hardmax":
            _flatten_hardmax(node)
        elif node.op_type == "Pad" and node.attributes.get_string("mode", "constant") != "constant":
            node.attributes.pop("value", None)
    converted = _converted_as_it_is(older, target)
    if version < _CLIPS_WITH_INPUTS:
        _type_bounds(converted)
    for node in _standard_nodes(converted):
        if node.op_type == "Resize" and version < _PLACES_PIXELS:
            _place_pixels(node, version)
        elif node.op_type == "Dropout" and version < _MASKS_ARE_TRUE:
            _clear_mask(node, version)
    return converted


def _converted_as_it_is(model: ir.Model, target: int) -> ir.Model:
    """The model as ONNX's converter makes it; ``model`` may not be used any more."""
    proto = skeleton(model)
    give_domain(proto)
    proto = convert_version(proto, target)
    take_domain(proto)
    check_model(proto)
    converted: ir.Model = ir.from_proto(proto)
    reattach_weights(converted, model)
    return converted


def _replace(model: ir.Model, raised: ir.Model) -> None:
    """Put the graph of a raised copy into a model, with the interface that it had.

    Raises:
        ValueError: Inputs or outputs have other names or types.
    """
    for was, now in ((model.graph.inputs, raised.graph.inputs), (model.graph.outputs, raised.graph.outputs)):
        if _interface(was) != _interface(now):
            raise ValueError("the converter changed the interface")
        for old, new in zip(was, now, strict=True):
            new.shape = old.shape
    canonicalise(raised)
    model.graph = raised.graph


def _interface(values: Iterable[ir.Value]) -> list[tuple[str | None, str]]:
    return [(value.name, str(value.type)) for value in values]


def _standard_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from [node for node in model.graph.all_nodes() if not node.domain]


def _flatten_hardmax(node: ir.Node) -> None:
    """Before set 13 the axis of a Hardmax parts two groups of axes; since then it is the one axis that is looked at."""
    x, axis = node.inputs[0], node.attributes.get_int("axis", 1)
    assert x is not None
    if x.shape is not None and axis in (-1, len(x.shape) - 1):
        node.attributes["axis"] = ir.AttrInt64("axis", axis)
        return
    result = node.outputs[0]
    flat = ir.node("Flatten", [x], {"axis": axis})
    maximum = ir.node("Hardmax", [flat.outputs[0]], {"axis": 1})
    lengths = ir.node("Shape", [x])
    whole = ir.node("Reshape", [maximum.outputs[0], lengths.outputs[0]])
    _exchange(node, [flat, maximum, lengths, whole], {result: whole.outputs[0]})


def _type_bounds(model: ir.Model) -> None:
    """Give each Clip bounds of its data's type. Before set 11 bounds are float32, and default to float32's range.

    Bounds of float32 data stay as the converter writes them: runtimes bound these by the same numbers, in any set.

    Raises:
        ValueError: A type is not known.
    """
    clips = [node for node in _standard_nodes(model) if node.op_type == "Clip"]
    if not clips:
        return
    inferred = ir.from_proto(infer_shapes(inferable(skeleton(model))))
    types = {
        v.name: v.dtype for graph in inferred.graphs() for node in graph for v in (*node.inputs, *node.outputs) if v
    }
    for node in clips:
        x = node.inputs[0]
        dtype = None if x is None else x.dtype or types.get(x.name)
        if dtype is None:
            raise ValueError(f"the type of the input of {node.name!r} reads is not known")
        if dtype == ir.DataType.FLOAT:
            continue
        bounds = []
        for position, default in ((1, -_LARGEST_FLOAT), (2, _LARGEST_FLOAT)):
            bound = node.inputs[position] if position < len(node.inputs) else None
            given = None if bound is None else ir.convenience.get_const_tensor(bound)
            if bound is not None and given is None:
                raise ValueError(f"a bound of {node.name!r} is not known")
            value = default if given is None else float(given.numpy())
            with np.errstate(over="ignore"):  # What is beyond a narrower type is no bound.
                constant = ir.node("Constant", [], {"value": ir.tensor(np.array(value).astype(dtype.numpy()), dtype)})
            bounds.append(constant)
        assert isinstance(node.graph, ir.Graph)
        node.graph.insert_before(node, bounds)
        node.resize_inputs(3)
        for position, constant in enumerate(bounds, 1):
            node.replace_input_with(position, constant.outputs[0])


def _place_pixels(node: ir.Node, version: int) -> None:
    """State the rules before set 11: pixel 0 lies at 0, and the nearest pixel is the one before, or after if shrinking.

    Raises:
        ValueError: It depends on scales that are computed.
    """
    node.attributes["coordinate_transformation_mode"] = ir.AttrString("coordinate_transformation_mode", "asymmetric")
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return
    node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "floor")
    if version < _RESIZES_UP_AND_DOWN:
        return
    scales = node.inputs[2]
    if scales is None or scales.const_value is None:
        raise ValueError(f"the scales of {node.name!r} are computed")
    factors = scales.const_value.numpy()
    if (factors < 1).any():
        # One node rounds along all axes alike: the first shrinks, and the other one enlarges.
        shrunk = ir.node("Constant", [], {"value": ir.tensor(np.minimum(factors, 1))})
        enlarged = ir.node("Constant", [], {"value": ir.tensor(np.maximum(factors, 1))})
        modes = {**node.attributes, "nearest_mode": ir.AttrString("nearest_mode", "ceil")}
        first = ir.Node("", "Resize", [*node.inputs[:2], shrunk.outputs[0]], list(modes.values()))
        assert isinstance(node.graph, ir.Graph)
        node.graph.insert_before(node, [shrunk, enlarged, first])
        node.replace_input_with(0, first.outputs[0])
        node.replace_input_with(2, enlarged.outputs[0])


def _clear_mask(node: ir.Node, version: int) -> None:
    """Take a mask for what runtimes answer before set 12, when nothing is dropped: zeros, of the data's type before 10.

    Raises:
        ValueError: The type of the data is not known.
    """
    if len(node.outputs) < 2 or not (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return
    x, mask = node.inputs[0], node.outputs[1]
    assert x is not None
    dtype = ir.DataType.BOOL if version >= _RESIZES_UP_AND_DOWN else x.dtype
    if dtype is None:
        raise ValueError(f"the type of the input of {node.name!r} reads is not known")
    same = ir.node("Identity", [x])
    lengths = ir.node("Shape", [x])
    zeros = ir.node("ConstantOfShape", [lengths.outputs[0]], {"value": ir.tensor([0], dtype)})
    mask.type = ir.TensorType(dtype)
    _exchange(node, [same, lengths, zeros], {node.outputs[0]: same.outputs[0], mask: zeros.outputs[0]})


def _exchange(node: ir.Node, others: list[ir.Node], results: dict[ir.Value, ir.Value]) -> None:
    """Put other nodes in the place of a node, and their results in that of its own."""
    assert isinstance(node.graph, ir.Graph)
    ir.convenience.replace_nodes_and_values(
        node.graph, node, [node], others, list(results.keys()), list(results.values())
    )
