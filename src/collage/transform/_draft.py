"""A model that a pass may change, while the original stays as it was."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import onnx_ir as ir

from collage.graph import Copier

__all__ = ["Body", "Draft", "bodies_of", "functions_of", "has_operator", "main_graph_of", "source"]

_Part = TypeVar("_Part", ir.Model, ir.Graph, ir.Function, ir.Graph | ir.Function)
_WITH_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""ONNX's own operators that have bodies; those of other domains may have some, too."""


class _Unfilled:
    """A part of a draft, whose fields stay unset until one is used; so reading any of them ends in ``__getattr__``.

    Filled, it becomes an ordinary graph, function or model, in which nothing is left of this.

    Attributes:
        _draft: The draft that it is part of.
        _source: The part of the original model that it will be a copy of.
    """

    __slots__ = ()

    _draft: Draft
    _source: Any

    def _await(self, draft: Draft, original: Any) -> None:
        self.__dict__.update(_draft=draft, _source=original)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self._draft.fill()
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._draft.fill()
        setattr(self, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._draft.fill()
        return self.__reduce_ex__(protocol)


class _DraftGraph(_Unfilled, ir.Graph):
    def __init__(self, draft: Draft, original: ir.Graph) -> None:
        self._await(draft, original)


class _DraftFunction(_Unfilled, ir.Function):
    def __init__(self, draft: Draft, original: ir.Function) -> None:
        self._await(draft, original)


class Draft(_Unfilled, ir.Model):
    """A copy of a model that is made at the first look into it. Then it is not a draft any more.

    Passes get a draft, so a pass that fails leaves the original unchanged; and a pass that looks at nothing costs
    nothing, however large the model. Its graphs and functions can be handed out before the copy is made. A look
    into one of them copies the whole model. Weights share
    their bytes with the original.
    """

    _copier: Copier

    def __init__(self, original: ir.Model) -> None:
        self._await(self, source(original))
        self.__dict__["_copier"] = Copier()

    def fill(self) -> None:
        """Make the copy."""
        original, copier = self._source, self._copier
        for graph in copier.graphs.values():
            _become(graph, ir.Graph)
        for function in copier.functions.values():
            _become(function, ir.Function)
        _become(self, ir.Model)
        copier.fill_model(self, original)

    def graph_for(self, original: ir.Graph) -> ir.Graph:
        """The draft of a graph or body."""
        return self._copier.graphs.setdefault(original, _DraftGraph(self, original))

    def function_for(self, original: ir.Function) -> ir.Function:
        """The draft of a function."""
        return self._copier.functions.setdefault(original, _DraftFunction(self, original))


@dataclass(frozen=True, slots=True)
class Body:
    """A control-flow body, and where it stands.

    Attributes:
        graph: The body.
        node: The node that has it; where the body is a draft, the node of the original.
        name: Name of the node's attribute.
        copier: Leads from nodes of the original to those of the draft; None if ``node`` is the one itself.
    """

    graph: ir.Graph
    node: ir.Node
    name: str
    copier: Copier | None

    def replace_by(self, graph: ir.Graph) -> None:
        """Give the node another body."""
        if isinstance(self.graph, _DraftGraph):
            self.graph._draft.fill()
        node = self.node if self.copier is None else self.copier.nodes[self.node]
        old = node.attributes[self.name]
        if old.type == ir.AttributeType.GRAPH:
            node.attributes[self.name] = ir.AttrGraph(self.name, graph)
        else:
            graphs = [graph if body is self.graph else body for body in old.as_graphs()]
            node.attributes[self.name] = ir.AttrGraphs(self.name, graphs)


def source(part: _Part) -> _Part:
    """Return the model that a draft will be a copy of, for reading. Anything else is returned itself."""
    if isinstance(part, _Unfilled):
        original: _Part = part._source
        return original
    return part


def has_operator(function: ir.Graph | ir.Function, op_types: Collection[str]) -> bool:
    """Return True if a function has a node of one of these types, bodies left out, without touching a draft."""
    return any(node.op_type in op_types for node in source(function))


def main_graph_of(model: ir.Model) -> ir.Graph:
    """The main graph, without touching a draft."""
    return model.graph_for(source(model).graph) if isinstance(model, Draft) else model.graph


def functions_of(model: ir.Model) -> list[ir.Function]:
    """The functions, without touching a draft."""
    if isinstance(model, Draft):
        return [model.function_for(function) for function in source(model).functions.values()]
    return list(model.functions.values())


def bodies_of(function: ir.Graph | ir.Function) -> Sequence[Body]:
    """The control-flow bodies of a function's nodes, without touching a draft."""
    # Of an empty pass on a large model this is what takes time, so attributes are looked at only where they may count.
    found = [
        (node, attribute)
        for node in source(function)
        if node.op_type in _CONTROL_FLOW or node.domain
        for attribute in node.attributes.values()
        if attribute.type in _WITH_BODIES and not attribute.is_ref()
    ]
    draft = function._draft if isinstance(function, _Unfilled) else None
    copier = None if draft is None else draft._copier
    result = []
    for node, attribute in found:
        for graph in [attribute.value] if attribute.type == ir.AttributeType.GRAPH else attribute.value:
            result.append(Body(graph if draft is None else draft.graph_for(graph), node, attribute.name, copier))
    return result


def _become(part: ir.Model | ir.Graph | ir.Function, kind: type) -> None:
    part.__dict__.clear()
    object.__setattr__(part, "__class__", kind)
