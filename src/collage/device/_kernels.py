"""Facts in a kernel's function about the place where its arguments are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from collage.device._annotations import RESULT_SE_SCOPE
from collage.device._operators import has_host_result, host_operands, unread_operands
from collage.device._scope import ANYWHERE, SEScope
from collage.graph import PRIMITIVE
from collage.target import Target

__all__ = ["KernelSignature", "is_opaque", "kernel_signature", "planned_graphs"]

_OPAQUE_MARKS = (PRIMITIVE, "SkipOptimization", RESULT_SE_SCOPE)
_TARGET = "target"


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """The place where a kernel runs, and the places where it reads.

    Attributes:
        scope: The target that it is compiled for, as far as it says.
        host_operands: Arguments that only decide shapes inside, so that the host reads them.
        unread: Arguments of which only type and shape matter.
        host_results: Results that are shapes.
    """

    scope: SEScope
    host_operands: frozenset[int]
    unread: frozenset[int]
    host_results: frozenset[int]


def is_opaque(function: ir.Function) -> bool:
    """Return True if a function is one step in one place: a kernel, or a region made by ``PartitionBySEScope``."""
    return any(mark in function.metadata_props for mark in _OPAQUE_MARKS)


def planned_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Every graph in which something is planned: all but the insides of kernels."""
    yield from model.graphs()
    for function in model.functions.values():
        if not is_opaque(function):
            yield function.graph
            yield from function.graph.subgraphs()


def kernel_signature(function: ir.Function) -> KernelSignature:
    """Look inside a kernel: the scopes of its arguments and of its result."""
    metadata = function.metadata_props
    scope = ANYWHERE
    if RESULT_SE_SCOPE in metadata:
        scope = SEScope.parse(metadata[RESULT_SE_SCOPE])
    elif _TARGET in metadata:
        scope = SEScope(target=Target.parse(metadata[_TARGET]))
    on_host, unread = set(), set()
    for index, formal in enumerate(function.inputs):
        if formal in function.outputs:
            continue
        uses = [use for use in formal.uses() if use.idx not in unread_operands(use.node)]
        if not uses:
            unread.add(index)
        elif all(use.idx in host_operands(use.node) for use in uses):
            on_host.add(index)
    shapes = {i for i, v in enumerate(function.outputs) if (p := v.producer()) is not None and has_host_result(p)}
    return KernelSignature(scope, frozenset(on_host), frozenset(unread), frozenset(shapes))
