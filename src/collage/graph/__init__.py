"""Graphs: the dataflow graph, sets of its nodes, sub-graphs, and what can be made of them.

A :class:`DataflowGraph` numbers the operators of a model. A :class:`SubGraph` is a set of them. :func:`extract` makes
a standalone model of one, :func:`structural_hash` names what it computes, and :func:`partition` turns many at once
into local functions of a new model.
"""

from collage.graph._dataflow_graph import KERNEL_DOMAIN, Cut, DataflowGraph, value_nbytes
from collage.graph._extract import COMPOSITE, extract
from collage.graph._index_set import IndexSet, bits_of, first_bit, iterate_bits, last_bit
from collage.graph._names import NameSupply
from collage.graph._op_kind import OpKind, is_view, known_operators, op_kind, register_op_kind
from collage.graph._sub_graph import NestedSubGraph, SubGraph, SubGraphConfig
from collage.graph._traversal import GraphLike, bodies, constant_tensor, used_values

__all__ = [
    "COMPOSITE",
    "KERNEL_DOMAIN",
    "Cut",
    "DataflowGraph",
    "GraphLike",
    "IndexSet",
    "NameSupply",
    "NestedSubGraph",
    "OpKind",
    "SubGraph",
    "SubGraphConfig",
    "bits_of",
    "bodies",
    "constant_tensor",
    "extract",
    "first_bit",
    "is_view",
    "iterate_bits",
    "known_operators",
    "last_bit",
    "op_kind",
    "register_op_kind",
    "used_values",
    "value_nbytes",
]
