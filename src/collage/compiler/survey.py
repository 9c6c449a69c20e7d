"""The survey of a model: its reference outputs, and for every target the operators that it takes and their time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import onnx_ir as ir

from collage.compiler.assumptions import assumed_lengths
from collage.compiler.precision_sensitivity import EXEMPT, changes_products_alone, keep_unbounded_in_float, profits
from collage.compiler.precision_session import Precision, open_precision
from collage.compiler.preparation import Preparation, PreparationDiffers, Verdict, find_guilty
from collage.compiler.problem import Problem
from collage.cost.outcome import Outcome
from collage.device import SEScope
from collage.frontend import place_weights
from collage.graph import IndexSet, SubGraph
from collage.measure.baselines import Baselines, TargetBaseline, measure_baselines
from collage.measure.check_inputs import CheckingSets, agrees_with_original, capture_checking_sets
from collage.measure.estimator import MeasuringCostEstimator, model_tolerance
from collage.measure.jobs import weight_bytes
from collage.measure.original_model import OriginalModel
from collage.measure.race import SHORT_S
from collage.measure.session import MeasureSession
from collage.target import HOST_TARGET, Target
from collage.toolchains import Availability, Support, support_for
from collage.toolchains.sdk.precisions import NARROW_BITS
from collage.transform import simplifying_passes

__all__ = [
    "LATE",
    "Reference",
    "Survey",
    "baselines_of",
    "far_s",
    "share_left",
    "supported_baselines",
    "survey_model",
    "why_no_gain",
]

LATE = "not measured: the time budget leaves no time for it"
"""The refusal of a target of reduced precision for which there was no time."""
_MISSED = "not measured: it was refused where the plan for all lengths was judged"
_NAN = "nan"
_SHARE_LEFT = {"bf16": 0.25, "int8": 0.5}
_MOST_LEFT = 0.65
"""Shares of a time budget that have to be left when a target of a reduced precision is measured: less for the most promising."""
_DECISIVE = 0.5
"""Narrow weights are among the most promising where their products take this share of the time."""
_FAR = 2.5
"""Whole models timed alone differ by this factor from their times in a race. Short ones took up to 14 times as long alone."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference of outputs.

    Attributes:
        checking: The sets of inputs on which everything is checked.
        original: The model as the user gave it; None if the prepared one is the user's own.
        verdict: The passes that were left out of the preparation.
    """

    checking: CheckingSets
    original: OriginalModel | None
    verdict: Verdict

    @property
    def failure(self) -> str | None:
        """Return the reason why the model could not be run for reference. Nothing can be measured then."""
        return self.checking.failure


@dataclass(frozen=True, slots=True)
class Survey:
    """The facts about a model before any search.

    Attributes:
        problem: The model and the menu.
        reference: Reference values that outputs are compared with.
        baselines: The operators that each target takes, and its time for them.
        precision: The known facts about reduced precision; None if nothing on the menu is reduced.
    """

    problem: Problem
    reference: Reference
    baselines: Baselines
    precision: Precision | None = None

    @property
    def wholes(self) -> list[Outcome]:
        """The timed runs of the whole model, one for each target that takes it."""
        return [found.whole for found in self.baselines.values() if found.whole.time is not None]

    @property
    def is_cut_short(self) -> bool:
        """True if a time budget left something out: the same command goes on there."""
        is_late = any(found.refusal == LATE for found in self.baselines.values())
        return is_late or (self.precision is not None and self.precision.is_cut_short)

    @property
    def best_single_s(self) -> float:
        """Seconds of the fastest target that takes the whole model, may run it, and is right; infinite if there is none."""
        everything = SubGraph(self.problem.graph, IndexSet((1 << len(self.problem.graph)) - 1))
        allowed = (
            found.whole
            for t, found in self.baselines.items()
            if self.problem.choices.allows(everything, t) and not self.problem.is_bound(t)
        )
        right = [whole.time.median_s for whole in allowed if whole.time is not None and self.is_right(whole)]
        return min(right, default=float("inf"))

    @property
    def takers(self) -> list[Target]:
        """The targets that can be used here and take anything."""
        return [t for t, found in self.baselines.items() if found.availability.available and found.ranges]

    @property
    def usable(self) -> list[Target]:
        """The targets of the menu that can be used here, without variants, which take the whole model alone."""
        menu = [target for target in self.problem.menu if target.option(EXEMPT) is None]
        return [target for target in menu if self.baselines[target].availability.available]

    def is_far_behind(self, target: Target) -> bool:
        """True if a target that takes the whole model alone is clearly slower than the best one."""
        mine = self.baselines[target].whole.time
        return mine is not None and mine.median_s > far_s(self.best_single_s)

    def is_right(self, whole: Outcome) -> bool:
        """Return True if the whole model on one target keeps the tolerance, or the accuracy budget."""
        return whole.error is None or whole.error <= self.problem.tolerance

    def coverage_of(self, target: Target) -> Callable[[ir.Node], Support]:
        """Return a predicate with reasons: which nodes a target takes."""
        support, graph = self.baselines[target].support, self.problem.graph
        return lambda node: support.get(graph.index_of(node), Support(False, "not asked"))

    def why_refused(self, index: int) -> str:
        """Return why targets do not take an operator, each with its reason."""
        told = {t.short: found.support[index] for t, found in self.baselines.items() if index in found.support}
        return "; ".join(f"{name}: {support.reason}" for name, support in told.items() if not support.ok)

    def coverage_on(self, device: SEScope, target: Target) -> Callable[[ir.Node], Support]:
        """Return the same for the nodes that a target may run on one device."""
        placement, covers = self.problem.placement, self.coverage_of(target)
        assert placement is not None

        def ask(node: ir.Node) -> Support:
            refusal = placement.why_not(node, device, target)
            return covers(node) if refusal is None else Support(False, refusal)

        return ask


def survey_model(
    problem: Problem,
    session: MeasureSession,
    preparation: Preparation = Preparation(),  # noqa: B008 (frozen)
    stack: ExitStack | None = None,
    *,
    is_timed: bool = True,
) -> Survey:
    """Run the model once for reference, and ask every target about it.

    Args:
        problem: The model and the menu.
        session: Builds and measures.
        preparation: The original model, and the passes that were left out.
        stack: Closes what judges reduced precision; without, nothing does, and no plan is reduced.
        is_timed: Build and time the operators that targets take. Otherwise toolchains only state what they support.

    Raises:
        PreparationDiffers: The prepared model computes something else than the original.
    """
    checking: list[CheckingSets] = []
    session.say("starting toolchains")
    session.start_all(
        [HOST_TARGET, *problem.menu], lambda: checking.append(_run_reference(problem, session, preparation))
    )
    _check_preparation(problem, session, preparation, checking[0])
    reference = Reference(checking[0], preparation.original, preparation.verdict)
    if reference.failure is None:
        if (note := assumed_lengths(problem.model, checking[0].dims, problem.options.dims)) is not None:
            session.say(note)
        problem = replace(problem, options=replace(problem.options, dims=checking[0].dims))
    if reference.failure is not None:
        refusal = f"not measured: {reference.failure}"
        unmeasured = {t: TargetBaseline(t, session.availability(t), refusal=refusal) for t in problem.menu}
        return Survey(problem, reference, unmeasured)
    if not is_timed:
        return Survey(problem, reference, supported_baselines(problem, session.availability))
    original = preparation.original
    file = original.path if original is not None and original.failure is None else None
    made = reference.checking.made
    precision = None if stack is None else open_precision(problem, session, made, file, stack)

    if precision is not None:
        keep_unbounded_in_float(precision, problem)
    return Survey(problem, reference, baselines_of(problem, problem.menu, session), precision)


def baselines_of(problem: Problem, targets: Sequence[Target], session: MeasureSession) -> Baselines:
    """Return what targets take of a model, and their times.

    If much of a time budget is over, no further target of reduced precision is measured.
    """

    def why_not(target: Target, found: Baselines) -> str | None:
        if target.is_reduced:
            least_s = share_left(problem, target, found) * (problem.time_budget_s or 0.0)
            if problem.comparison_plan.left_s <= least_s:
                return LATE
        if str(target) in problem.part.refused:
            return _MISSED
        looks_for_gain = problem.options.time_decides and not problem.options.proves
        return why_no_gain(problem, target, found) if looks_for_gain else None

    estimator = MeasuringCostEstimator(session, weight_bytes(problem.model))
    if not problem.graph.kernel_call_bits:
        # Targets of reduced precision may be left out once the times of others are known.
        first = [t for t in targets if not t.is_reduced and session.availability(t).available]
        whole = (1 << len(problem.graph)) - 1
        jobs = [estimator.job(problem.kernels.model(whole, target), target) for target in first]
        session.build_ahead(jobs, problem.model)
    return measure_baselines(
        problem.graph,
        targets,
        problem.toolchains,
        problem.kernels,
        estimator,
        session,
        session.database,
        session.say,
        why_not,
    )


def far_s(best_s: float) -> float:
    """Return the seconds above which a whole model, timed alone, is clearly slower than the best one."""
    return max(_FAR * best_s, SHORT_S)


def share_left(problem: Problem, target: Target, found: Baselines) -> float:
    """Return the share of the time budget that has to be left when a target of reduced precision is measured."""
    precision = target.option("precision") or ""
    if precision in NARROW_BITS and (_share_of_products(problem, target, found) or 0.0) >= _DECISIVE:
        return min(_SHARE_LEFT.values())
    return _SHARE_LEFT.get(precision, _MOST_LEFT)


def why_no_gain(problem: Problem, target: Target, found: Baselines) -> str | None:
    """Return the reason that a target of 8 bits or narrow weights saves too little time; None if it may pay.

    In floats, all that it computes otherwise takes less than the smallest gain that is looked for.
    """
    share = _share_of_products(problem, target, found) if changes_products_alone(target) else None
    if share is None or share >= problem.options.min_gain:
        return None
    return f"not measured: the products that it computes otherwise take {share:.1%} of the time in floats"


def _share_of_products(problem: Problem, target: Target, found: Baselines) -> float | None:
    """Return the share of the time in floats of the products that a target computes otherwise; None if that is not known."""
    precision = target.option("precision")
    plain = next((t for t in found if precision and t.with_options(precision=precision) == target), None)
    profile = {} if plain is None else found[plain].profile
    if not (total_s := sum(profile.values())):
        return None
    nodes = enumerate(problem.graph.nodes)
    return sum(profile.get(i, 0.0) for i, node in nodes if profits(node, target)) / total_s


def supported_baselines(problem: Problem, availability_of: Callable[[Target], Availability]) -> Baselines:
    """Return baselines from the statements of toolchains about their support; nothing is built or timed."""

    def baseline(target: Target) -> TargetBaseline:
        toolchain = problem.toolchains.for_target(target)
        nodes = enumerate(problem.graph.nodes)
        support = {i: support_for(toolchain, node, target) for i, node in nodes}
        return TargetBaseline(
            target, availability_of(target), support, refusal="not timed: the costs come from an estimator"
        )

    return {target: baseline(target) for target in problem.menu}


def _run_reference(problem: Problem, session: MeasureSession, preparation: Preparation) -> CheckingSets:
    """Run the model for reference, which takes only the host."""
    session.say("running the model once for reference")
    options = problem.options
    found = capture_checking_sets(
        problem.model,
        options.inputs,
        session,
        session.database,
        seed=options.seed,
        dims=options.dims,
        tolerance=model_tolerance(problem.model, saturating=False),
        original=preparation.original,
        in_between=not preparation.is_compared,
        keeps_nan=options.probe == _NAN,
    )
    original = preparation.original
    session.reference_model = (
        original.path if original is not None and original.failure is None else session.written(problem.model)
    )
    return found


def _check_preparation(
    problem: Problem, session: MeasureSession, preparation: Preparation, checking: CheckingSets
) -> None:
    """Find the passes that changed the model's results, if any did.

    Raises:
        PreparationDiffers: The prepared model computes something else than the original.
    """
    mismatches, shown_on, original = checking.mismatches, checking.mismatched_on, preparation.original
    if not mismatches or shown_on is None or original is None:
        return
    session.say(f"the prepared model and the original differ ({mismatches[0]}); looking for the pass that causes it")
    if (reprepare := preparation.reprepare) is None:
        raise PreparationDiffers(mismatches[0], None)

    def agrees(left_out: Sequence[str]) -> bool:
        model = place_weights(reprepare(left_out), session.workspace)
        return agrees_with_original(
            model, shown_on, session, original, model_tolerance(problem.model, saturating=False)
        )

    passes = simplifying_passes(problem.options.passes)
    raise PreparationDiffers(mismatches[0], find_guilty(agrees, preparation.verdict.left_out, passes))
