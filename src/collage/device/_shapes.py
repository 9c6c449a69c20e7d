"""Shape islands: operators that only compute shapes. They run on the host, and so do their inputs and results.

An island is grown in two directions: forward from what is a shape to begin with, and back from operands that the host
reads. It ends where tensors become large. An annotated operator is never part of one.
"""

from __future__ import annotations

import math
from collections import defaultdict

import onnx_ir as ir

from collage.device._operators import has_host_result, host_operands, unread_operands
from collage.device._placement_constraints import SHAPES, PlacementConstraints
from collage.graph import bodies
from collage.transform import is_random

__all__ = ["settle_shapes"]

_MOST_ELEMENTS = 64
"""Up to so many integers or truth values may be a shape; few shapes have more than eight dimensions."""

_MOST_DIMENSIONS = 2
"""A shape is a vector; exporters reverse paddings as a matrix."""

_STANDARD_DOMAINS = ("", "ai.onnx")
_GROWING = frozenset({"ConstantOfShape", "Expand", "EyeLike", "OneHot", "Range", "Resize", "Tile"})


def settle_shapes(places: PlacementConstraints) -> frozenset[int]:
    """Put shape computations on the host.

    Returns:
        The domains that are the host's: those that it computes with, and its own.
    """
    island = _Island(places)
    island.grow_forward()
    island.grow_back()
    for place in island.places:
        if places.devices.scope(place).is_free:
            places.devices.fix(place, places.config.host.device, SHAPES)
    return frozenset(map(places.devices.find, (places.host, *island.places)))


class _Island:
    def __init__(self, places: PlacementConstraints) -> None:
        self._places = places
        self._shapes: set[ir.Value] = set()
        self.places: set[int] = set()
        self._sources: dict[int, list[ir.Value]] = defaultdict(list)
        operators = set(places.of_node.values())
        for read in places.reads:
            if read.place not in operators and read.place != places.host:
                self._sources[read.place].append(read.value)

    def grow_forward(self) -> None:
        """From shapes on, as long as results stay small."""
        for node in self._places.nodes:
            if has_host_result(node) and self._is_unplaced(node):
                self._take(node)
            elif self._may_compute_shapes(node):
                data = self._data(node)
                if data and all(value in self._shapes for value in data) and not self._grows(node):
                    self._take(node)

    def grow_back(self) -> None:
        """Grow back from values that the host reads, as long as their operands are small."""
        waiting = [read.value for read in self._places.reads if read.place == self._places.host]
        seen: set[ir.Value] = set()
        while waiting:
            value = waiting.pop()
            place = self._places.of_value.get(value)
            if value in seen or place is None:
                continue
            seen.add(value)
            node = value.producer()
            if node in self._places.of_node:
                waiting.extend(self._demand(node))
            elif value not in self._places.inputs and (value.type is None or self._is_small(value)):
                # The formal of a body or function, or a result of control flow: as good as what goes into it.
                sources = self._sources[place]
                if sources and all(map(self._is_small, sources)) and self._places.devices.scope(place).is_free:
                    self.places.add(place)
                    waiting.extend(sources)

    def _demand(self, node: ir.Node) -> list[ir.Value]:
        """Return the operands of a node, if it computes values for the host on the host."""
        if self._places.of_node[node] in self.places or not self._may_compute_shapes(node):
            return []
        data = self._data(node)
        if not all(map(self._is_small, (*data, *node.outputs))):
            return []
        self._take(node)
        return data

    def _take(self, node: ir.Node) -> None:
        self.places.add(self._places.of_node[node])
        self._shapes.update(node.outputs)

    def _is_unplaced(self, node: ir.Node) -> bool:
        """Return True if nothing but shape computations has placed a node."""
        place = self._places.of_node[node]
        scope = self._places.devices.scope(place)
        return scope.is_free or all(fixing.cause == SHAPES for fixing in self._places.devices.fixings(place))

    def _may_compute_shapes(self, node: ir.Node) -> bool:
        if node not in self._places.of_node or node.domain not in _STANDARD_DOMAINS or any(True for _ in bodies(node)):
            return False
        return self._places.devices.scope(self._places.of_node[node]).is_free and not is_random(node)

    def _data(self, node: ir.Node) -> list[ir.Value]:
        """The operands that vary and are read where the node runs."""
        skipped = {*host_operands(node), *unread_operands(node)}
        operands = (value for index, value in enumerate(node.inputs) if index not in skipped and value is not None)
        return [value for value in operands if value not in self._places.constants]

    def _grows(self, node: ir.Node) -> bool:
        return node.op_type in _GROWING and not all(map(self._is_small, node.outputs))

    def _is_small(self, value: ir.Value) -> bool:
        if value in self._shapes:
            return True
        if (
            value.dtype is None
            or value.shape is None
            or not value.shape.is_static()
            or len(value.shape) > _MOST_DIMENSIONS
        ):
            return False
        countable = value.dtype.is_integer() or value.dtype == ir.DataType.BOOL
        return countable and math.prod(value.shape.numpy()) <= _MOST_ELEMENTS
