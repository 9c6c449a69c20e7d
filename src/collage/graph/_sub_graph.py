"""Sub-graphs: sets of dataflow nodes that may become kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from collage._errors import UsageError
from collage.graph._dataflow_graph import DataflowGraph
from collage.graph._index_set import IndexSet, bits_of, first_bit, iterate_bits, last_bit
from collage.graph._op_kind import OpKind

__all__ = ["ANY_VALID", "NestedSubGraph", "SubGraph", "SubGraphConfig"]


@dataclass(frozen=True, slots=True)
class SubGraphConfig:
    """The limits within which sub-graphs count as valid.

    Attributes:
        max_exits: Largest number of exit nodes, 0 for no limit.
        allow_taps: True if an exit node may also feed nodes inside.
        max_depth: Largest number of nodes on a path inside, 0 for no limit.
    """

    max_exits: int = 0
    allow_taps: bool = True
    max_depth: int = 0


ANY_VALID = SubGraphConfig()
"""Any number of exits, taps, and any depth."""


@dataclass(frozen=True, slots=True)
class NestedSubGraph:
    """A labelled part of a sub-graph: it becomes a function of its own, marked ``Composite``.

    Attributes:
        inside: Its nodes.
        label: The Composite label, such as ``lib.conv2d_bias_relu``.
        nested: Labelled parts of this part.
    """

    inside: IndexSet
    label: str
    nested: tuple[NestedSubGraph, ...] = ()

    def substitute(self, mapping: Mapping[int, int]) -> NestedSubGraph:
        """The same part with every index replaced by its value in ``mapping``."""
        inside = IndexSet.from_indices(mapping[i] for i in self.inside)
        return replace(self, inside=inside, nested=tuple(n.substitute(mapping) for n in self.nested))


class SubGraph:
    """A set of nodes of a dataflow graph, with labelled parts.

    *Entry* nodes are inside and read a value from outside that varies; *exit* nodes are inside and are read outside,
    or compute an output of the graph. *Input* nodes are outside and feed a node inside; *output* nodes are outside
    and read from one inside. All are derived from ``inside``. Two sub-graphs are equal iff their nodes and their
    labelled parts are.

    Attributes:
        graph: The dataflow graph.
        inside: Its nodes.
        nested: Its labelled parts, disjoint, by first index.
    """

    __slots__ = ("_depth", "_entry", "_exit", "_input", "_kind", "_output", "graph", "inside", "nested")

    def __init__(
        self, graph: DataflowGraph, inside: IndexSet | Iterable[int], nested: Iterable[NestedSubGraph] = ()
    ) -> None:
        """A sub-graph of the given nodes; see the class for the labelled parts."""
        self.graph = graph
        self.inside = inside if isinstance(inside, IndexSet) else IndexSet.from_indices(inside)
        parts = tuple(nested)
        self.nested = parts if len(parts) < 2 else tuple(sorted(parts, key=lambda part: part.inside.first))
        self._entry = self._exit = self._input = self._output = self._depth = -1
        self._kind: OpKind | None = None

    # What a sub-graph is made of ------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SubGraph):
            return NotImplemented
        return self.inside == other.inside and self.nested == other.nested and self.graph is other.graph

    def __hash__(self) -> int:
        return hash((self.inside, self.nested))

    def __len__(self) -> int:
        return len(self.inside)

    def __iter__(self) -> Iterator[int]:
        return iter(self.inside)

    def __repr__(self) -> str:
        return f"SubGraph({self.summary})"

    @property
    def key(self) -> tuple[IndexSet, tuple[NestedSubGraph, ...]]:
        """The key that distinguishes sub-graphs of one dataflow graph."""
        return self.inside, self.nested

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes inside, by index."""
        return tuple(self.graph.node(i) for i in self.inside)

    @property
    def kind(self) -> OpKind:
        """The largest kind of the nodes inside."""
        if self._kind is None:
            kinds = self.graph.kinds
            self._kind = max(kinds[i] for i in self.inside)
        return self._kind

    @property
    def label(self) -> str:
        """The operators inside, in index order, joined by ``+``; labelled parts show their label. Not unique."""
        labelled: dict[int, str] = {part.inside.first: part.label for part in self.nested}
        hidden = bits_of(i for part in self.nested for i in part.inside)
        words = (labelled.get(i) or ("" if hidden >> i & 1 else self.graph.node(i).op_type) for i in self.inside)
        return "+".join(word for word in words if word)

    @property
    def summary(self) -> str:
        """One line for people: the operators (abbreviated), and their indices."""
        words = self.label.split("+")
        label = "+".join(words) if len(words) <= 8 else "+".join([*words[:6], "…", words[-1]])
        return f"{label} {self.inside}"

    # Where it touches the rest of the graph -------------------------------------------------------------------------

    def _derive(self) -> None:
        graph, inside = self.graph, self.inside.bits
        entry = exits = inputs = outputs = 0
        for i in self.inside:
            before = graph.producer_bits[i] & ~inside
            after = graph.consumer_bits[i] & ~inside
            inputs |= before
            outputs |= after
            if before:
                entry |= 1 << i
            if after:
                exits |= 1 << i
        self._entry = entry | graph.fed_bits & inside
        self._exit = exits | graph.external_bits & inside
        self._input, self._output = inputs, outputs

    @property
    def entry_bits(self) -> int:
        """Bits of the entry nodes."""
        if self._entry < 0:
            self._derive()
        return self._entry

    @property
    def exit_bits(self) -> int:
        """Bits of the exit nodes."""
        if self._exit < 0:
            self._derive()
        return self._exit

    @property
    def input_bits(self) -> int:
        """Bits of the input nodes."""
        if self._input < 0:
            self._derive()
        return self._input

    @property
    def output_bits(self) -> int:
        """Bits of the output nodes."""
        if self._output < 0:
            self._derive()
        return self._output

    @property
    def entry(self) -> IndexSet:
        """Nodes inside that read something varying from outside."""
        return IndexSet(self.entry_bits)

    @property
    def exit(self) -> IndexSet:
        """Nodes inside that are read outside, or compute an output of the graph."""
        return IndexSet(self.exit_bits)

    @property
    def input(self) -> IndexSet:
        """Nodes outside that feed a node inside."""
        return IndexSet(self.input_bits)

    @property
    def output(self) -> IndexSet:
        """Nodes outside that read from a node inside."""
        return IndexSet(self.output_bits)

    def input_values(self) -> tuple[ir.Value, ...]:
        """The varying values from outside, in the order in which the nodes inside first read them."""
        used = (v for i in self.inside for v in self.graph.inputs_of(i))
        return tuple(dict.fromkeys(v for v in used if not self._makes(v)))

    def constant_values(self) -> tuple[ir.Value, ...]:
        """The constants that nodes inside read, in the order in which they are first read."""
        varying = {v for i in self.inside for v in self.graph.inputs_of(i)}
        used = (v for i in self.inside for v in self.graph.used_values(i))
        return tuple(dict.fromkeys(v for v in used if v not in varying))

    def output_values(self) -> tuple[ir.Value, ...]:
        """The values that are read outside or are outputs of the graph, in index order."""
        needed = {v for i in self.output for v in self.graph.inputs_of(i)}
        made = (v for i in self.exit for v in self.graph.node(i).outputs)
        return tuple(v for v in made if v in needed or self.graph.is_output(v))

    def _makes(self, value: ir.Value) -> bool:
        producer = value.producer()
        return producer is not None and producer in self.graph and self.graph.index_of(producer) in self.inside

    # Validity -------------------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Number of nodes on the longest path from an entry. Nodes that compute constants are on none."""
        if self._depth < 0:
            bits, entries = self.inside.bits, self.entry_bits
            level: dict[int, int] = {}
            for i in self.inside:
                before = max((level[p] for p in iterate_bits(self.graph.producer_bits[i] & bits)), default=0)
                level[i] = before + 1 if before or entries >> i & 1 else 0
            self._depth = max(level.values(), default=0)
        return self._depth

    @property
    def taps(self) -> IndexSet:
        """Exit nodes that also feed a node inside."""
        bits = self.inside.bits
        return IndexSet.from_indices(i for i in self.exit if self.graph.consumer_bits[i] & bits)

    @property
    def is_range(self) -> bool:
        """True if its indices have no gap: such a sub-graph is admissible."""
        bits = self.inside.bits
        return not bits & (bits + (bits & -bits))

    @property
    def is_convex(self) -> bool:
        """True if no path leaves the sub-graph and comes back."""
        if self.is_range:
            return True
        last, downstream = last_bit(self.inside.bits), self.graph.downstream_bits
        below = self.output_bits & ((1 << last) - 1) if last >= 0 else 0
        return not any(downstream[i] & self.inside.bits for i in iterate_bits(below))

    @property
    def is_admissible(self) -> bool:
        """True if every consumer outside comes, in index order, after the last exit.

        Every admissible sub-graph is convex, and every cover by disjoint admissible ones is free of cycles.
        """
        if self.is_range:
            return True
        outputs = self.output_bits
        return not outputs or first_bit(outputs) > last_bit(self.exit_bits)

    @property
    def has_border(self) -> bool:
        """True if only tensors, and no strings, sequences or optionals, cross its border."""
        return not self._barred_values()

    def _barred_values(self) -> tuple[ir.Value, ...]:
        if not self.graph.no_border_bits & self.inside.bits:
            return ()
        crossing = (*self.input_values(), *self.output_values())
        return tuple(v for v in crossing if not self.graph.may_cross(v))

    def is_valid(self, config: SubGraphConfig = ANY_VALID) -> bool:
        """Return True if a kernel can be made of it under ``config``."""
        return self.why_invalid(config) is None

    def why_invalid(self, config: SubGraphConfig = ANY_VALID) -> str | None:
        """Return the reason why no kernel can be made of it under ``config``, None if one can."""
        if not self.inside:
            return "it is empty"
        if reason := self.why_ill_formed(config):
            return reason
        if self.inside.bits & self.graph.kernel_call_bits:
            return "it contains a call of a kernel that was made earlier"
        if barred := self._barred_values():
            return f"value {barred[0].name!r} is not a plain tensor and would cross its border"
        return None

    def why_ill_formed(self, config: SubGraphConfig) -> str | None:
        """Return the reason as :meth:`why_invalid` does, from its form alone: exits, depth, taps, labels and convexity."""
        if config.max_exits and self.exit_bits.bit_count() > config.max_exits:
            return f"it has {len(self.exit)} exits, more than {config.max_exits}"
        if config.max_depth and self.depth > config.max_depth:
            return f"it is {self.depth} nodes deep, more than {config.max_depth}"
        if not config.allow_taps and (taps := self.taps):
            return f"nodes {taps} inside are read both inside and outside"
        if self.nested and (reason := _why_badly_nested(self.graph, self.inside, self.nested)):
            return reason
        if not self.is_convex:
            return "a path leaves it and comes back"
        return None

    # What can be made of it -----------------------------------------------------------------------------------------

    def disjoint_union(self, other: SubGraph) -> SubGraph:
        """The nodes and labelled parts of both. The result need not be valid.

        Raises:
            UsageError: They have a node in common.
        """
        if not self.inside.is_disjoint_from(other.inside):
            raise UsageError(f"sub-graphs {self.inside} and {other.inside} overlap in {self.inside & other.inside}")
        return SubGraph(self.graph, self.inside | other.inside, self.nested + other.nested)

    def with_label(self, label: str) -> SubGraph:
        """The same nodes, wrapped as one labelled part."""
        return SubGraph(self.graph, self.inside, (NestedSubGraph(self.inside, label, self.nested),))

    def substitute(self, graph: DataflowGraph, mapping: Mapping[int, int]) -> SubGraph:
        """The same sub-graph in another dataflow graph; ``mapping`` takes indices of this one to indices of that."""
        inside = IndexSet.from_indices(mapping[i] for i in self.inside)
        return SubGraph(graph, inside, tuple(part.substitute(mapping) for part in self.nested))


def _why_badly_nested(graph: DataflowGraph, inside: IndexSet, nested: tuple[NestedSubGraph, ...]) -> str | None:
    seen = IndexSet()
    for part in nested:
        if not part.inside.is_subset_of(inside):
            return f"labelled part {part.label!r} {part.inside} reaches outside"
        if not part.inside.is_disjoint_from(seen):
            return f"labelled part {part.label!r} {part.inside} overlaps another"
        if reason := _why_badly_nested(graph, part.inside, part.nested):
            return reason
        seen |= part.inside
    return _why_cyclic(graph, inside.bits, [part.inside.bits for part in nested])


def _why_cyclic(graph: DataflowGraph, inside: int, parts: list[int]) -> str | None:
    """Return the reason why parts cannot run one after the other, with the nodes between them; None if they can."""
    if all(map(_is_run, parts)):
        return None  # Then the order of the nodes is one in which everything can run.
    whole = sum(parts)
    left = [*parts, *(1 << i for i in iterate_bits(inside & ~whole))]
    remaining = inside
    while left:
        last = [bits for bits in left if not _consumers(graph, bits) & remaining & ~bits]
        if not last:
            return "labelled parts feed each other in a circle"
        remaining &= ~sum(last)
        left = [bits for bits in left if bits & remaining]
    return None


def _is_run(bits: int) -> bool:
    lowest = bits & -bits
    return not (bits + lowest) & bits


def _consumers(graph: DataflowGraph, bits: int) -> int:
    found = 0
    for i in iterate_bits(bits):
        found |= graph.consumer_bits[i]
    return found
