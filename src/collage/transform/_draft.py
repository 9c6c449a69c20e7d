"""A model that a pass may change, while the original stays as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import onnx_ir as ir

from collage.transform._copy import Copier

__all__ = ["Body", "Draft", "bodies_of", "functions_of", "main_graph_of", "source"]

_Part = TypeVar("_Part", ir.Model, ir.Graph, ir.Function, ir.Graph | ir.Function)
_WITH_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


class _Unfilled:
    """A part of a draft, whose fields stay unset until one is used; so reading any of them ends in ``__getattr__``.

    Attributes:
        _draft: The draft that it is part of; None once its fields are set.
        _source: What it is going to be a copy of.
    """

    __slots__ = ()

    _draft: Draft | None
    _source: Any

    def _await(self, draft: Draft | None, original: Any) -> None:
        object.__setattr__(self, "_draft", draft)
        object.__setattr__(self, "_source", original)

    def __getattr__(self, name: str) -> Any:
        if name in _Unfilled.__annotations__ or name.startswith("__") or self._draft is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self._draft.fill()
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._draft is not None:
            self._draft.fill()
        object.__setattr__(self, name, value)


class _DraftGraph(_Unfilled, ir.Graph):
    __slots__ = ("_draft", "_source")

    def __init__(self, draft: Draft, original: ir.Graph) -> None:
        self._await(draft, original)


class _DraftFunction(_Unfilled, ir.Function):
    __slots__ = ("_draft", "_source")

    def __init__(self, draft: Draft, original: ir.Function) -> None:
        self._await(draft, original)


class Draft(_Unfilled, ir.Model):
    """A copy of a model, made when somebody first looks into it.

    Passes get a draft, so a pass that fails leaves the original unchanged; and a pass that looks at nothing costs
    nothing, however large the model. Its graphs and functions can be handed out before the copy is made; whoever looks
    into one of them has the whole model copied. Weights are shared, not copied.
    """

    __slots__ = ("_copier", "_draft", "_source")

    _copier: Copier

    def __init__(self, original: ir.Model) -> None:
        object.__setattr__(self, "_copier", Copier())
        self._await(self, source(original))

    @property
    def untouched(self) -> bool:
        """Whether nobody has looked yet, so that the original is the result."""
        return self._draft is not None

    def fill(self) -> None:
        """Makes the copy, once."""
        if self._draft is None:
            return
        original, copier = self._source, self._copier
        object.__setattr__(self, "_copier", Copier())  # lets go of the original
        unfilled: list[Any] = [self, *copier.graphs.values(), *copier.functions.values()]
        for part in unfilled:
            part._await(None, None)
        copier.fill_model(self, original)

    def graph_for(self, original: ir.Graph) -> ir.Graph:
        """The draft of a graph or body of an untouched model."""
        return self._copier.graphs.setdefault(original, _DraftGraph(self, original))

    def function_for(self, original: ir.Function) -> ir.Function:
        """The draft of a function of an untouched model."""
        return self._copier.functions.setdefault(original, _DraftFunction(self, original))


@dataclass(frozen=True, slots=True)
class Body:
    """A control-flow body, and where it stands.

    Attributes:
        graph: The body.
        node: The node that has it; where the body is an untouched draft, the node of the original.
        name: Of the node's attribute.
        copier: Leads from nodes of the original to those of the draft; None if ``node`` is the one itself.
    """

    graph: ir.Graph
    node: ir.Node
    name: str
    copier: Copier | None

    def replace_by(self, graph: ir.Graph) -> None:
        """Gives the node another body."""
        if isinstance(self.graph, _DraftGraph) and self.graph._draft is not None:
            self.graph._draft.fill()
        node = self.node if self.copier is None else self.copier.nodes[self.node]
        old = node.attributes[self.name]
        if old.type == ir.AttributeType.GRAPH:
            node.attributes[self.name] = ir.AttrGraph(self.name, graph)
        else:
            graphs = [graph if body is self.graph else body for body in old.as_graphs()]
            node.attributes[self.name] = ir.AttrGraphs(self.name, graphs)


def source(part: _Part) -> _Part:
    """What an untouched draft will be a copy of, to look at; anything else itself."""
    if isinstance(part, _Unfilled) and part._draft is not None:
        original: _Part = part._source
        return original
    return part


def main_graph_of(model: ir.Model) -> ir.Graph:
    """The main graph, without touching a draft."""
    return model.graph_for(source(model).graph) if isinstance(model, Draft) and model.untouched else model.graph


def functions_of(model: ir.Model) -> list[ir.Function]:
    """The functions, without touching a draft."""
    if isinstance(model, Draft) and model.untouched:
        return [model.function_for(function) for function in source(model).functions.values()]
    return list(model.functions.values())


def bodies_of(function: ir.Graph | ir.Function) -> Sequence[Body]:
    """The control-flow bodies of a function's nodes, without touching a draft."""
    # Plain loops over plain dictionaries: of an empty pass on a large model, this is what takes time.
    found = [
        (node, attribute)
        for node in source(function)
        for attribute in node.attributes.data.values()
        if attribute.type in _WITH_BODIES and not attribute.is_ref()
    ]
    draft = function._draft if isinstance(function, _Unfilled) else None
    copier = None if draft is None else draft._copier
    result = []
    for node, attribute in found:
        for graph in [attribute.value] if attribute.type == ir.AttributeType.GRAPH else attribute.value:
            result.append(Body(graph if draft is None else draft.graph_for(graph), node, attribute.name, copier))
    return result
