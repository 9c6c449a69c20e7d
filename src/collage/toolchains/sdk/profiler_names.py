"""Mapping the names in a toolchain's profile back to a kernel's nodes.

Toolchains name a layer after its node, or after a value of the node, with words of their own around it. So a copy of
the kernel is profiled in which every name is a token with the node's index.

A toolchain compiles what was made of a kernel: with checks of indices, and in types of reduced precision. So each node of a
kernel has its place written on it, before anything is made of it. What stands for the node has the same place.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "BODY",
    "TokenisedKernel",
    "input_token",
    "node_token",
    "note_places",
    "places_of",
    "ranks_of",
    "step_of",
    "tokenised",
    "tokens_in",
    "with_names",
]

_PLACE = "collage.place"
_TOKEN = re.compile(r"collage_n(\d+)_")

Rank = tuple[bool, int]
"""True for a product or a convolution, and the size of the largest constant."""

BODY = "collage_body_"
"""Token of the nodes inside control-flow bodies; their time is part of the node that holds them."""


@dataclass(frozen=True)
class TokenisedKernel:
    """A copy of a kernel with tokens for names.

    Attributes:
        path: The copy.
        producers: Indices of the nodes whose results each node reads.
        ranks: The rank of each node, see ``ranks_of``.
        op_types: The operator of each node.
        places: The place that each node has in the kernel of which this was made.
    """

    path: Path
    producers: Sequence[Sequence[int]]
    ranks: Sequence[Rank]
    op_types: Sequence[str]
    places: Sequence[int]

    def step(self, nodes: Iterable[int], timed: Collection[int]) -> tuple[int, ...]:
        """Return nodes that are computed together, and those merged into them: nodes before that have no time of their own."""
        group, open_nodes = set(nodes), list(nodes)
        while open_nodes:
            found = {index for index in self.producers[open_nodes.pop()] if index not in timed and index not in group}
            group |= found
            open_nodes += found
        return step_of(group, self.ranks)

    def in_kernel(self, seconds: Mapping[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
        """Return the seconds of steps by the places of their nodes in the kernel, first the place by which each step is known."""
        found: dict[tuple[int, ...], float] = defaultdict(float)
        for step, value in seconds.items():
            found[tuple(dict.fromkeys(self.places[node] for node in step))] += value
        return found


def note_places(kernel: ir.Model) -> None:
    """Write its place on each node of a kernel, where copies and files keep it."""
    for place, node in enumerate(kernel.graph):
        node.metadata_props[_PLACE] = str(place)


def places_of(nodes: Sequence[ir.Node]) -> list[int]:
    """Return the place that each of these nodes has in the kernel of which they were made; their order if none was noted.

    A node that has none serves the first that reads it, or else what it reads.
    """
    noted = {node: int(place) for node in nodes if (place := node.metadata_props.get(_PLACE, "")).isdecimal()}
    if not noted:
        return [*range(len(nodes))]
    for node in reversed(nodes):
        if node not in noted and (readers := [noted[reader] for reader in node.successors() if reader in noted]):
            noted[node] = min(readers)
    for node in nodes:
        if node not in noted:
            noted[node] = max((noted[source] for source in node.predecessors() if source in noted), default=0)
    return [noted[node] for node in nodes]


def ranks_of(nodes: Iterable[ir.Node]) -> list[Rank]:
    """Return the rank of each node: which of several that are computed together takes most of their time."""
    from collage.graph import OpKind, declared_kind

    nodes = list(nodes)
    are_products = [declared_kind(node.domain, node.op_type) is OpKind.OUT_ELEMWISE_FUSABLE for node in nodes]
    return [*zip(are_products, _largest_constants(nodes), strict=True)]


def step_of(nodes: Iterable[int], ranks: Sequence[Rank]) -> tuple[int, ...]:
    """Return nodes that are computed together, first the one of the highest rank, by which they are known; else the last."""
    main, *others = sorted(nodes, key=lambda index: (ranks[index], index), reverse=True)
    return (main, *sorted(others))


def input_token(index: int) -> str:
    """Name of an input of a tokenised kernel."""
    return f"collage_value{index}"


def node_token(index: int) -> str:
    """Name of a node of a tokenised kernel."""
    return f"collage_n{index}_"


def tokens_in(text: str) -> Sequence[int]:
    """Indices of all nodes in a toolchain's name, in the order in which it names them."""
    return [int(index) for index in _TOKEN.findall(text)]


def with_names(text: str, names: Mapping[int, str]) -> str:
    """Return a text with the names of nodes, given by the numbers in their tokens, in place of the tokens."""
    return _TOKEN.sub(lambda token: names.get(int(token[1]), token[0]), text)


@contextlib.contextmanager
def tokenised(path: Path) -> Iterator[TokenisedKernel]:
    """Write a tokenised copy of the kernel in ``path`` beside it, for as long as the context lasts."""
    import onnx_ir as ir

    model = ir.load(path)
    nodes = list(model.graph)
    places = {node: index for index, node in enumerate(nodes)}
    producers = [[places[node] for node in node.predecessors() if node in places] for node in nodes]
    copy = TokenisedKernel(
        path.with_name(f"{path.stem}.profile.onnx"),
        producers,
        ranks_of(nodes),
        [node.op_type for node in nodes],
        places_of(nodes),
    )
    _rename(model.graph)
    ir.save(model, copy.path)
    try:
        yield copy
    finally:
        copy.path.unlink()


def _rename(graph: ir.Graph) -> None:
    for index, value in enumerate((*graph.inputs, *graph.initializers.values())):
        value.name = input_token(index)
    for index, node in enumerate(graph):
        node.name = node_token(index)
        for place, value in enumerate(node.outputs):
            value.name = f"{node_token(index)}{place}" if value.name else ""
    for body in graph.subgraphs():
        for node in body:
            node.name = BODY


def _largest_constants(nodes: Iterable[ir.Node]) -> list[int]:
    """Size of the largest constant of each node. A node that computes with constants only passes their size on."""
    sizes: dict[ir.Value, int] = {}
    found = []
    for node in nodes:
        inputs = [value for value in node.inputs if value is not None]
        sizes.update({value: value.const_value.size for value in inputs if value.const_value is not None})
        largest = max((sizes.get(value, 0) for value in inputs), default=0)
        is_constant = all(value in sizes for value in inputs)
        sizes.update(dict.fromkeys(node.outputs, largest) if is_constant else {})
        found.append(0 if is_constant else largest)
    return found
