"""Choosing by another objective than the latency, or within limits.

Every right plan that the search built is measured as it will be used: in a fresh process, with its number of concurrent
streams. Plans that exceed a limit are left out. Of the rest, the objective chooses:

* **latency**: the final comparison, as ever, among those that keep the limits.
* **throughput**: a comparison in turns in which all streams are busy. Each plan takes part with several numbers of streams.
* **memory** and **size**: the least figure. The final comparison then only tells how fast that is.

The chosen plan is measured once more, in new processes, and those figures are reported. If they miss a limit, it is
left out too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collage._errors import LimitNotMet, ToolchainError
from collage.compiler.final_comparison import (
    FinalComparison,
    baseline_of,
    built_plans,
    choose,
    compared,
    finalist_of,
    interrupted,
)
from collage.compiler.lab import Lab
from collage.compiler.plans import predicted_s
from collage.compiler.problem import Problem
from collage.compiler.survey import Survey
from collage.cost.objective import QUANTITIES, Figures, Limit, amount
from collage.cost.outcome import failed
from collage.measure.figures import (
    CONCURRENT,
    ORIGINAL_AT_ONCE,
    VENDOR_AT_ONCE,
    artefact_bytes,
    executable_arguments,
    measure_figures,
    measure_original,
    serving,
)
from collage.measure.finalist import THROUGHPUT, Finalist, FinalistResult
from collage.measure.race import race
from collage.measure.session import MeasureSession
from collage.measure.track import why_wrong
from collage.options import CompileOptions
from collage.plan import Plan
from collage.runtime import Executable, Recipe
from collage.status import Status
from collage.system.machine import this_machine, thread_count

__all__ = ["choose_finals", "stream_counts", "with_final_size"]

_OWN_QUANTITY = {"throughput": "throughput", "memory": "rss", "size": "size"}
_LATENCIES = ("p50", "p90", "p95", "p99", "throughput")
_SERVED_S = 0.12
"""Seconds of a turn in which all streams are busy: many runs begin and end in it."""
_ALIKE = {"memory": 1.02, "size": 1.0}
"""Figures within this ratio of the least are alike, and the plan that comes first, the faster one, is taken."""
_MOST_RACED = 6
"""Variants that are compared in turns: each has a process that holds the weights once or more often."""
_LOOK_S = 0.4
_ROUNDS = 5
"""Most rounds of writing the artefact's size into its own report, since more digits make it longer."""
_NEAR = 20.0
"""Plans so many times slower than the fastest are not raced where the race only tells how fast the returned one is."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """A plan with its numbers of streams and threads, ready to be measured."""

    plan: Plan
    recipe: Recipe
    check: FinalistResult
    figures: Figures = field(default_factory=Figures)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def title(self) -> str:
        """Name of the plan, for people."""
        streams = self.recipe.streams
        name = self.plan.name.rpartition(",")[0] if streams else self.plan.name
        name = name if self.plan.single is None else self.plan.single.short
        return f"{name}, {streams} x {self.threads}" if streams else name

    @property
    def threads(self) -> int:
        """Threads of one stream, as it is told; 0 is the toolchains' default."""
        return self.recipe.threads or (_cores() // self.recipe.streams if self.recipe.streams else 0)

    def missed(self, limits: Iterable[Limit]) -> list[Limit]:
        return [limit for limit in limits if not limit.is_kept(self.figures)]


def choose_finals(lab: Lab, plans: Sequence[Plan], *, told: bool = True) -> FinalComparison:
    """Compare plans by the objective of the options, and return the winner.

    Args:
        lab: Builds plans, and has the inputs.
        plans: All plans.
        told: True if the original model on ONNX Runtime takes part.

    Raises:
        LimitNotMet: Some plan is right, and none keeps all limits.
        KeyboardInterrupt: The user ended the comparison, and there are limits.
    """
    options = lab.survey.problem.options
    baseline = baseline_of(lab.survey, lab.session) if told else None
    if options.is_plain:
        return choose(lab, plans, baseline=baseline)
    try:
        return _by_figures(lab, plans, baseline)
    except KeyboardInterrupt:
        if options.bounds:  # No plan is known to keep them.
            raise
        return interrupted(lab, plans)


def _by_figures(lab: Lab, plans: Sequence[Plan], baseline: Finalist | None) -> FinalComparison:
    """Return the comparison by another objective than the latency, or within limits."""
    survey, session, costs = lab.survey, lab.session, lab.costs
    problem, options = survey.problem, survey.problem.options
    limits = options.bounds
    # The most promising come first, since the last are left out if time is short.
    plans = sorted(plans, key=lambda plan: predicted_s(problem, costs, plan) or math.inf)
    recipes, failures = built_plans(problem, session, plans, costs.why_wrong)
    variants: list[_Variant] = []
    for plan in plans:
        if plan.name not in recipes or (variants and problem.comparison_plan.left_s <= 0):
            continue
        check = _checked(problem, session, plan, recipes[plan.name])
        if check.status is Status.OK:
            variants += _variants(problem, plan, recipes[plan.name], check)
        else:
            failures[plan.name] = check
    wanted = {limit.quantity for limit in limits} | _own(options.objective) - {"throughput"}
    measured = [_measured(problem, session, variant, wanted) for variant in variants]
    failures |= {each.finalist.name: each for each in measured if isinstance(each, FinalistResult)}
    open_ = [each for each in measured if isinstance(each, _Variant)]
    if not open_:
        return FinalComparison.failed(plans, failures)
    known = {variant.name: variant for variant in open_}
    while fit := [variant for variant in open_ if not variant.missed(limits)]:
        finals = _chosen(survey, session, fit, baseline)
        if finals.plan is None or finals.plan.name not in known:
            return finals
        winner = known[finals.plan.name]
        again = _measured(problem, session, winner, _confirming(options.objective, wanted))
        if isinstance(again, FinalistResult):
            failures[winner.name] = again
            open_ = [variant for variant in open_ if variant.name != winner.name]
            continue
        known[winner.name] = again = replace(again, figures=_worst(winner.figures, again.figures))
        open_ = [again if variant.name == winner.name else variant for variant in open_]
        if not again.missed(limits):
            failed_plans = [p for p in (*plans, *(v.plan for v in variants)) if p.name in failures]
            finals = replace(finals, plans=[*(v.plan for v in known.values() if v.name not in failures), *failed_plans])
            return _told(survey, session, finals, again, list(known.values()), failures, wanted)
        session.say(f"{winner.name} exceeds a limit when it is measured again")
    if not open_:
        return FinalComparison.failed(plans, failures)
    raise LimitNotMet(_nearest(open_, limits))


def _own(objective: str) -> set[str]:
    return {_OWN_QUANTITY[objective]} if objective in _OWN_QUANTITY else set()


def _confirming(objective: str, wanted: Collection[str]) -> set[str]:
    """Return the quantities to measure of the chosen plan. A throughput adds the latencies under that load."""
    return {*wanted, *(_LATENCIES if objective == "throughput" else ())}


def _checked(problem: Problem, session: MeasureSession, plan: Plan, recipe: Recipe) -> FinalistResult:
    session.say(f"checking {plan.name}")
    finalist = finalist_of(problem, session, plan, recipe)
    reason = why_wrong(finalist, problem.tolerance)
    return FinalistResult(finalist, Status.OK if reason is None else Status.WRONG, reason=reason)


def _variants(problem: Problem, plan: Plan, recipe: Recipe, check: FinalistResult) -> list[_Variant]:
    if problem.options.objective != "throughput":
        return [_Variant(plan, recipe, check)]
    own = [int(kernel.target.option("threads") or 0) for kernel in plan.kernels]
    counts = stream_counts(_cores(), problem.options.threads or (max(own) if own and all(own) else 0))
    if problem.placement is not None or plan.branches > 1:
        return [_Variant(plan, recipe, check)]
    return [
        _Variant(
            replace(plan, name=f"{plan.name}, {streams} x {threads}"),
            # One stream with all cores is the toolchain's own default.
            replace(recipe, streams=streams, threads=problem.options.threads if streams == 1 else threads),
            check,
        )
        for streams, threads in counts
    ]


def _cores() -> int:
    return thread_count() or this_machine().physical_cores


def stream_counts(cores: int, threads: int = 0) -> list[tuple[int, int]]:
    """Return numbers of streams, each with the number of threads of a stream, that use all cores and no more.

    Args:
        cores: Number of cores.
        threads: Threads of each stream, if they are fixed; 0 leaves them open.
    """
    if threads:
        return [(max(1, cores // threads), threads)]
    return [(streams, cores // streams) for streams in range(1, cores + 1) if cores % streams == 0]


def _measured(
    problem: Problem, session: MeasureSession, variant: _Variant, quantities: Collection[str]
) -> _Variant | FinalistResult:
    """Return a variant with the requested figures, or with the reason of its failure."""
    if not quantities:
        return variant
    session.say(f"measuring {variant.name}: {', '.join(sorted(quantities))}")
    try:
        figures = measure_figures(variant.recipe, quantities, session, problem.toolchains)
    except ToolchainError as error:
        outcome = failed(error, 0.0)
        return FinalistResult(replace(variant.check.finalist, name=variant.name), outcome.status, reason=outcome.reason)
    return replace(variant, figures=figures)


def _chosen(
    survey: Survey, session: MeasureSession, fit: Sequence[_Variant], baseline: Finalist | None
) -> FinalComparison:
    """Return the comparison among variants that keep the limits."""
    problem = survey.problem
    plans, recipes = [variant.plan for variant in fit], {variant.name: variant.recipe for variant in fit}
    objective, plan = problem.options.objective, problem.comparison_plan
    if objective == "latency":
        entries = [finalist_of(problem, session, each.plan, each.recipe) for each in fit]
        return compared(problem, session, plans, recipes, entries, baseline)
    if objective == "throughput":
        raced, slow = _promising(problem, session, fit)
        entries = [_at_once(problem, session, variant) for variant in raced]
        baseline = _baseline_at_once(baseline)
        longer = replace(plan, block_s=max(plan.block_s, _SERVED_S))
        finals = compared(problem, session, plans, recipes, entries, baseline, plan=longer, figure=THROUGHPUT)
        return replace(finals, standings={**slow, **finals.standings})
    least = min(_figure(variant, objective) for variant in fit)
    alike = [variant for variant in fit if _figure(variant, objective) <= _ALIKE[objective] * least]
    winner = alike[0] if len(alike) == 1 else _fastest(problem, session, alike)
    entries = [finalist_of(problem, session, each.plan, each.recipe) for each in fit]
    shared = replace(plan, abandon_ratio=_NEAR)
    finals = compared(problem, session, plans, recipes, entries, baseline, plan=shared, winner=winner.name)
    if finals.plan is not None and finals.plan.name == winner.name:
        return finals
    alone = [entry for entry in entries if entry.name == winner.name]
    return compared(problem, session, plans, recipes, alone, baseline, plan=shared, winner=winner.name)


def _figure(variant: _Variant, objective: str) -> float:
    found = variant.figures.of(_OWN_QUANTITY[objective])
    return math.inf if found is None else found


def _fastest(problem: Problem, session: MeasureSession, variants: Sequence[_Variant]) -> _Variant:
    """Return the variant that the final comparison chooses; the first one if none finishes."""
    entries = [finalist_of(problem, session, each.plan, each.recipe) for each in variants]
    found = race(entries, problem.tolerance, problem.comparison_plan, session.say).winner
    name = variants[0].name if found is None else found.finalist.name
    return next(variant for variant in variants if variant.name == name)


def _promising(
    problem: Problem, session: MeasureSession, fit: Sequence[_Variant]
) -> tuple[Sequence[_Variant], dict[str, FinalistResult]]:
    """Return the variants that a short look does not rule out, and how the others did in it."""
    if len(fit) <= _MOST_RACED:
        return fit, {}
    rates: dict[str, float] = {}
    others: dict[str, FinalistResult] = {}
    for variant in fit:
        session.say(f"trying {variant.name}")
        entry = _at_once(problem, session, variant)
        try:
            rate = float(serving(CONCURRENT, entry.arguments, _LOOK_S)["runs_per_s"])
        except ToolchainError as error:
            outcome = failed(error, 0.0)
            others[variant.name] = FinalistResult(entry, outcome.status, reason=outcome.reason)
            continue
        rates[variant.name] = rate
        others[variant.name] = FinalistResult(entry, Status.OK, lost=True)
    ordered = sorted((v for v in fit if v.name in rates), key=lambda variant: rates[variant.name], reverse=True)
    raced = ordered[:_MOST_RACED]
    single = next((variant for variant in ordered if variant.plan.single is not None), None)
    if single is not None and single not in raced:
        raced = [*raced[:-1], single]
    names = {variant.name for variant in raced}
    return raced, {name: result for name, result in others.items() if name not in names}


def _at_once(problem: Problem, session: MeasureSession, variant: _Variant) -> Finalist:
    entry = finalist_of(problem, session, variant.plan, None)
    arguments = executable_arguments(variant.recipe, session, problem.toolchains)
    return replace(entry, service=CONCURRENT, arguments=arguments)


def _baseline_at_once(baseline: Finalist | None) -> Finalist | None:
    """Return the baseline under load: the original file called by one or all, or a named target by one caller."""
    if baseline is None:
        return None
    is_file = "path" in baseline.arguments
    arguments = {**baseline.arguments, "concurrency": _cores() if is_file else 1}
    return replace(baseline, service=ORIGINAL_AT_ONCE if is_file else VENDOR_AT_ONCE, arguments=arguments)


def _worst(one: Figures, other: Figures) -> Figures:
    """Return the figures of two measurements that speak against a plan most; of a quantity measured once, that one."""
    worst: dict[str, float] = {}
    for quantity, name in QUANTITIES.items():
        known = [each for figures in (one, other) if (each := figures.of(quantity)) is not None]
        if known:
            worst[name] = min(known) if quantity == "throughput" else max(known)
    return Figures(**worst)


def _told(
    survey: Survey,
    session: MeasureSession,
    finals: FinalComparison,
    winner: _Variant,
    variants: Sequence[_Variant],
    failures: Mapping[str, FinalistResult],
    wanted: Collection[str],
) -> FinalComparison:
    """Return the comparison with all plans in it, and with the section of the report on the objective."""
    options = survey.problem.options
    limits, recipe = options.bounds, winner.recipe
    standings = {**failures, **finals.standings}
    for variant in variants:
        if missed := variant.missed(limits):
            reason = " and ".join(_why_missed(variant, limit) for limit in missed)
            finalist = replace(variant.check.finalist, name=variant.name)
            standings[variant.name] = FinalistResult(finalist, Status.OK, reason=reason)
    section: dict[str, Any] = {
        "name": options.objective,
        "limits": [limit.text for limit in limits],
        "returned": winner.figures.as_json(),
        "rows": [
            {
                "name": variant.name,
                "title": variant.title,
                "kind": "mix" if variant.plan.single is None else "single",
                "streams": variant.recipe.streams,
                "threads": variant.threads,
                **variant.figures.as_json(),
                "missed": [limit.text for limit in variant.missed(limits)],
            }
            for variant in variants
        ],
    }
    if recipe.streams:
        section |= {"streams": recipe.streams, "threads": winner.threads}
    original = survey.reference.original
    if original is not None and original.failure is None and options.baseline == "onnxruntime":
        try:
            figures = measure_original(original.path, wanted, session, options.threads)
        except ToolchainError:
            figures = Figures()
        section["baseline"] = figures.as_json()
    return replace(finals, standings=standings, objective=section)


def with_final_size(executable: Executable, options: CompileOptions) -> None:
    """Write the bytes of the artefact into its own report, which is part of it, if that is a figure that counts.

    Raises:
        LimitNotMet: The artefact is larger than a limit, with its report and the record of what was tried.
    """
    limits = [limit for limit in options.bounds if limit.quantity == "size"]
    if not options.counts_bytes:
        return
    for _ in range(_ROUNDS):
        recipe = executable.recipe
        size = float(artefact_bytes(recipe, executable.workspace))
        section = recipe.report.objective
        # Without a comparison there is no section.
        if not section or section["returned"].get("size_bytes") == size:
            break
        section = {**section, "returned": {**section["returned"], "size_bytes": size}}
        executable.report = replace(recipe.report, objective=section)
        executable.recipe = replace(recipe, report=executable.report)
    if missed := next((limit for limit in limits if size > limit.value), None):
        raise LimitNotMet(f"no plan keeps {missed.text}; the nearest has size {amount('size', size)}, with its report")


def _why_missed(variant: _Variant, limit: Limit) -> str:
    value = variant.figures.of(limit.quantity)
    return f"{limit.quantity} {'unknown' if value is None else amount(limit.quantity, value)}, and not {limit.text}"


def _nearest(variants: Sequence[_Variant], limits: Sequence[Limit]) -> str:
    """Return the sentence on limits that no plan keeps."""

    def worst(variant: _Variant) -> float:
        excesses = [limit.excess(variant.figures) for limit in limits]
        return max(math.inf if excess is None else excess for excess in excesses)

    nearest = min(variants, key=worst)
    figures = [
        f"{limit.quantity} {amount(limit.quantity, value)}"
        for limit in limits
        if (value := nearest.figures.of(limit.quantity)) is not None
    ]
    told = " and ".join(dict.fromkeys(limit.text for limit in limits))
    return f"no plan keeps {told}; the nearest is {nearest.title} with {', '.join(dict.fromkeys(figures))}"
