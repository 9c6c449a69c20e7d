"""A model each part of which rounds to 8 bits or not, by a switch: one process answers for all choices of parts.

Values are rounded to 8 bits, and computed with in float32. So the answers are an average of what toolchains compute in 8 bits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import onnx_ir as ir

from collage.calibration import put_values, runs_worker
from collage.graph import NameSupply
from collage.toolchains.sdk.int8_model import in_int8
from collage.toolchains.sdk.int8_placement import Int8Style
from collage.toolchains.sdk.model_files import values_of
from collage.workers.worker import Worker

__all__ = ["PRODUCTS", "RoundedRuns", "with_switches"]

PRODUCTS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
_STYLE = Int8Style(
    products=PRODUCTS,
    between=frozenset(("Add", "AveragePool", "Concat", "GlobalAveragePool")),
    carriers=frozenset(("MaxPool", "Reshape", "Resize", "Squeeze", "Transpose", "Unsqueeze")),
    whole=False,
)
_ROUNDING = ("QuantizeLinear", "DequantizeLinear")
_SWITCH_S = 300.0
"""Seconds for the first call, in which the process loads the model."""


class RoundedRuns:
    """A process that runs a model with some units in 8 bits.

    Args:
        model: See ``with_switches``.
        unit_of: The same.
        count: The same.
        folder: Folder for the model, in which its weights are.

    Raises:
        Unsupported: Nothing in the model profits from 8 bits.
    """

    def __init__(self, model: ir.Model, unit_of: Mapping[str, int], count: int, folder: Path) -> None:
        made, self._switches = with_switches(model, unit_of, count)
        file = folder / "rounded.onnx"
        ir.save(made, file)
        self._count, self._folder = count, folder / "switches"
        self._worker = runs_worker(file, watches=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._worker.kill()

    def with_units(self, units: Collection[int]) -> Worker:
        """Return the process, from now on with these units in 8 bits and all others in float32.

        Raises:
            ToolchainError: The process failed.
        """
        switches = np.isin(np.arange(self._count), list(units))
        self._worker.call("fix", _SWITCH_S, values=str(put_values(self._folder, {self._switches: switches}).folder))
        return self._worker


def with_switches(model: ir.Model, unit_of: Mapping[str, int], count: int) -> tuple[ir.Model, str]:
    """Return a copy of a model in which nodes read rounded values if the switch of their unit is on.

    Args:
        model: The model. Its values carry their ranges.
        unit_of: The unit of each node, by name.
        count: Number of units.

    Returns:
        The copy, and the name of its further input: the switches, booleans of shape [count].

    Raises:
        Unsupported: Nothing in the model profits from 8 bits.
    """
    made = in_int8(model, _STYLE)
    writer = _Switches(made.graph, count)
    before = {node.name: node for node in model.graph}
    for node in list(made.graph):
        plain = before.get(node.name)
        for index, rounded in enumerate(node.inputs if plain is not None else ()):
            exact = plain.inputs[index] if plain is not None and index < len(plain.inputs) else None
            if rounded is not None and (exact is None or exact.name != rounded.name):
                node.replace_input_with(index, writer.choice(node, unit_of[str(node.name)], rounded, exact))
    writer.remove_unused()
    return made, str(writer.switches.name)


class _Switches:
    """Puts choices into a graph that rounds all values."""

    def __init__(self, graph: ir.Graph, count: int) -> None:
        self._graph = graph
        self._known = {value.name: value for value in values_of(graph)}
        named = [*self._known, *(node.name for node in graph.all_nodes())]
        self._names = NameSupply(reserved=[str(name) for name in named if name])
        self.switches = self._value("switches", ir.TensorType(ir.DataType.BOOL), ir.Shape([count]))
        graph.inputs.append(self.switches)
        self._switch_of: dict[int, ir.Value] = {}
        self._chosen: dict[tuple[ir.Value, int], ir.Value] = {}

    def choice(self, node: ir.Node, unit: int, rounded: ir.Value, exact: ir.Value | None) -> ir.Value:
        """Return what is the rounded value if the switch of a unit is on, else the exact one. Only one is computed.

        Args:
            node: The first node that reads it.
            unit: The unit.
            rounded: The value in the copy.
            exact: The one in the model; None if there is none, since the rounded one corrects errors of rounding alone.
        """
        if (rounded, unit) not in self._chosen:
            if unit not in self._switch_of:
                place = self._constant("unit", ir.Tensor(np.array(unit)))
                self._switch_of[unit] = self._put(node, "Gather", [self.switches, place], self.switches.type)
            branches = [
                ir.AttrGraph("then_branch", self._branch(rounded)),
                ir.AttrGraph("else_branch", self._branch(self._own(exact, rounded))),
            ]
            found = self._put(node, "If", [self._switch_of[unit]], rounded.type, branches)
            self._chosen[rounded, unit] = found
        return self._chosen[rounded, unit]

    def remove_unused(self) -> None:
        """Remove the nodes and constants whose values only branches made."""
        for node in reversed(list(self._graph)):
            unused = not any(output.uses() or output.is_graph_output() for output in node.outputs)
            if unused and node.op_type in _ROUNDING:
                self._graph.remove(node, safe=True)
        for name, value in list(self._graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del self._graph.initializers[name]

    def _branch(self, result: ir.Value) -> ir.Graph:
        """Return a graph that makes a value: copies of the operators that round it, or an identity."""
        nodes: list[ir.Node] = []

        def made(value: ir.Value) -> ir.Value:
            producer = value.producer()
            if producer is None or producer.op_type not in _ROUNDING:
                return value
            inputs = [made(each) if each is not None else None for each in producer.inputs]
            return add(producer.op_type, inputs, value, [*producer.attributes.values()])

        def add(
            op_type: str, inputs: Sequence[ir.Value | None], like: ir.Value, attributes: Sequence[ir.Attr] = ()
        ) -> ir.Value:
            output = self._value(op_type, like.type, like.shape)
            nodes.append(ir.Node("", op_type, inputs, attributes, outputs=[output], name=self._names.fresh(op_type)))
            return output

        found = made(result)
        output = found if nodes else add("Identity", [found], found)
        return ir.Graph([], [output], nodes=nodes, name=self._names.fresh("branch"))

    def _own(self, value: ir.Value | None, rounded: ir.Value) -> ir.Value:
        """Return the value of this graph that is one of the model."""
        if value is None:
            assert rounded.const_value is not None
            return self._constant("none", ir.Tensor(np.zeros_like(rounded.const_value.numpy())))
        if value.name not in self._known:
            assert value.const_value is not None
            self._known[value.name] = self._constant(str(value.name), value.const_value)
        return self._known[value.name]

    def _put(
        self,
        node: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value],
        kind: ir.TypeProtocol | None,
        attributes: Sequence[ir.Attr] = (),
    ) -> ir.Value:
        """Put a node before another one, and return its result."""
        result = self._value(op_type, kind)
        made = ir.Node("", op_type, inputs, attributes, outputs=[result], name=self._names.fresh(op_type))
        self._graph.insert_before(node, made)
        return result

    def _constant(self, hint: str, tensor: ir.TensorProtocol) -> ir.Value:
        value = self._value(hint, ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy()))
        value.const_value = tensor
        self._graph.register_initializer(value)
        return value

    def _value(self, hint: str, kind: ir.TypeProtocol | None, shape: ir.Shape | None = None) -> ir.Value:
        return ir.Value(name=self._names.fresh(hint), type=kind, shape=shape)
