"""Graphs: the dataflow graph, sets of its nodes, sub-graphs, and operations on them.

A :class:`DataflowGraph` numbers the operators of a model. A :class:`SubGraph` is a set of them. :func:`extract` makes
a standalone model of one, :func:`structural_hash` is a digest of its computation, and :func:`partition` turns many at once
into local functions of a new model.
"""

from collage.graph._calibrated import (
    NODE_PRECISION,
    VALUE_MEANS,
    VALUE_RANGE,
    drop_precisions,
    keep_in_float,
    set_value_means,
    set_value_range,
    stays_float,
    value_means,
    value_range,
)
from collage.graph._copy import Copier, copy_model
from collage.graph._dataflow_graph import KERNEL_DOMAIN, Cut, DataflowGraph, value_nbytes
from collage.graph._extract import COMPOSITE, all_nodes, extract, needed_functions
from collage.graph._handle import tensor_handle
from collage.graph._index_set import IndexSet, bits_of, iterate_bits
from collage.graph._kernels import KernelCall, kernel_model, kernels_of, operators_of
from collage.graph._lengths import FROM_LENGTHS, follows_from_lengths, forget_lengths, note_lengths
from collage.graph._mapped_tensor import MappedTensor, load_mapped
from collage.graph._names import NameSupply
from collage.graph._op_kind import (
    OpKind,
    declared_kind,
    is_shape_operand,
    is_view,
    known_operators,
    main_op_type,
    op_kind,
    register_op_kind,
)
from collage.graph._partition import GLOBAL_SYMBOL, PRIMITIVE, KernelSpec, partition
from collage.graph._quotient import NotAcyclic
from collage.graph._structural_hash import structural_hash, weight_class
from collage.graph._sub_graph import ANY_VALID, NestedSubGraph, SubGraph, SubGraphConfig
from collage.graph._traversal import GraphLike, all_graphs, bodies, constant_tensor, stored_tensor, used_values
from collage.graph._unused import remove_unused_initializers

__all__ = [
    "ANY_VALID",
    "COMPOSITE",
    "FROM_LENGTHS",
    "GLOBAL_SYMBOL",
    "KERNEL_DOMAIN",
    "NODE_PRECISION",
    "PRIMITIVE",
    "VALUE_MEANS",
    "VALUE_RANGE",
    "Copier",
    "Cut",
    "DataflowGraph",
    "GraphLike",
    "IndexSet",
    "KernelCall",
    "KernelSpec",
    "MappedTensor",
    "NameSupply",
    "NestedSubGraph",
    "NotAcyclic",
    "OpKind",
    "SubGraph",
    "SubGraphConfig",
    "all_graphs",
    "all_nodes",
    "bits_of",
    "bodies",
    "constant_tensor",
    "copy_model",
    "declared_kind",
    "drop_precisions",
    "extract",
    "follows_from_lengths",
    "forget_lengths",
    "is_shape_operand",
    "is_view",
    "iterate_bits",
    "keep_in_float",
    "kernel_model",
    "kernels_of",
    "known_operators",
    "load_mapped",
    "main_op_type",
    "needed_functions",
    "note_lengths",
    "op_kind",
    "operators_of",
    "partition",
    "register_op_kind",
    "remove_unused_initializers",
    "set_value_means",
    "set_value_range",
    "stays_float",
    "stored_tensor",
    "structural_hash",
    "tensor_handle",
    "used_values",
    "value_means",
    "value_nbytes",
    "value_range",
    "weight_class",
]
