"""FoldLengths: shapes that exporters compute by long chains of nodes become constants, or take few nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from collage.frontend import name_everything, remove_unused
from collage.transform._context import PassContext
from collage.transform._effects import bodies
from collage.transform._info import PassInfo
from collage.transform._length_values import ONE, Elements, LengthValues, Number, is_certain, is_natural, place_on_axis
from collage.transform._linear import add_constant
from collage.transform._pass_kinds import ModulePass

__all__ = ["FoldLengths"]


class FoldLengths(ModulePass):
    """Computes with the symbols of input lengths what shapes, slices and ranges will be, and writes it plainly.

    Exporters that trace a model compute each shape anew, by ``Shape``, ``Gather``, arithmetic, and comparisons with -1 that no
    length is. Most toolchains do not follow that, and know no lengths behind it.

    | rule | applies where |
    |---|---|
    | a list of numbers is a constant | no element depends on a length |
    | a quotient is a number from before | both are the same, whatever the lengths are |
    | ``Where`` as a ``Concat`` | which of two numbers it takes does not depend on lengths |
    | ``Reshape`` to a constant | each element is a number, or the length that the tensor has on that axis |
    | ``Expand`` by 1 | the tensor has that length already |
    | ``Slice`` | it takes whole axes |
    | ``Tile`` as an ``Expand`` | the tensor has length 1 on each axis that it is repeated along, or that is the first one |
    | ``Range`` from 0, and its start added | it counts integers up, and how many follows from lengths |

    A length is never negative. All is exact as long as inputs have the lengths that their symbols say.
    """

    def __init__(self) -> None:
        super().__init__(PassInfo("FoldLengths", opt_level=2, required=("InferType",)))

    def transform_module(self, model: ir.Model, context: PassContext) -> ir.Model:
        """Folds in place, in branches of ``If`` too; bodies that are run several times stay as they are."""
        if any(dim for value in model.graph.inputs for dim in value.shape or () if not isinstance(dim, int)):
            folder = _Folder(model.graph)
            folder.visit(model.graph)
            if folder.changed:
                remove_unused(model)
                name_everything(model)
        return model


class _Folder:
    """Rewrites a graph's nodes in the order in which they run.

    Args:
        graph: The graph.

    Attributes:
        changed: True if a node was rewritten.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.changed = False
        self._graph = graph
        self._lengths = LengthValues(graph)
        self._scalars: dict[Number, ir.Value] = {}
        self._lists: dict[Number, ir.Value] = {}

    def visit(self, graph: ir.Graph) -> None:
        """Rewrite the nodes of a graph, and of branches in it."""
        for node in list(graph):
            if node.op_type == "If" and node.domain == "":
                for branch in bodies(node):
                    known = dict(self._scalars), dict(self._lists)
                    self.visit(branch)
                    self._scalars, self._lists = known
            self._fold(node)

    def _fold(self, node: ir.Node) -> None:
        """Rewrite a node, or the uses of its result."""
        if node.domain != "" or len(node.outputs) != 1:
            return
        rule = _RULES.get(node.op_type)
        if rule is not None and not any(value is None for value in node.inputs[:2]):
            rule(self, node)
        self._lengths.visit(node)
        (y,) = node.outputs
        self._note_shape(y)
        found = self._lengths.elements(y)
        if found is not None and y.dtype is not None and not y.is_graph_output():
            self._replace(y, found)

    def _note_shape(self, y: ir.Value) -> None:
        """Give a value the lengths that inference did not find."""
        found = self._lengths.shape(y)
        if found is None or (y.shape is not None and y.shape.is_static()):
            return
        before = [None] * len(found) if y.shape is None else list(y.shape)
        dims = [self._lengths.as_dim(number) for number in found]
        y.shape = ir.Shape([dim if new is None else new for dim, new in zip(before, dims, strict=True)])

    def _replace(self, y: ir.Value, found: Elements) -> None:
        """Replace a list of numbers by a constant, or by one that takes fewer nodes; note which values have which numbers."""
        if all(map(is_certain, found)):
            self._take(y, self._constant(y, [int(number) for number in found if number is not None]))
            return
        producer = y.producer()
        if y.dtype != ir.DataType.INT64 or y.shape is None or producer is None:
            return
        if len(y.shape) == 1 and producer.op_type == "Where" and (built := self._built(producer, found)) is not None:
            self._take(y, built)
        elif not len(y.shape) and producer.op_type == "Div" and found[0] in self._scalars:
            self._take(y, self._scalars[found[0]])
        elif len(found) == 1 and found[0] is not None:
            # The latest is near what reads it, so that both may be in one kernel.
            (self._lists if len(y.shape) else self._scalars)[found[0]] = y

    def _take(self, y: ir.Value, known: ir.Value) -> None:
        if y.uses():
            y.replace_all_uses_with(known)
            self.changed = True

    def _constant(self, like: ir.Value, numbers: list[int]) -> ir.Value:
        array = np.asarray(numbers, like.dtype.numpy() if like.dtype is not None else np.int64)
        is_scalar = like.shape is not None and len(like.shape) == 0
        return add_constant(self._graph, f"{like.name}_folded", array.reshape(()) if is_scalar else array)

    def _built(self, before: ir.Node, elements: Elements) -> ir.Value | None:
        """Return a list of numbers, made before a node of values that are there; None if one is not."""
        parts: list[ir.Value] = []
        numbers: list[int] = []

        def close() -> None:
            if numbers:
                array = np.asarray(numbers, np.int64)
                parts.append(add_constant(self._graph, f"{before.outputs[0].name}_numbers", array))
                numbers.clear()

        for element in elements:
            if element is not None and is_certain(element):
                numbers.append(int(element))
                continue
            close()
            if element is None or (part := self._list_of_one(before, element)) is None:
                return None
            parts.append(part)
        close()
        return parts[0] if len(parts) == 1 else self._add(before, "Concat", parts, [len(elements)], axis=0)

    def _list_of_one(self, before: ir.Node, number: Number) -> ir.Value | None:
        if number in self._lists:
            return self._lists[number]
        if number not in self._scalars:
            return None
        axes = add_constant(self._graph, f"{before.outputs[0].name}_axes", np.asarray([0], np.int64))
        found = self._add(before, "Unsqueeze", [self._scalars[number], axes], [1])
        self._lists[number] = found
        return found

    def _add(
        self, before: ir.Node, op_type: str, inputs: list[ir.Value], shape: list[int], **attributes: int
    ) -> ir.Value:
        node = ir.node(op_type, inputs, attributes or None)
        (y,) = node.outputs
        y.name = f"{before.outputs[0].name}_{op_type.lower()}"
        y.type, y.shape = ir.TensorType(ir.DataType.INT64), ir.Shape(shape)
        _graph_of(before).insert_before(before, node)
        self._lengths.visit(node)
        self.changed = True
        return y

    def _become_identity(self, node: ir.Node) -> None:
        node.op_type = "Identity"
        node.attributes.clear()
        node.resize_inputs(1)
        self.changed = True

    def _reshape(self, node: ir.Node) -> None:
        x, target = self._lengths.shape(node.inputs[0]), self._lengths.elements(node.inputs[1])
        if x is None or target is None or all(map(is_certain, target)) or 0 in target:
            return
        made = [0 if axis < len(x) and n == x[axis] and not is_certain(n) else n for axis, n in enumerate(target)]
        if not all(isinstance(n, int) or is_certain(n) for n in made):
            return
        node.attributes.pop("allowzero", None)
        self._set(node, 1, [int(n) for n in made if n is not None])

    def _expand(self, node: ir.Node) -> None:
        x, target = self._lengths.shape(node.inputs[0]), self._lengths.elements(node.inputs[1])
        if x is None or target is None:
            return
        missing = len(target) - len(x)
        made = tuple(n if axis < missing or n != x[axis - missing] else ONE for axis, n in enumerate(target))
        if missing <= 0 and all(n == 1 for n in made):
            self._become_identity(node)
        elif made == target:
            return
        elif all(map(is_certain, made)):
            self._set(node, 1, [int(n) for n in made if n is not None])
        elif (built := self._built(node, made)) is not None:
            node.replace_input_with(1, built)

    def _slice(self, node: ir.Node) -> None:
        x, (begin, end) = self._lengths.shape(node.inputs[0]), map(self._lengths.elements, node.inputs[1:3])
        axes, steps = map(self._lengths.numbers, (*node.inputs[3:], None, None)[:2])
        if x is None or begin is None or end is None or (len(node.inputs) > 3 and axes is None):
            return
        if len(node.inputs) > 4 and (steps is None or set(steps) != {1}):
            return
        lengths = [x[axes[i] if axes is not None else i] for i in range(len(begin))]
        if all(
            first is not None and last is not None and place_on_axis(n, first) == 0 and place_on_axis(n, last) == n
            for first, last, n in zip(begin, end, lengths, strict=True)
        ):
            self._become_identity(node)

    def _tile(self, node: ir.Node) -> None:
        x, repeats = self._lengths.shape(node.inputs[0]), self._lengths.elements(node.inputs[1])
        if x is not None and repeats is not None and all(1 in pair for pair in zip(x, repeats, strict=False)):
            node.op_type = "Expand"
            self.changed = True
            self._expand(node)
        elif x is not None and repeats is not None and _is_along_first(x, repeats):
            self._tile_first(node, [int(n) for n in x])

    def _tile_first(self, node: ir.Node, shape: list[int]) -> None:
        """Write a Tile along the first axis as an Expand along one before it."""
        stem = node.outputs[0].name
        axes = add_constant(self._graph, f"{stem}_axes", np.asarray([0], np.int64))
        apart = ir.node("Unsqueeze", [node.inputs[0], axes])
        one = add_constant(self._graph, f"{stem}_one", np.asarray([1], np.int64))
        times = ir.node("Concat", [node.inputs[1], one], {"axis": 0})
        repeated = ir.node("Expand", [apart.outputs[0], times.outputs[0]])
        for i, made in enumerate((apart, times, repeated)):
            made.outputs[0].name = f"{stem}_part{i}"
            _graph_of(node).insert_before(node, made)
        node.op_type = "Reshape"
        node.replace_input_with(0, repeated.outputs[0])
        self._set(node, 1, [-1, *shape[1:]])

    def _range(self, node: ir.Node) -> None:
        start, limit, step = map(self._lengths.elements, node.inputs)
        (y,) = node.outputs
        if (
            not start
            or not limit
            or step != (1,)
            or start == (0,)
            or y.dtype != ir.DataType.INT64
            or y.is_graph_output()
        ):
            return
        count = limit[0] - start[0] if start[0] is not None and limit[0] is not None else None
        if count not in self._scalars or not is_natural(count):
            return
        moved = ir.node("Add", [y, node.inputs[0]])
        (made,) = moved.outputs
        # A name stands for the same numbers as before.
        y.name, made.name, made.type = f"{y.name}_from_0", y.name, y.type
        y.replace_all_uses_with(made)
        moved.replace_input_with(0, y)
        node.replace_input_with(0, add_constant(self._graph, f"{y.name}_start", np.asarray(0, np.int64)))
        node.replace_input_with(1, self._scalars[count])
        _graph_of(node).insert_after(node, moved)
        self._lengths.visit(node)
        self._lengths.visit(moved)
        self._note_shape(made)
        self.changed = True

    def _set(self, node: ir.Node, place: int, numbers: list[int]) -> None:
        """Give a node a constant list of numbers."""
        stem = f"{node.outputs[0].name}_shape"
        node.replace_input_with(place, add_constant(self._graph, stem, np.asarray(numbers, np.int64)))
        self.changed = True


def _is_along_first(x: Elements, repeats: Elements) -> bool:
    """Return True for a tensor of fixed lengths, of which none is 0, that is repeated along its first axis alone."""
    return (
        len(x) == len(repeats) > 0
        and all(n is not None and n.is_Integer and n > 0 for n in x)
        and set(repeats[1:]) <= {ONE}
    )


def _graph_of(node: ir.Node) -> ir.Graph:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    return graph


_RULES: Mapping[str, Callable[[_Folder, ir.Node], None]] = {
    "Expand": _Folder._expand,
    "Range": _Folder._range,
    "Reshape": _Folder._reshape,
    "Slice": _Folder._slice,
    "Tile": _Folder._tile,
}
