"""Profiles of TVM: which node each call of a compiled module computes, and how long the calls take.

The importer names the variable of a node's result after the node. Passes keep these names until operators are fused.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import ir, relax

from collage.toolchains.sdk.profiler_names import tokens_in
from collage.toolchains.tvm.weight_layout import is_call_tir

__all__ = ["Call", "Stopwatch", "fuse_operators", "noting_calls", "seconds_by_step", "with_nodes_of"]

Call = tuple[str, list[int]]
"""The name of a function, and the places of the nodes that a call of it computes."""

_NODES = "nodes"
_DEFAULT_ACTION = 0


def fuse_operators() -> Any:
    """Return TVM's pass ``FuseOps``, which also writes on each call in ``main`` which nodes it computes."""

    def fuse(module: Any, _: Any) -> Any:
        fused = relax.transform.FuseOps()(module)
        # Marks make equal functions differ, so they are made on a copy, whose calls have the same order.
        marked = relax.transform.FuseOps()(_marked(module, _origins(module)))
        return _marked(fused, [_marks_of(call, marked) for call in _calls(marked["main"])])

    return tvm.transform.module_pass(fuse, opt_level=0, name="fuse_operators")


def noting_calls(calls: list[Call]) -> Any:
    """A pass that changes nothing, and finds the calls of loops in the order in which they run.

    Args:
        calls: Becomes the calls.
    """

    def note(module: Any, _: Any) -> Any:
        found = [call for call in _calls(module["main"]) if is_call_tir(call)]
        calls[:] = [(str(call.args[0].name_hint), _marks_of(call, module)) for call in found]
        return module

    return tvm.transform.module_pass(note, opt_level=0, name="noting_calls")


class Stopwatch:
    """Times the calls of a virtual machine, as its instrument."""

    def __init__(self) -> None:
        self.runs: list[list[tuple[str, float]]] = []
        self._begun: list[float] = []

    def __call__(self, _: Any, name: str, before: bool, *arguments: Any) -> int:
        """Note when a function begins or ends."""
        if before:
            self._begun.append(time.perf_counter())
        else:
            seconds = time.perf_counter() - self._begun.pop()
            self.runs[-1].append((name, seconds))
        return _DEFAULT_ACTION


def seconds_by_step(
    runs: Sequence[Sequence[tuple[str, float]]], calls: Sequence[tuple[str, Sequence[int]]]
) -> Mapping[tuple[int, ...], float]:
    """Seconds by step, the median of runs.

    Args:
        runs: Functions of each run with their seconds, in the order in which they ended.
        calls: Functions with the nodes that their calls compute. Runs that branch leave some out.

    Returns:
        Seconds by step, see ``Profiler``. Empty if others were called, or in another order.
    """
    functions = {function for function, _ in calls}
    samples: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for run in runs:
        total: dict[tuple[int, ...], float] = defaultdict(float)
        expected = iter(calls)
        for name, seconds in run:
            if name in functions:
                step = next((nodes for function, nodes in expected if function == name), None)
                if step is None:
                    return {}
                total[tuple(step)] += seconds
        for nodes, seconds in total.items():
            samples[nodes].append(seconds)
    return {nodes: statistics.median(seconds) for nodes, seconds in samples.items()}


def _origins(module: Any) -> list[list[int]]:
    """The node of each call in ``main``: its variable has its name, or that of a later call of the same node has it.

    What is computed after the last name counts as that node.
    """
    bindings = [*_bindings(module["main"].body)][::-1]
    named = [[*tokens_in(str(binding.var.name))] for binding in bindings]
    nodes = next(filter(None, named), [])
    origins = []
    for binding, own in zip(bindings, named, strict=True):
        nodes = own or nodes
        if isinstance(binding.value, relax.Call):
            origins.append(nodes)
    return origins[::-1]


def with_nodes_of(calls: Sequence[Any]) -> Any:
    """Return the attributes of a call of loops that computes what several calls did."""
    nodes = sorted({node for call in calls for node in _marks_of(call, None)})
    return ir.make_node("ir.DictAttrs", **{_NODES: nodes})


def _marks_of(call: Any, module: Any) -> list[int]:
    """The nodes that are written on a call, or on the calls of the function that it calls."""
    if isinstance(call.op, ir.GlobalVar):
        return sorted({node for inner in _calls(module[call.op]) for node in _marks_of(inner, module)})
    marks = call.attrs.get(_NODES) if isinstance(call.attrs, ir.DictAttrs) else None
    return [int(node) for node in marks or ()]


def _marked(module: Any, marks: Sequence[Sequence[int]]) -> Any:
    """A module with nodes written on the calls in ``main``, in their order."""
    marker = _Marker(module, marks)
    marker.builder_.update_func(module.get_global_var("main"), marker.visit_expr(module["main"]))
    return marker.builder_.get()


@relax.expr_functor.mutator
class _Marker(relax.PyExprMutator):  # type: ignore[misc]
    """Writes on each call that is fused, or that fusion made, which nodes it computes."""

    def __init__(self, module: Any, marks: Sequence[Sequence[int]]) -> None:
        super().__init__(module)
        self._marks = iter(marks)

    def visit_call_(self, call: Any) -> Any:
        """Mark one call."""
        marks = next(self._marks, [])
        call = self.visit_expr_post_order(call)
        if not (is_call_tir(call) or isinstance(call.op, ir.GlobalVar)):
            return call
        return relax.Call(call.op, call.args, ir.make_node("ir.DictAttrs", **{_NODES: [*marks]}), call.ty_args)


def _bindings(body: Any) -> Iterator[Any]:
    """The bindings of a sequence, those of branches before the binding of the result."""
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                yield from _bindings(binding.value.true_branch)
                yield from _bindings(binding.value.false_branch)
            yield binding


def _calls(function: Any) -> Iterator[Any]:
    return (binding.value for binding in _bindings(function.body) if isinstance(binding.value, relax.Call))
