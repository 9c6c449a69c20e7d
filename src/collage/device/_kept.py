"""Carry device annotations through passes that do not know them; report annotations that are lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from collage._errors import ConfigError
from collage.device._annotations import CANDIDATES, ON_DEVICE, SE_SCOPE
from collage.device._copy_op import DST_SE_SCOPE
from collage.device._scope import SEScope

__all__ = ["KeptAnnotations", "LostAnnotation", "has_demands"]


@dataclass(frozen=True, slots=True)
class LostAnnotation:
    """An annotated node that nothing has taken the place of.

    Attributes:
        name: Its name.
        op_type: Its operator.
        is_constant: True if its results became constants; these lie wherever they are read.
    """

    name: str
    op_type: str
    is_constant: bool

    def __str__(self) -> str:
        became = "became a constant, which is stored wherever it is read" if self.is_constant else "was simplified away"
        return f"{self.name!r} ({self.op_type}) {became}"


@dataclass(frozen=True, slots=True)
class _Kept:
    name: str
    op_type: str
    results: tuple[str, ...]
    demands: dict[str, str]


def has_demands(model: ir.Model) -> bool:
    """True if a model from the front door says anything about devices: annotations, a plan, or copies."""
    graphs = any(_demands(graph.metadata_props) for graph in model.graphs())
    return graphs or any(_demands(node.metadata_props) or DST_SE_SCOPE in node.metadata_props for node in _nodes(model))


class KeptAnnotations:
    """The annotations of a model, to be restored on the model that other passes return.

    Args:
        model: The model; it is not kept.
    """

    def __init__(self, model: ir.Model) -> None:
        self._graph = _demands(model.graph.metadata_props)
        self._nodes = [
            _Kept(str(node.name), node.op_type, tuple(str(v.name) for v in node.outputs), demands)
            for node in _nodes(model)
            if (demands := _demands(node.metadata_props))
        ]

    @property
    def names(self) -> frozenset[str]:
        """Names of annotated nodes, and of their results. A plan made earlier does not count."""
        annotated = [kept for kept in self._nodes if any(key.startswith(ON_DEVICE) for key in kept.demands)]
        return frozenset(name for kept in annotated for name in (kept.name, *kept.results))

    def restore(self, model: ir.Model) -> list[LostAnnotation]:
        """Annotate the nodes that replaced annotated ones: those of equal name, else those that make their results.

        Args:
            model: The model that passes made; changed in place.

        Returns:
            The nodes that nothing has taken the place of.

        Raises:
            ConfigError: Nodes with demands that contradict each other were merged.
        """
        for key, text in self._graph.items():
            model.graph.metadata_props.setdefault(key, text)
        by_name = {str(node.name): node for node in _nodes(model)}
        by_result = {str(value.name): node for node in _nodes(model) for value in node.outputs}
        constants = {name for graph in model.graphs() for name in graph.initializers}
        restored: dict[ir.Node, _Kept] = {}
        lost = []
        for kept in self._nodes:
            heirs = [by_name.get(kept.name), *(by_result.get(name) for name in kept.results)]
            heir = next((node for node in heirs if node is not None), None)
            if heir is not None:
                _hand_on(kept, heir, restored.setdefault(heir, kept))
            else:
                lost.append(LostAnnotation(kept.name, kept.op_type, not constants.isdisjoint(kept.results)))
        return lost


def _hand_on(kept: _Kept, heir: ir.Node, first: _Kept) -> None:
    for key, text in kept.demands.items():
        there = heir.metadata_props.setdefault(key, text)
        if there == text:
            continue
        if key == CANDIDATES and (common := [scope for scope in there.splitlines() if scope in text.splitlines()]):
            heir.metadata_props[key] = "\n".join(common)
            continue
        is_scope = key.partition(":")[0] in (ON_DEVICE, SE_SCOPE)
        joined = SEScope.parse(there).join(SEScope.parse(text)) if is_scope else None
        if joined is None:
            raise ConfigError(
                f"{first.name!r} ({first.op_type}) is to be in {there} and {kept.name!r} ({kept.op_type}) in {text}, but "
                f"the preparation of the model made one operator of them, {heir.name!r}; place both alike"
            )
        heir.metadata_props[key] = str(joined)


def _demands(metadata: dict[str, str]) -> dict[str, str]:
    return {k: text for k, text in metadata.items() if k.startswith(ON_DEVICE) or k.partition(":")[0] == SE_SCOPE}


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    return model.graph.all_nodes()
