"""The way back from a partitioned model to its kernels, which the runtime uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from collage._errors import UsageError
from collage.graph._clone import ValueMap, clone_node, new_value
from collage.graph._extract import COMPOSITE, kernel_ir_version, needed_functions, opset_imports_of
from collage.graph._partition import PRIMITIVE
from collage.graph._traversal import constant_tensor

__all__ = ["KernelCall", "kernel_model", "kernels_of", "operators_of"]


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A node that calls a kernel.

    Attributes:
        node: The node.
        function: The kernel's function.
    """

    node: ir.Node
    function: ir.Function

    @property
    def metadata(self) -> Mapping[str, str]:
        """The kernel's attributes, such as ``Compiler``, ``global_symbol`` and ``target``."""
        return self.function.metadata_props


def kernels_of(model: ir.Model, graph: ir.Graph | None = None) -> tuple[KernelCall, ...]:
    """The calls of kernels in a graph of a partitioned model, in its node order; of the main graph by default."""
    calls = ((node, model.functions.get(node.op_identifier())) for node in graph or model.graph)
    return tuple(KernelCall(n, f) for n, f in calls if f is not None and PRIMITIVE in f.metadata_props)


def operators_of(model: ir.Model, function: ir.Function) -> list[ir.Node]:
    """Return the operators of a kernel's function; functions of labelled parts are opened, constants are left out."""
    nodes: list[ir.Node] = []
    for node in function:
        part = model.functions.get(node.op_identifier())
        if part is not None and COMPOSITE in part.metadata_props:
            nodes += operators_of(model, part)
        elif constant_tensor(node.outputs[0]) is None:
            nodes.append(node)
    return nodes


def kernel_model(model: ir.Model, call: ir.Node, name: str) -> ir.Model:
    """A kernel of a partitioned model as a standalone model: the inverse of partitioning.

    Inputs are the values that vary at the call. Constants, bound at the call or inside the function, are initializers.
    Functions of labelled parts are inlined, and their nodes marked ``Composite``. Its structural hash is that of the
    sub-graph that was extracted. Nothing is copied: tensors are shared.

    Args:
        model: The partitioned model.
        call: A node of it that calls a kernel.
        name: Name of the new graph.

    Raises:
        UsageError: The node calls no function of the model.
    """
    function = model.functions.get(call.op_identifier())
    if function is None:
        raise UsageError(f"node {call.name!r} calls no function of the model")
    outer = {v: new_value(v, constant_tensor(v)) for v in call.inputs if v is not None}
    values: ValueMap = {
        formal: outer[actual] for formal, actual in zip(function.inputs, call.inputs, strict=True) if actual is not None
    }
    nodes, inner_constants = _flatten(model, function, values)
    outputs = [
        _typed_as(values[formal], at_call) for formal, at_call in zip(function.outputs, call.outputs, strict=True)
    ]
    constants = [v for v in outer.values() if v.const_value is not None] + inner_constants
    _name_apart(nodes, constants, outer, dict(zip(outputs, call.outputs, strict=True)))
    main = ir.Graph(
        [v for v in outer.values() if v.const_value is None],
        outputs,
        nodes=nodes,
        initializers=constants,
        opset_imports=opset_imports_of({**function.opset_imports, **model.opset_imports}, nodes),
        name=name,
    )
    functions = needed_functions(model, nodes)
    return ir.Model(main, ir_version=kernel_ir_version(model), producer_name="collage", functions=functions)


def _typed_as(value: ir.Value, at_call: ir.Value) -> ir.Value:
    """Return an output, with its type and shape at the call if the function states none: a file need not."""
    value.type = value.type or at_call.type
    if value.shape is None and at_call.shape is not None:
        value.shape = at_call.shape.copy()
    return value


def _flatten(model: ir.Model, function: ir.Function, values: ValueMap) -> tuple[list[ir.Node], list[ir.Value]]:
    """Copies of a function's nodes, functions of labelled parts inlined, and its constants."""
    nodes: list[ir.Node] = []
    constants: list[ir.Value] = []
    for node in function:
        part = model.functions.get(node.op_identifier())
        tensor = constant_tensor(node.outputs[0])
        if tensor is not None:
            values[node.outputs[0]] = new_value(node.outputs[0], tensor)
            constants.append(values[node.outputs[0]])
        elif part is not None and COMPOSITE in part.metadata_props:
            actual = (values[v] for v in node.inputs if v is not None)
            inner: ValueMap = dict(zip(part.inputs, actual, strict=True))
            inner_nodes, inner_constants = _flatten(model, part, inner)
            values.update(zip(node.outputs, (inner[v] for v in part.outputs), strict=True))
            nodes += inner_nodes
            constants += inner_constants
        else:
            nodes.append(clone_node(node, values))
    return nodes, constants


def _name_apart(
    nodes: Iterable[ir.Node],
    constants: Iterable[ir.Value],
    outer: Mapping[ir.Value, ir.Value],
    outputs: Mapping[ir.Value, ir.Value],
) -> None:
    """Give a kernel's inputs and outputs the names that they have at the call, and rename inner values that would clash.

    A function that several calls share has the names of the first.
    """
    border = {*(v.name for v in outer), *(v.name for v in outputs.values())}
    seen = set(border)
    for value in (*(v for node in nodes for v in node.outputs), *constants):
        if value in outputs:
            value.name = outputs[value].name
        elif value not in outer.values():
            stem, count = value.name, 0
            while value.name in seen:
                count += 1
                value.name = f"{stem}_{count}"
            seen.add(value.name)
