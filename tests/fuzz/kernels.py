"""Random models as kernels of one toolchain at a time, unmeasured and unchecked, against two references.

A model should compute what both references compute, else it is skipped. Collage takes it as ever: through the front door,
prepared, as one kernel if the toolchain takes every operator and the whole, or else in the largest pieces that it takes. Each
kernel is run twice. An output is wrong if it differs from the reference by ten times what Collage allows a kernel.

At other lengths, on which both references agree, a kernel may refuse, but not be wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from tests.fuzz import lengths
from tests.fuzz.draft import Sample
from tests.fuzz.references import (
    Case,
    NoCase,
    case,
    difference,
    every_value,
    one_line,
    reference,
    shapes_of,
    tolerance,
)
from tests.fuzz.session import Session
from tests.fuzz.verdicts import CAUGHT, FAILED, REFUSED, RIGHT, SKIPPED, WRONG, Verdict

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.graph import DataflowGraph
    from collage.target import Target
    from collage.toolchains import Toolchain


def fair_cases(given: Sample, sets: Iterable[Mapping[str, Any]], allowed: float) -> Iterator[Case]:
    """Yield the model on sets of inputs that are a fair question: their last digits do not decide the answer."""
    names = [value.name for value in given.model.graph.output]
    for feeds in sets:
        try:
            found = case(given.model, feeds, allowed)
            again = reference(given.model, lengths.shaken(feeds))
        except Exception:
            continue
        if difference(names, again, found.expected, allowed) is None:
            yield found


def cases_of(number: int, given: Sample, allowed: float, symbolic: bool) -> tuple[Sample, list[Case]]:
    """Return what a model is judged on: its own inputs, and with names for its lengths those at others, as far as it takes any.

    Raises:
        NoCase: It cannot be judged.
    """
    cases = [case(given.model, given.feeds, allowed)]
    if symbolic:
        given = lengths.symbolic(given, first_only=number % 2 == 0)
        cases += fair_cases(given, lengths.at_other_lengths(given), allowed)
    return given, cases


def judged(number: int, given: Sample, session: Session) -> list[Verdict]:
    """Run a model through the integration of each toolchain of the menu. Every third number is of symbolic lengths."""
    from collage.toolchains import registry

    names = dict.fromkeys(registry().parse_target(target).toolchain for target in session.targets)
    found = []
    for name in names:
        session.stage(FAILED, f"kernels of {name}")
        verdict = on_toolchain(number, given, name, symbolic=number % 3 == 0)
        # A kernel that cannot be built or run costs a compilation nothing but time.
        found.append(replace(verdict, how=CAUGHT) if verdict.how == FAILED else verdict)
    return found


def on_toolchain(number: int, given: Sample, name: str, symbolic: bool = False) -> Verdict:
    """Run a model through the integration of a toolchain."""
    allowed = tolerance(given.model)
    try:
        given, cases = cases_of(number, given, allowed, symbolic)
    except NoCase as reason:
        return Verdict(SKIPPED, str(reason), name)
    if symbolic and len(cases) == 1:
        return Verdict(SKIPPED, "it takes no other lengths", name)
    return integrated(given.model, cases, allowed, name)


def integrated(model: onnx.ModelProto, cases: Sequence[Case], allowed: float, name: str) -> Verdict:
    """Judge the model as Collage would have the toolchain run it, and what was wrong."""
    import onnx_ir as ir

    from collage.frontend import read_model
    from collage.graph import DataflowGraph
    from collage.target import Target
    from collage.toolchains import registry, support_for
    from collage.transform import prepare

    toolchain = registry().get(name)
    target = Target.parse(toolchain.targets[0])
    prepared = prepare(read_model(model))
    outputs = [str(value.name) for value in prepared.graph.outputs]
    values = []
    for each in cases:
        found = every_value(ir.to_proto(prepared), each.feeds)
        if differs := difference(outputs, [found[n] for n in outputs], each.expected, allowed):
            return Verdict(WRONG, f"the preparation, {shapes_of(each.feeds)}: {differs}", name)
        values.append({**found, **dict(zip(outputs, each.expected, strict=True))})
    graph = DataflowGraph(prepared)
    supports = [support_for(toolchain, graph.node(i), target) for i in range(len(graph))]
    reasons = [f"{graph.node(i).op_type}: {s.reason}" for i, s in enumerate(supports) if not s.ok]
    taken = 0
    with tempfile.TemporaryDirectory() as folder:
        waiting = runs_of([s.ok for s in supports])
        while waiting:
            first, last = waiting.pop()
            kernel = piece(graph, range(first, last))
            how, reason = tried(kernel, toolchain, target, Path(folder), values, allowed)
            if how == RIGHT:
                taken += last - first
            elif how == REFUSED and last - first > 1:
                middle = (first + last) // 2
                waiting += [(first, middle), (middle, last)]
            elif how != REFUSED:
                operators = " ".join(node.op_type for node in kernel.graph)
                return Verdict(how, f"[{operators}] {reason}", name, taken, len(graph), len(cases))
            reasons += [reason] if reason else []
    how = RIGHT if taken or not len(graph) else REFUSED
    return Verdict(how, "; ".join(reasons), name, taken, len(graph), len(cases))


def runs_of(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """Return where the flags are set: ranges of neighbours. As operators are in topological order, each can be a kernel."""
    ends = [i for i, (a, b) in enumerate(zip([False, *flags], [*flags, False], strict=True)) if a != b]
    return list(zip(ends[::2], ends[1::2], strict=True))


def piece(graph: DataflowGraph, inside: Iterable[int]) -> ir.Model:
    """Return operators as a kernel."""
    from collage.graph import SubGraph, extract

    inside = list(inside)
    return extract(graph, SubGraph(graph, inside), f"k{inside[0]}_{inside[-1]}")


def tried(
    kernel: ir.Model,
    toolchain: Toolchain,
    target: Target,
    folder: Path,
    cases: Sequence[Mapping[str, Any]],
    allowed: float,
) -> tuple[str, str]:
    """Return how a kernel goes, and why. On the first case it has to run."""
    from collage._errors import Unsupported
    from collage.toolchains import LoadOptions, compile_for, load_for

    inputs = [str(value.name) for value in kernel.graph.inputs]
    names = [str(value.name) for value in kernel.graph.outputs]
    if odd := [name for name in (*inputs, *names) if isinstance(cases[0][name], list)]:
        return REFUSED, f"{odd} are no tensors, and {kernel.graph.name} would be handed them"
    refused = ""
    for number, values in enumerate((cases[0], *cases)):
        feeds = [np.array(values[name]) for name in inputs]
        try:
            if not number:
                compiled = compile_for(toolchain, kernel, target, folder)
                loaded = load_for(toolchain, compiled, target, folder, LoadOptions())
            got = [np.array(y) for y in loaded(feeds)]
        except Exception as error:
            if number > 1:
                refused = refused or f"at other lengths, {[x.shape for x in feeds]}: {one_line(error)}"
                continue
            return (REFUSED, str(error)) if isinstance(error, Unsupported) else (FAILED, one_line(error))
        if differs := difference(names, got, [values[n] for n in names], allowed):
            return WRONG, f"{differs}, given {[x.shape for x in feeds]}"
    return RIGHT, refused
