"""ExpandContributed: ONNX Runtime's own operators, and ONNX's of opset 23, become older ones of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from collage.frontend import (
    has_standard_form,
    lift_constants,
    name_everything,
    opset_to_write_in,
    remove_unused,
    standard_form,
)
from collage.graph import bodies, tensor_handle
from collage.transform._context import PassContext
from collage.transform._info import PassInfo
from collage.transform._marks import marked_functions_hidden
from collage.transform._pass_kinds import ModulePass

__all__ = ["ExpandContributed", "in_standard_operators"]


class ExpandContributed(ModulePass):
    """Writes operators of ONNX Runtime's own (``FusedConv``, ``QLinearAdd``, ``RotaryEmbedding``) in standard ones.

    The default preparation does not: ONNX Runtime would not join all of them again. It is for toolchains that read none.
    Nodes of forms that are not written out, or of which a needed length is not known, stay.

    Args:
        assuming: Write out operators whose standard form is right under assumptions alone, too, which the caller has to check.
    """

    def __init__(self, *, assuming: bool = False) -> None:
        super().__init__(
            PassInfo("ExpandContributed", opt_level=0, required=("InferType",), invalidates=("InferType",))
        )
        self._assuming = assuming

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Expand in place."""
        version = model.opset_imports.get("", 1)
        with marked_functions_hidden(model):
            found = [
                (graph, node)
                for graph in model.graphs()
                for node in graph
                if has_standard_form(node.domain, node.op_type, version)
            ]
            if found:
                operators = ((node.op_type, len(node.outputs)) for node in model.graph.all_nodes())
                version = model.opset_imports[""] = opset_to_write_in(version, operators)
                for graph, node in found:
                    _expand(graph, node, version, self._assuming)
                lift_constants(model)
                remove_unused(model)
                name_everything(model)
        return model


def _expand(graph: ir.Graph, node: ir.Node, version: int, assuming: bool) -> None:
    made = _written_out(node, {value: value for value in node.inputs if value is not None}, version, assuming)
    if not made:
        return
    known = {str(value.name): value for each in made for value in each.outputs}
    outputs = [value for value in node.outputs if _is_wanted(value)]
    new = [known[str(value.name)] for value in outputs]
    for each in made:
        each.metadata_props.update(node.metadata_props)
    ir.convenience.replace_nodes_and_values(graph, node, [node], made, outputs, new)


def in_standard_operators(node: ir.Node) -> Sequence[ir.Node]:
    """The nodes that a contributed one is written out as, in no graph; empty if it cannot be.

    Their constants are values, as they will be in a graph.
    """
    version = node.graph.opset_imports.get("", 1) if isinstance(node.graph, ir.Graph) else 1
    version = opset_to_write_in(version, [(node.op_type, len(node.outputs))])
    given = {
        value: ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=_handle(value))
        for value in node.inputs
        if value is not None
    }
    made = _written_out(node, given, version, True)
    for constant in (each for each in made if each.op_type == "Constant"):
        tensor = ir.convenience.get_const_tensor(constant.outputs[0])
        if tensor is not None:
            constant.outputs[0].const_value, constant.outputs[0].type = tensor, ir.TensorType(tensor.dtype)
            constant.outputs[0].shape = ir.Shape(tensor.shape.numpy())
    return [each for each in made if each.op_type != "Constant"]


def _handle(value: ir.Value) -> ir.TensorProtocol | None:
    return None if value.const_value is None else tensor_handle(value.const_value)


def _written_out(node: ir.Node, given: Mapping[ir.Value, ir.Value], version: int, assuming: bool) -> Sequence[ir.Node]:
    if any(bodies(node)):
        return ()  # No operator with bodies is written out, and serialising one names the tensors in it.
    known = {str(value.name): value for value in given.values()}
    wanted = ir.to_proto(node)
    wanted.output[:] = [str(value.name) if _is_wanted(value) else "" for value in node.outputs]
    protos = standard_form(wanted, version, lambda name: _facts(known[name]), assuming=assuming)
    made: list[ir.Node] = []
    for proto in protos or ():
        each = ir.node(
            proto.op_type,
            [known[name] if name else None for name in proto.input],
            {attribute.name: ir.from_proto(attribute) for attribute in proto.attribute},
            outputs=[ir.Value(name=name) for name in proto.output],
            name=proto.name,
        )
        known.update((str(value.name), value) for value in each.outputs)
        made.append(each)
    return made


def _is_wanted(value: ir.Value) -> bool:
    """Return True if the value has a reader: passes give names to outputs that are left out, too."""
    return bool(value.name) and (value.is_graph_output() or bool(value.uses()))


def _facts(value: ir.Value) -> tuple[int, list[int | None] | None]:
    shape = None if value.shape is None else [axis if isinstance(axis, int) else None for axis in value.shape]
    return int(value.dtype or 0), shape
