"""PrintIR: the model as text, between two passes."""

from __future__ import annotations

import re
import sys
from typing import TextIO

import onnx_ir as ir

from collage.transform._context import PassContext
from collage.transform._fingerprint import fingerprint
from collage.transform._info import PassInfo
from collage.transform._pass_kinds import ModulePass

__all__ = ["PrintIR", "model_text"]

_MOST_ELEMENTS = 1024
_SHOWN = 6
"""Values of a constant that are printed."""


class PrintIR(ModulePass):
    """Prints the model and passes it on unchanged.

    Args:
        header: A line above it.
        only: A regular expression; only nodes whose name or operator it finds are printed.
        only_changed: Print nothing if this pass printed an equal model before.
        file: The file to write to; standard output by default.
    """

    def __init__(
        self, header: str = "", only: str | None = None, only_changed: bool = False, file: TextIO | None = None
    ) -> None:
        super().__init__(PassInfo("PrintIR", opt_level=0))
        self._header = header
        self._only = only
        self._only_changed = only_changed
        self._file = file
        self._printed: str | None = None

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Print."""
        if self._only_changed:
            state = fingerprint(model)
            if state == self._printed:
                return model
            self._printed = state
        text = model_text(model, self._only)
        print(f"{self._header}\n{text}" if self._header else text, file=self._file or sys.stdout)
        return model


def model_text(model: ir.Model, only: str | None = None) -> str:
    """A model as text, one node a line, bodies indented; of constants their types and first values.

    Args:
        model: Any model.
        only: A regular expression that a node's name or operator must contain.
    """
    lines = _graph_lines(model.graph, f"graph {model.graph.name}", re.compile(only or ""), "")
    for function in model.functions.values():
        lines += _graph_lines(function.graph, f"function {function.domain}.{function.name}", re.compile(only or ""), "")
    return "\n".join(lines)


def _graph_lines(graph: ir.Graph, title: str, only: re.Pattern[str], indent: str) -> list[str]:
    inputs = ", ".join(map(_value_text, graph.inputs))
    outputs = ", ".join(map(_value_text, graph.outputs))
    lines = [f"{indent}{title} ({inputs}) -> ({outputs}) {{"]
    shown = [node for node in graph if only.search(node.name or "") or only.search(node.op_type)]
    read = {value for node in shown for value in node.inputs}
    for value in graph.initializers.values():
        if value in read or not only.pattern:
            lines.append(f"{indent}  {_constant_text(value)}")
    for node in graph:
        if only.search(node.name or "") or only.search(node.op_type):
            lines.append(f"{indent}  {_node_text(node)}")
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                lines += _graph_lines(attribute.as_graph(), f"{node.name}.{attribute.name}", only, indent + "    ")
    return [*lines, f"{indent}}}"]


def _node_text(node: ir.Node) -> str:
    outputs = ", ".join(map(_value_text, node.outputs))
    inputs = ", ".join("_" if value is None else str(value.name) for value in node.inputs)
    bodies = {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS}
    attributes = ", ".join(f"{a.name}={_attribute_text(a)}" for a in node.attributes.values() if a.type not in bodies)
    domain = f"{node.domain}." if node.domain else ""
    return f"{outputs} = {domain}{node.op_type}({inputs})" + (f" {{{attributes}}}" if attributes else "")


def _value_text(value: ir.Value) -> str:
    dtype = value.dtype.name.lower() if value.dtype is not None else "?"
    shape = "[?]" if value.shape is None else "[" + ", ".join(map(str, value.shape)) + "]"
    return f"{value.name}: {dtype}{shape}"


def _attribute_text(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
        return _tensor_text(attribute.as_tensor())
    return str(attribute.value)


def _constant_text(value: ir.Value) -> str:
    tensor = value.const_value
    return f"{value.name} = {'a default that is not here' if tensor is None else _tensor_text(tensor)}"


def _tensor_text(tensor: ir.TensorProtocol) -> str:
    """The type, the shape and the first values of a tensor; of large ones, which may lie in a file, no values."""
    text = f"{tensor.dtype.name.lower()}[{', '.join(map(str, tensor.shape))}]"
    if tensor.size > _MOST_ELEMENTS:
        return text
    values = tensor.numpy().reshape(-1)
    more = ", …" if len(values) > _SHOWN else ""
    return f"{text} {{{', '.join(map(str, values[:_SHOWN].tolist()))}{more}}}"
