"""Plans for the lengths that a model is timed at, beside the plan for all lengths.

The model is compiled once with open lengths, and once more for each set of lengths, with these lengths fixed: then every
toolchain can take part, and values that depend on lengths are constants. A plan for a set of lengths is kept if it is faster
there beyond doubt than the plan for all lengths. Both are raced as artefacts, in processes of their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage._errors import CollageError, UsageError
from collage.compiler.refusals import OVER_TIME
from collage.frontend import describe_inputs, dimension_name, fix_lengths, read_model
from collage.measure.artefact_race import artefact_on, length_of, open_track, raced
from collage.measure.track import ComparisonPlan
from collage.options import CompileOptions, command_text
from collage.report import Ratio, SpecialisedRow
from collage.runtime import Executable, Port
from collage.system.scratch import scratch

__all__ = ["compile_specialised", "is_specialised"]

_ALL, _THESE = "all lengths", "these lengths"
_USUAL = ComparisonPlan()


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
    return bool(options.dims) or (bool(options.inputs or options.data) and _is_open(source, options))


def _is_open(source: Any, options: CompileOptions) -> bool:
    """Return True if an input of the model has a length that is neither in the model nor fixed by the options."""
    model = fix_lengths(read_model(source), options.fixed)
    return any(not isinstance(dim, int) for port in describe_inputs(model) for dim in port.shape or ())


def compile_specialised(
    compile_one: Callable[[CompileOptions, float], Executable],
    options: CompileOptions,
    source: Any,
    targets: Sequence[str],
    say: Callable[[str], None],
) -> Executable:
    """Compile a model for all lengths, and for each set of lengths that this compilation timed it at.

    The plan for all lengths has half of the user's budgets of time and kernels, if there are any. All others share the other
    half, and one search. They are left out as far as there is no time for them.

    Args:
        compile_one: Compiles the model with some options, and a share of a search.
        options: The options of the user.
        source: The model.
        targets: The targets that the user named.
        say: Called with a line for each step.
    """
    began = time.monotonic()
    general = compile_one(_part_of(options, 0.5), 1.0)
    file = Path(source) if isinstance(source, str | Path) else None
    occasions = [(_lengths(general.inputs, each.inputs), each.inputs) for each in general.report.occasions]
    sets = [(lengths, shapes) for lengths, shapes in occasions if lengths]
    share = 1.0 / max(1, len(sets))
    plain = _part_of(options, share / 2)
    kept, rows = list[Executable](), list[SpecialisedRow]()
    for lengths, shapes in sets:
        say(f"a plan for {', '.join(f'{name}={length}' for name, length in lengths.items())}")
        took_s, budget_s = time.monotonic() - began, options.time_budget_s
        if budget_s is not None and took_s + share / 2 * budget_s > OVER_TIME * budget_s:
            rows.append(SpecialisedRow(lengths, reason="the time budget left no time for it"))
            continue
        inputs = {name: value for name, value in options.inputs.items() if _has(value, shapes.get(name))}
        fixed = replace(plain, dims={}, fixed={**plain.fixed, **lengths}, inputs=inputs)
        try:
            found = compile_one(fixed, share)
            row = _raced(general, found, lengths, inputs, file, say)
        except CollageError as error:
            rows.append(SpecialisedRow(lengths, reason=" ".join(str(error).split())[:400]))
            continue
        except KeyboardInterrupt:
            say("interrupted: continuing with the plans so far")
            break
        rows.append(row)
        if row.is_kept:
            kept.append(found)
    search = replace(general.report.search, wall_s=time.monotonic() - began)
    command = command_text(options, str(general.recipe.model.get("path", "")), targets)
    general.add_plans(kept, replace(general.report, search=search, specialised=tuple(rows), command=command))
    return general


def _part_of(options: CompileOptions, share: float) -> CompileOptions:
    """Return options with a share of the user's budgets. It is the same at each time, so that results are found again."""
    seconds, kernels = options.time_budget_s, options.measure_budget
    return replace(
        options,
        time_budget_s=None if seconds is None else share * seconds,
        measure_budget=None if kernels is None else int(share * kernels),
    )


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


def _raced(
    general: Executable,
    found: Executable,
    lengths: Mapping[str, int],
    inputs: Mapping[str, Any],
    source: Path | None,
    say: Callable[[str], None],
) -> SpecialisedRow:
    """Race a plan for a set of lengths against the plan for all lengths, at these."""
    targets = tuple(dict.fromkeys(target for kernel in found.recipe.kernels for target in kernel.targets))
    with ExitStack() as stack:
        folder, workspace = stack.enter_context(scratch()), stack.enter_context(scratch())
        before, after = general.save(folder / "all.collage"), found.save(folder / "these.collage")
        track = open_track(stack, workspace, general.recipe, before, source, dict(lengths), inputs, say)
        finalists = [
            artefact_on(track, _ALL, before, general.recipe, incumbent=True),
            artefact_on(track, _THESE, after, found.recipe),
        ]
        result, _ = raced(track, finalists, length_of(_USUAL.reporting_rounds, abandon_ratio=math.inf), _THESE, say)
    theirs = next(each for each in result.standings if each.finalist.name == _THESE)
    if result.speedup is None or theirs.time is None:
        reasons = [f"{each.finalist.name}: {each.reason}" for each in result.standings if each.reason]
        return SpecialisedRow(lengths, targets, reason="; ".join(reasons) or "it could not be compared")
    ratio = Ratio(result.speedup[0], result.speedup[1].low, result.speedup[1].high)
    reason = None if ratio.low > 1.0 else "it is not faster beyond doubt"
    return SpecialisedRow(lengths, targets, theirs.time.median_s * 1e6, ratio, reason)
