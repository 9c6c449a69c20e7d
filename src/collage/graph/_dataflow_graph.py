"""The dataflow graph: nodes of one function, numbered so that no node can influence an earlier one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from collage.graph._dominators import immediate_dominators
from collage.graph._index_set import bits_of
from collage.graph._op_kind import OpKind, op_kind
from collage.graph._traversal import GraphLike, constant_tensor, is_kernel_value, post_dfs, used_values

__all__ = ["KERNEL_DOMAIN", "Cut", "DataflowGraph", "value_nbytes"]

KERNEL_DOMAIN = "collage"
"""Domain of the local functions that hold kernels."""

_OPAQUE_FUNCTION_MARKS = ("Primitive", "SkipOptimization")


@dataclass(frozen=True, slots=True)
class Cut:
    """The values that flow across a position p: from nodes before p to nodes at or after it.

    Attributes:
        position: The position p; 0 is before the first node.
        count: Number of values.
        nbytes: Their size in bytes; values of unknown size are not counted.
        is_border: True if all of them may cross a kernel's border.
    """

    position: int
    count: int
    nbytes: int
    is_border: bool


class DataflowGraph:
    """The operator nodes of one graph in post-dfs order.

    If i < j then node j cannot influence node i. Graph inputs, initializers and Constant nodes are values, not nodes;
    nodes that reach no output are left out. Values that a control-flow body captures are inputs of the node that
    holds it; graph outputs count as consumers outside. Sets of nodes are bit vectors held in integers.

    The graph must not be changed while this object is in use.

    Attributes:
        graph: The graph of the nodes: a main graph, a control-flow body or a function.
        model: The model around it, if known: source of opset imports, IR version and local functions.
        nodes: The nodes by index.
    """

    def __init__(self, model_or_graph: ir.Model | GraphLike, *, model: ir.Model | None = None) -> None:
        """Numbers the nodes of a model's main graph, or of the graph given.

        Args:
            model_or_graph: A model, a graph, a control-flow body or a function.
            model: The model around a graph that is not given as a model itself.

        Raises:
            ModelError: The graph has a cycle.
        """
        if isinstance(model_or_graph, ir.Model):
            model, model_or_graph = model_or_graph, model_or_graph.graph
        self.model: ir.Model | None = model
        self.graph: GraphLike = model_or_graph
        self.nodes: tuple[ir.Node, ...] = tuple(n for n in post_dfs(self.graph) if not _is_constant_node(n))
        self._index = {node: i for i, node in enumerate(self.nodes)}
        self._used = tuple(used_values(node) for node in self.nodes)
        self._varying = tuple(tuple(v for v in used if constant_tensor(v) is None) for used in self._used)
        self._outputs = frozenset(self.graph.outputs)
        self._producers = tuple(
            tuple(sorted({self._index[p] for v in varying if (p := v.producer()) in self._index}))
            for varying in self._varying
        )
        consumers: list[list[int]] = [[] for _ in self.nodes]
        for i, producers in enumerate(self._producers):
            for producer in producers:
                consumers[producer].append(i)
        self._consumers = tuple(map(tuple, consumers))
        self.producer_bits: tuple[int, ...] = tuple(map(bits_of, self._producers))
        self.consumer_bits: tuple[int, ...] = tuple(map(bits_of, self._consumers))
        self.external_bits: int = bits_of(
            i for i, node in enumerate(self.nodes) if not self._outputs.isdisjoint(node.outputs)
        )
        self.fed_bits: int = bits_of(
            i for i, varying in enumerate(self._varying) if any(v.producer() not in self._index for v in varying)
        )

    def __len__(self) -> int:
        return len(self.nodes)

    def node(self, index: int) -> ir.Node:
        """The node of an index."""
        return self.nodes[index]

    def index_of(self, node: ir.Node) -> int:
        """The index of a node.

        Raises:
            KeyError: The node is a constant, reaches no output, or belongs to another graph.
        """
        return self._index[node]

    def __contains__(self, node: object) -> bool:
        return node in self._index

    def used_values(self, index: int) -> tuple[ir.Value, ...]:
        """Every value that the node reads, each once, constants included; captured values come last."""
        return self._used[index]

    def inputs_of(self, index: int) -> tuple[ir.Value, ...]:
        """The values that the node reads and that vary, each once."""
        return self._varying[index]

    def producers(self, index: int) -> tuple[int, ...]:
        """Nodes that the node reads from, ascending."""
        return self._producers[index]

    def consumers(self, index: int) -> tuple[int, ...]:
        """Nodes that read from the node, ascending."""
        return self._consumers[index]

    def is_external(self, index: int) -> bool:
        """Return True if the node computes an output of the graph."""
        return bool(self.external_bits >> index & 1)

    def is_output(self, value: ir.Value) -> bool:
        """Return True if the value is an output of the graph."""
        return value in self._outputs

    def is_kernel_call(self, index: int) -> bool:
        """Return True if the node calls a function that is left alone: a kernel made earlier, or one marked so."""
        return bool(self.kernel_call_bits >> index & 1)

    @property
    def opset_imports(self) -> dict[str, int]:
        """Opset versions by domain: those of the graph, and those of the model around it."""
        outer = self.model.opset_imports if self.model is not None else {}
        return {**outer, **self.graph.opset_imports}

    def may_cross(self, value: ir.Value) -> bool:
        """Return True if a value may cross a kernel's border: tensors may; sequences, optionals, maps and strings may not."""
        return is_kernel_value(value)

    @cached_property
    def kernel_call_bits(self) -> int:
        """The nodes that call kernels made earlier."""
        functions = self.model.functions if self.model is not None else {}
        marked = {
            name for name, f in functions.items() if any(mark in f.metadata_props for mark in _OPAQUE_FUNCTION_MARKS)
        }
        return bits_of(i for i, n in enumerate(self.nodes) if n.op_identifier() in marked) if marked else 0

    @cached_property
    def kinds(self) -> tuple[OpKind, ...]:
        """The kind of every node."""
        return tuple(map(op_kind, self.nodes))

    @cached_property
    def downstream_bits(self) -> tuple[int, ...]:
        """The nodes that each node influences, without itself."""
        downstream = [0] * len(self)
        for i in reversed(range(len(self))):
            reached = self.consumer_bits[i]
            for consumer in self._consumers[i]:
                reached |= downstream[consumer]
            downstream[i] = reached
        return tuple(downstream)

    @cached_property
    def dominators(self) -> tuple[int | None, ...]:
        """The immediate dominator of every node, if any: the nearest other node on all paths from the graph's inputs."""
        parents = immediate_dominators(range(len(self)), self.producers, lambda i: bool(self.fed_bits >> i & 1))
        return tuple(parents)

    @cached_property
    def inverse_dominators(self) -> tuple[int | None, ...]:
        """The immediate post-dominator of every node, if any: the nearest other node on all paths to the graph's outputs."""
        parents = immediate_dominators(range(len(self) - 1, -1, -1), self.consumers, self.is_external)
        return tuple(parents)

    @cached_property
    def no_border_bits(self) -> int:
        """The nodes that read or write a value that must not cross a kernel's border."""
        return bits_of(
            i for i, node in enumerate(self.nodes) if not all(map(is_kernel_value, (*self._used[i], *node.outputs)))
        )

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """The values that flow across each position from 0 to ``len(self)``."""
        count = [0] * (len(self) + 1)
        nbytes = [0] * (len(self) + 1)
        no_border = [0] * (len(self) + 1)
        for value, (start, stop) in self._lifetimes().items():
            size = value_nbytes(value) or 0
            barred = not is_kernel_value(value)
            for position, sign in ((start + 1, 1), (stop + 1, -1)):
                if position <= len(self):
                    count[position] += sign
                    nbytes[position] += sign * size
                    no_border[position] += sign * barred
        cuts = []
        live = size = barred_count = 0
        for position in range(len(self) + 1):
            live += count[position]
            size += nbytes[position]
            barred_count += no_border[position]
            cuts.append(Cut(position, live, size, barred_count == 0))
        return tuple(cuts)

    def live_values(self, position: int) -> tuple[ir.Value, ...]:
        """The values that flow from nodes before ``position`` to nodes at or after it."""
        return tuple(v for v, (start, stop) in self._lifetimes().items() if start < position <= stop)

    def _lifetimes(self) -> dict[ir.Value, tuple[int, int]]:
        """The maker and the last reader of every value that a node makes and a node reads."""
        lifetimes: dict[ir.Value, tuple[int, int]] = {}
        for i, varying in enumerate(self._varying):
            for value in varying:
                producer = value.producer()
                if producer in self._index:
                    lifetimes[value] = (self._index[producer], i)
        return lifetimes


def value_nbytes(value: ir.Value, shape: Sequence[int] | None = None) -> int | None:
    """Size of a tensor value in bytes; None if type or shape is not fully known.

    Args:
        value: Whose.
        shape: The shape that it had in a run; None is the one that the model states.
    """
    if shape is None and value.shape is not None and value.shape.is_static():
        shape = value.shape.numpy()
    if shape is None or value.dtype is None or not is_kernel_value(value):
        return None
    return -(-math.prod(shape) * value.dtype.bitwidth // 8)


def _is_constant_node(node: ir.Node) -> bool:
    return len(node.outputs) == 1 and not node.inputs and constant_tensor(node.outputs[0]) is not None
