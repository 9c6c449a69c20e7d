"""Smaller models that fail as a model does: outputs and operators are dropped while it fails."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.printer

from tests.fuzz.draft import Sample, names_read, typed
from tests.fuzz.references import values_of


def shrunk(given: Sample, is_as_bad: Callable[[Sample], bool], until: float) -> Sample:
    """Return the smallest model found that is as bad.

    Args:
        given: A model that is bad.
        is_as_bad: Tells if a model is.
        until: When to stop, by ``time.monotonic``.
    """
    if given.steps:
        return with_fewer_steps(given, is_as_bad, until)
    smaller = True
    while smaller:
        smaller = False
        outputs = [value.name for value in given.model.graph.output]
        makes = [functools.partial(with_output, given, output) for output in outputs if len(outputs) > 1]
        makes += [functools.partial(without, given, [node.name]) for node in given.model.graph.node]
        for make in makes:
            if time.monotonic() > until:
                return given
            try:
                candidate = make()
            except Exception:
                continue  # The reference implementation does not take it.
            if candidate is not None and is_as_bad(candidate):
                given, smaller = candidate, True
                break
    return given


def with_fewer_steps(given: Sample, is_as_bad: Callable[[Sample], bool], until: float) -> Sample:
    """Return the model with the shortest list of steps found that is as bad: halves are left out first, and single steps last."""
    size = (len(given.steps) + 1) // 2
    while size:
        start = 0
        while start < len(given.steps):
            if time.monotonic() > until:
                return given
            candidate = replace(given, steps=(*given.steps[:start], *given.steps[start + size :]))
            if is_as_bad(candidate):
                given = candidate
            else:
                start += size
        size //= 2
    return given


def without(given: Sample, dropped: Sequence[str]) -> Sample | None:
    """Return the model without some operators: what others read of them becomes inputs, and what only they read becomes outputs.

    None where that is no tensor.
    """
    model = onnx.ModelProto()
    model.CopyFrom(given.model)
    values = values_of(given)
    gone = [node for node in model.graph.node if node.name in dropped]
    for node in gone:
        model.graph.node.remove(node)
    read = set(names_read(model.graph.node))
    kept = {name for node in model.graph.node for name in node.output} - {value.name for value in model.graph.output}
    left = {name for node in gone for name in node.input if name in kept and name not in read}
    lost = {name for node in gone for name in node.output if name in read}
    if not left | lost <= values.keys():
        return None
    model.graph.output.extend(typed(name, values[name], fixed=True) for name in sorted(left))
    return pruned(model, values, {name for node in gone for name in node.output})


def with_output(given: Sample, name: str) -> Sample | None:
    """Return the model with one of its outputs only."""
    model = onnx.ModelProto()
    model.CopyFrom(given.model)
    for value in list(model.graph.output):
        if value.name != name:
            model.graph.output.remove(value)
    return pruned(model, values_of(given), set())


def pruned(model: onnx.ModelProto, values: Mapping[str, Any], gone: set[str]) -> Sample | None:
    """Return a model without what nothing reads, and with inputs for what is gone."""
    import onnx_ir as ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    for value in list(model.graph.output):
        if value.name in gone:
            model.graph.output.remove(value)
    model.graph.input.extend(typed(name, values[name], fixed=True) for name in sorted(gone & values.keys()))
    if not model.graph.output or not model.graph.node:
        return None
    model = ir.to_proto(RemoveUnusedNodesPass()(ir.from_proto(model)).model)
    read = {
        n for node in ir.from_proto(model).graph.all_nodes() for v in node.inputs if v is not None and (n := v.name)
    }
    for value in list(model.graph.input):
        if value.name not in read:
            model.graph.input.remove(value)
    return Sample(model, {value.name: values[value.name] for value in model.graph.input})


def text_of(given: Sample) -> str:
    """Return the model and its inputs, to read."""
    lines = [onnx.printer.to_text(given.model)]
    lines += [f"{name} = {np.array2string(np.asarray(x), threshold=60)}" for name, x in given.feeds.items()]
    return "\n".join(lines)
