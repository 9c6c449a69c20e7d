"""Cases of ONNX's backend suite side by side in one model, for toolchains that take seconds to compile anything.

Most of what a C++ compiler does for a kernel of one operator is to read headers: sixteen operators cost little more. What is
right side by side is right, as no node sees another case's values; what is not is tried again in halves, down to one case,
so that an answer is called wrong, or a case refused, only where it was tried alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import onnx
import onnx.compose

from collage.testing.onnx_suite import Case

__all__ = ["grouped", "joined"]

_REPEATED = ("node", "input", "output", "initializer", "sparse_initializer")


def joined(group: Sequence[Case]) -> onnx.ModelProto:
    """One model of all cases; inputs and outputs are theirs, one case after the other.

    Args:
        group: Cases of the same operator sets, without functions. One alone is returned as it is.
    """
    if len(group) == 1:
        return group[0].model
    model = onnx.ModelProto()
    model.CopyFrom(group[0].model)
    model.ir_version = min(case.model.ir_version for case in group)
    model.graph.Clear()
    model.graph.name = "joined"
    for i, case in enumerate(group):
        graph = onnx.compose.add_prefix(case.model, f"case{i}_").graph
        for field in _REPEATED:
            getattr(model.graph, field).extend(getattr(graph, field))
    return model


def grouped(chosen: Sequence[Case], size: int, taken: Collection[str]) -> Iterator[list[Case]]:
    """Groups of up to ``size`` cases that can be joined, and every other case alone.

    Args:
        chosen: Cases in the order in which they are to be tried.
        size: Cases in a group; 1 for every case alone.
        taken: Names of those that are likely to pass: others would only have their group tried again.
    """
    waiting: dict[tuple[tuple[str, int], ...], list[Case]] = defaultdict(list)
    for case in chosen:
        if size == 1 or not (case.name in taken and _is_joinable(case)):
            yield [case]
            continue
        sets = tuple(sorted((opset.domain, opset.version) for opset in case.model.opset_import))
        waiting[sets].append(case)
        if len(waiting[sets]) == size:
            yield waiting.pop(sets)
    yield from waiting.values()


def _is_joinable(case: Case) -> bool:
    """Whether a case is about tensors only, and one set of them."""
    if len(case.data) != 1 or case.model.functions:
        return False
    inputs, outputs = case.data[0]
    graph = case.model.graph
    given = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    tensors = all(isinstance(x, (np.ndarray, np.generic)) for x in (*inputs, *outputs))
    return tensors and len(given) == len(inputs) and len(graph.output) == len(outputs)
