"""Plans for the lengths that a model is timed at, beside the plan for all lengths.

The model is compiled once with open lengths, and once more for each set of lengths, with these lengths fixed: then every
toolchain can take part, and values that depend on lengths are constants. A plan for a set of lengths is kept if it is faster
there beyond doubt than the plan for all lengths, which is the baseline of its final comparison.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from collage._errors import CollageError, UsageError
from collage.compiler.problem import Part, Rival
from collage.compiler.refusals import OVER_TIME
from collage.frontend import describe_inputs, dimension_name, fix_lengths, read_model
from collage.options import CompileOptions
from collage.plan_file import PlanFile, PlanFileKernel
from collage.report import SpecialisedRow
from collage.runtime import Executable, Port
from collage.runtime._decoder import token_symbol
from collage.system.scratch import scratch
from collage.target import Target

__all__ = ["add_plan", "compile_specialised", "is_specialised"]

T = TypeVar("T")


def is_specialised(options: CompileOptions, source: Any) -> bool:
    """Return True if a model is compiled for sets of lengths, too: the user names lengths, or asks for it.

    Args:
        options: The options of the user.
        source: The model, see ``collage.frontend.read_model``.

    Raises:
        UsageError: The user asks for several plans, and for something that makes sense for one only. Names that option.
        ModelError: The source is not a valid model.
    """
    if options.specialise is False:
        return False
    of_one_plan = {"plan": options.plan, "plan_out": options.plan_out, "devices": options.devices}
    named = next((name for name, value in of_one_plan.items() if value is not None), None)
    is_timed = options.finals and options.objective == "latency"
    if options.specialise:
        if named is not None:
            raise UsageError(f"specialise makes several plans, and {named} is about one")
        if not is_timed:
            raise UsageError(
                "specialise keeps plans that are faster end to end: it needs finals, and the objective latency"
            )
        return True
    if named is not None or not is_timed:
        return False
    return bool(options.dims) or (bool(options.inputs or options.data) and _follows(source, options))


def _follows(source: Any, options: CompileOptions) -> bool:
    """Return True if an input has a length that is neither in the model nor fixed, and follows from inputs or samples.

    Texts say nothing about the steps of a decoder.
    """
    model = fix_lengths(read_model(source), options.fixed)
    if not options.inputs and token_symbol(model) is not None:
        return False
    return any(not isinstance(dim, int) for port in describe_inputs(model) for dim in port.shape or ())


def compile_specialised(
    compile_one: Callable[[CompileOptions, Part], Executable], options: CompileOptions, say: Callable[[str], None]
) -> Executable:
    """Compile a model for all lengths, and for each set of lengths that this compilation timed it at.

    The plan for all lengths has half of the user's budgets of time and kernels, if there are any. All others share the other
    half, and are left out as far as there is no time for them. They share one search, too: that of the largest inputs. A border
    between kernels costs as much at any length, so a mix that gains nothing there hardly gains at others.

    Args:
        compile_one: Compiles the model with some options, as a part of this compilation.
        options: The options of the user.
        say: Called with a line for each step.
    """
    began = time.monotonic()
    general = compile_one(options, Part(0.5))
    occasions = [(_lengths(general.inputs, each.inputs), each.inputs) for each in general.report.occasions]
    sets = [(lengths, shapes) for lengths, shapes in occasions if lengths]
    kept, rows = dict[int, Executable](), dict[int, SpecialisedRow]()
    with scratch() as folder:
        # Each has the same budget at each time, so that the same command finds what an earlier one has found.
        share = 1.0 / (len(sets) + 1)
        part = Part(share, rival=_rival(general, folder) if sets else None, refused=_refused(general))
        largest_first = sorted(range(len(sets)), key=lambda number: _elements(sets[number][1]), reverse=True)
        for number in largest_first if not _is_interrupted(general) else ():
            lengths, shapes = sets[number]
            say(f"a plan for {', '.join(f'{name}={length}' for name, length in lengths.items())}")
            took_s, budget_s = time.monotonic() - began, options.time_budget_s
            if budget_s is not None and took_s + part.budget * budget_s > OVER_TIME * budget_s:
                rows[number] = SpecialisedRow(lengths, reason="the time budget left no time for it")
                continue
            inputs = {name: value for name, value in options.inputs.items() if _has(value, shapes.get(name))}
            present, part = part, replace(part, budget=share / 2, search=share)
            try:
                rows[number], found = _compiled_for(compile_one, replace(options, inputs=inputs), lengths, present)
            except KeyboardInterrupt:
                say("interrupted: continuing with the plans so far")
                break
            if found is None:
                continue
            if rows[number].is_kept:
                kept[number] = found
            if _is_interrupted(found):
                break
            part = replace(part, plan=part.plan or _plan_of(found))
    search = replace(general.report.search, wall_s=time.monotonic() - began)
    report = replace(general.report, search=search, specialised=_by_number(rows))
    general.add_plans(_by_number(kept), report)
    return general


def add_plan(
    compile_one: Callable[[CompileOptions, Part], Executable],
    executable: Executable,
    shapes: Mapping[str, Sequence[int]],
    options: CompileOptions,
) -> SpecialisedRow:
    """Add a plan for one more set of lengths to an executable, if it is faster than the executable there beyond doubt.

    Args:
        compile_one: Compiles the model of the executable with some options, as a part of its compilation.
        executable: The executable, whose report gets a row.
        shapes: The shapes of inputs with these lengths.
        options: The options of the user, whose inputs have these shapes, if there are any.

    Returns:
        The row.
    """
    lengths = _lengths(executable.inputs, shapes)
    with scratch() as folder:
        row, found = _compiled_for(compile_one, options, lengths, Part(rival=_rival(executable, folder)))
    report = replace(executable.report, specialised=(*executable.report.specialised, row))
    kept = [] if found is None or not row.is_kept else [found]
    for plan in kept:
        plan.recipe = replace(plan.recipe, model=executable.recipe.model)
    executable.add_plans(kept, report)
    return row


def _compiled_for(
    compile_one: Callable[[CompileOptions, Part], Executable],
    options: CompileOptions,
    lengths: Mapping[str, int],
    part: Part,
) -> tuple[SpecialisedRow, Executable | None]:
    """Return the row of a set of lengths, and what was compiled for it; None if that failed."""
    try:
        found = compile_one(replace(options, dims={}, fixed={**options.fixed, **lengths}), part)
    except CollageError as error:
        return SpecialisedRow(lengths, reason=" ".join(str(error).split())[:400]), None
    return _row(lengths, found), found


def _by_number(found: Mapping[int, T]) -> tuple[T, ...]:
    """Return values in the order of the sets of lengths that they belong to."""
    return tuple(found[number] for number in sorted(found))


def _elements(shapes: Mapping[str, Sequence[int]]) -> int:
    """Return the number of elements of all inputs."""
    return sum(math.prod(shape) for shape in shapes.values())


def _plan_of(executable: Executable) -> PlanFile | None:
    """Return the plan of an executable; None if operators with bodies are in it, whose plans its report has in short only."""
    rows = executable.report.kernels
    if any(row.bodies for row in rows):
        return None
    return PlanFile(tuple(PlanFileKernel(row.target, row.nodes, rule=row.rule) for row in rows))


def _refused(executable: Executable) -> frozenset[str]:
    """Return the targets that were refused where plans were judged, but for those with whose precision a kernel computes."""

    def kind(target: Target) -> tuple[str, str | None]:
        return target.toolchain, target.option("precision")

    used = {kind(Target.parse(target)) for kernel in executable.recipe.kernels for target in kernel.targets}
    missed = executable.report.precision.get("refused", {})
    return frozenset(target for target in missed if kind(Target.parse(target)) not in used)


def _is_interrupted(executable: Executable) -> bool:
    """Return True if the user ended the search or the comparison of this plan."""
    return executable.report.search.stopped_by == "should_stop"


def _rival(executable: Executable, folder: Path) -> Rival:
    """Return an executable as a plan to beat, saved in a folder."""
    kernels = [[kernel.target, kernel.inputs, kernel.outputs] for kernel in executable.recipe.kernels]
    digest = hashlib.sha256(json.dumps([executable.recipe.threads, kernels]).encode()).hexdigest()
    return Rival(executable.save(folder / "rival.collage"), digest)


def _row(lengths: Mapping[str, int], found: Executable) -> SpecialisedRow:
    """Return the row of a plan for a set of lengths, which was compared with the plan for all lengths."""
    targets = tuple(dict.fromkeys(target for kernel in found.recipe.kernels for target in kernel.targets))
    gain, returned = found.report.gain("baseline"), found.report.returned
    if gain is None or returned is None:
        return SpecialisedRow(lengths, targets, reason="it could not be compared with the plan for all lengths")
    reason = None if gain.ratio.low > 1.0 else "it is not faster beyond doubt"
    return SpecialisedRow(lengths, targets, returned.time_us, gain.ratio, reason)


def _lengths(inputs: tuple[Port, ...], shapes: Mapping[str, Any]) -> dict[str, int]:
    """Return the lengths of open dimensions, by the names that fix them. Those that follow from others are left out."""
    found: dict[str, int] = {}
    for port in inputs:
        for axis, (dim, length) in enumerate(zip(port.shape or (), shapes.get(port.name, ()), strict=False)):
            if (name := dimension_name(port.name, axis, dim)) is not None:
                found[name] = length
    return found


def _has(value: Any, shape: Any) -> bool:
    """Return True if a given input has the shape of a set of lengths."""
    return shape is not None and tuple(getattr(value, "shape", ())) == tuple(shape)
