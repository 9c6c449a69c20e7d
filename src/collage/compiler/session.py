"""Everything that is known, and can be found out, about one model on this machine: what the four phases ask."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol

import onnx_ir as ir

from collage.compiler.budget import SearchBudget
from collage.compiler.device_placement import DevicePlacement
from collage.compiler.preparation import PreparationDiffers, Verdict, find_guilty
from collage.cost.cost import Correction, Cost
from collage.cost.outcome import Outcome, Status
from collage.database.database import Database
from collage.device import SEScope
from collage.frontend import place_weights
from collage.fusion import CandidateKernel, FusionReport
from collage.graph import DataflowGraph, IndexSet, SubGraph, value_nbytes
from collage.measure.additivity import AdditivityCheck
from collage.measure.baselines import Baselines, TargetBaseline, measure_baselines
from collage.measure.check_inputs import CheckingSets, agrees_with_original, capture_checking_sets
from collage.measure.comparison import ComparisonPlan
from collage.measure.estimator import MeasuringCostEstimator, model_tolerance
from collage.measure.jobs import weight_bytes
from collage.measure.kernel_factory import KernelMaker
from collage.measure.learned_model import LearnedCostModel
from collage.measure.original_model import OriginalModel
from collage.measure.overheads import Overheads, measure_overheads
from collage.measure.per_op_profile import parts_to_measure, profile_from_parts
from collage.measure.process_compat import ProcessCompatibility
from collage.measure.roofline import Roofline, measure_peak
from collage.measure.session import MeasureSession
from collage.measure.worker_pool import Limits
from collage.numerics.value_store import ValueStore
from collage.options import CompileOptions
from collage.system.machine import free_memory_bytes
from collage.target import HOST_TARGET, Target
from collage.toolchains import Registry, Support
from collage.workers.worker import Worker

__all__ = ["CompileSession", "HasTarget"]

_BATCH_SIZE = 16
_SECOND_LOOKS = 16
_ONE_AND_THE_HOST = 2
_TWO_PARTS = 2
_LEAST_SHARE = 0.1
"""What is at least left of a kernel's time when the cost of the call is taken off."""

LIMITS = Limits()
"""What workers may use."""


class HasTarget(Protocol):
    """A sub-graph for a target: a candidate, or a kernel of a plan."""

    @property
    def sub_graph(self) -> SubGraph:
        """Its nodes."""
        ...

    @property
    def target(self) -> Target:
        """What it is compiled for."""
        ...


class CompileSession:
    """One model, one menu, one machine.

    Args:
        prepared: A prepared model.
        menu: The targets, preferred ones first.
        toolchains: Where their toolchains are found.
        database: Where timings are kept.
        workspace: Folder for kernels and values.
        options: See ``CompileOptions``.
        placement: Where operators are to run, if anybody asked for anything.
        workers: Worker processes lent by the caller.
        original: The model as the user gave it; None if the prepared one is the user's own.
        verdict: What was left out of the preparation.
        is_compared: The prepared model was compared with the original value by value, in an earlier session.
        reprepare: Prepares the model once more, without the passes of these names.
        say: Told what is going on.

    Attributes:
        model: The model, with its large weights in the workspace.
        graph: Its dataflow graph.
        baselines: What each target takes, and how long it needs.
        checking: The sets of inputs on which everything is checked.
        reference_failure: Why the model could not be run for reference; nothing can be measured then.
        fusion: What happened while candidates were collected.
        correction: What earlier finals have taught about the costs of chains.
        budget: What the search may use.
        error_price_s: Seconds that the search adds for each unit of relative error of a kernel of reduced precision.
    """

    def __init__(
        self,
        prepared: ir.Model,
        menu: Sequence[Target],
        toolchains: Registry,
        database: Database,
        workspace: Path,
        *,
        options: CompileOptions,
        placement: DevicePlacement | None = None,
        workers: dict[str, Worker] | None = None,
        original: OriginalModel | None = None,
        verdict: Verdict = Verdict(),  # noqa: B008 (frozen)
        is_compared: bool = False,
        reprepare: Callable[[Sequence[str]], ir.Model] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.original = original
        self.verdict = verdict
        self._is_compared = is_compared
        self._reprepare = reprepare
        self.checking = CheckingSets()
        self.toolchains = toolchains
        self.database = database
        self.workspace = workspace
        self.options = options
        self.placement = placement
        self.say = say
        self.model = place_weights(prepared, workspace)
        self.graph = DataflowGraph(self.model)
        self.kernels = KernelMaker(self.graph)
        self.strict_tolerance = max(model_tolerance(self.model, saturating=False), options.accuracy_budget or 0.0)
        self.tolerance = self.strict_tolerance if options.accuracy_budget else model_tolerance(self.model)
        self.measure_session = MeasureSession(
            toolchains,
            database,
            workspace,
            threads=options.threads,
            limits=LIMITS,
            remeasure=options.remeasure,
            workers=workers,
            say=say,
        )
        self.menu = tuple(menu) if options.accuracy_budget is None else self._with_reduced_precision(menu)
        self.estimator = MeasuringCostEstimator(self.measure_session, weight_bytes(self.model))
        self.process_compat = ProcessCompatibility(
            toolchains, database, lambda target: self.measure_session.build_of(target), say
        )
        self.baselines: Baselines = {}
        self.overheads: dict[Target, Overheads] = {}
        self.reference_failure: str | None = None
        self.error_price_s = 0.0
        self.correction = Correction()
        self.comparison_plan = ComparisonPlan.of_model(weight_bytes(self.model), free_memory_bytes())
        self.budget = SearchBudget(options, self.comparison_plan)
        self.fusion = FusionReport()
        self._outcomes: dict[tuple[Hashable, Target], Outcome] = {}
        self._rejected: set[tuple[SubGraph, Target]] = set()
        self._twins: dict[tuple[Hashable, Target], list[CandidateKernel]] = {}
        self.additivity_checks: dict[Hashable, AdditivityCheck | None] = {}
        self.batch_size = _BATCH_SIZE
        self._tuners: dict[str, bool] = {}

    def __enter__(self) -> CompileSession:
        """Runs the model once for reference, and asks every target about it."""
        try:
            self._look_around()
        except BaseException:
            self.measure_session.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.measure_session.close()

    def _look_around(self) -> None:
        self.say("starting toolchains")
        self.measure_session.start_all([HOST_TARGET, *self.menu], self._refer)
        self._check_preparation()
        if self.reference_failure is not None:
            self.baselines = {target: self._not_measured(target) for target in self.menu}
            return
        self.baselines = measure_baselines(
            self.graph,
            self.menu,
            self.toolchains,
            self.kernels,
            self.estimator,
            self.measure_session,
            self.database,
            self.say,
        )

    def learn_costs(self) -> None:
        """Find out what a search needs beyond the baselines: overheads, bounds, and where the time goes."""
        usable = [*(t for t in self.menu if self.baselines[t].availability.available), HOST_TARGET]
        self.overheads = {target: measure_overheads(target, self.measure_session, self.database) for target in usable}
        peak = measure_peak(self.database)
        self._rooflines = [
            (Roofline(self.graph.nodes, partial(_shape_on, values), peak), weight)
            for values, weight in self.measure_session.occasions
        ]
        op_types = [node.op_type for node in self.graph.nodes]
        self._expectation = LearnedCostModel(op_types, {t: found.dispatch_s for t, found in self.overheads.items()})
        for target, found in self.baselines.items():
            if found.profile:
                self._expectation.learn_profile(target, found.profile)
        for target, found in self.baselines.items():
            takes = any(outcome.status in (Status.OK, Status.WRONG) for outcome in found.outcomes)
            if takes and not found.profile and len(usable) > _ONE_AND_THE_HOST:
                self._probe(target, op_types)
        for target, found in self.baselines.items():
            for bits, outcome in zip(found.ranges, found.outcomes, strict=True):
                self._learn(SubGraph(self.graph, IndexSet(bits)), target, outcome)

    def _refer(self) -> None:
        """Runs the model for reference, which takes only the host."""
        self.say("running the model once for reference")
        options = self.options
        self.checking = capture_checking_sets(
            self.model,
            options.inputs,
            self.measure_session,
            self.database,
            seed=options.seed,
            dims=options.dims,
            tolerance=self.tolerance,
            original=self.original,
            in_between=not self._is_compared,
        )
        self.reference_failure = self.checking.failure

    def _check_preparation(self) -> None:
        """Find the passes that changed what the model computes, if any did.

        Raises:
            PreparationDiffers: The prepared model computes something else than the original.
        """
        mismatches, shown_on, original = self.checking.mismatches, self.checking.mismatched_on, self.original
        if not mismatches or shown_on is None or original is None:
            return
        self.say(
            f"the prepared model computes something else than the original ({mismatches[0]}); looking for the pass"
        )
        if (reprepare := self._reprepare) is None:
            raise PreparationDiffers(mismatches[0], None)

        def agrees(left_out: Sequence[str]) -> bool:
            model = place_weights(reprepare(left_out), self.workspace)
            return agrees_with_original(model, shown_on, self.measure_session, original, self.tolerance)

        raise PreparationDiffers(mismatches[0], find_guilty(agrees, self.verdict.left_out))

    def _probe(self, target: Target, op_types: Sequence[str]) -> None:
        """Finds out where the time goes on a toolchain that cannot tell."""
        found = self.baselines[target]
        taken = [i for bits in found.ranges for i in IndexSet(bits)]
        weights = self._expectation.weights(taken)
        parts = parts_to_measure(op_types, weights)
        if len(parts) < _TWO_PARTS or len(parts) > self.kernels_left or self.search_s_left <= 0:
            return
        self.say(f"asking {target.short} where the time goes")
        places = [SubGraph(self.graph, IndexSet(1 << i)) for i in parts]
        outcomes = self.estimator.measure([(self.kernels.model(place, target), target) for place in places])
        self.budget.asked += sum(not outcome.recorded for outcome in outcomes)
        dispatch_s = self.overheads[target].dispatch_s
        seconds = {
            i: max(outcome.time.median_s - dispatch_s, _LEAST_SHARE * outcome.time.median_s)
            for i, outcome in zip(parts, outcomes, strict=True)
            if outcome.time is not None
        }
        whole = [outcome.time.median_s for outcome in found.outcomes if outcome.time is not None]
        total_s = sum(whole) if len(whole) == len(found.outcomes) else None
        profile = profile_from_parts(op_types, weights, seconds, total_s)
        self._expectation.learn_profile(target, profile)
        for place, outcome in zip(places, outcomes, strict=True):
            self._learn(place, target, outcome)

    def _not_measured(self, target: Target) -> TargetBaseline:
        availability = self.measure_session.availability(target)
        return TargetBaseline(target, availability, refusal=f"not measured: {self.reference_failure}")

    def _with_reduced_precision(self, menu: Sequence[Target]) -> tuple[Target, ...]:
        """The menu, and then what its targets offer in coarser types that this machine computes in faster."""
        reduced = [
            target.with_options(precision=precision)
            for target in menu
            if target.option("precision") is None
            for precision in self.measure_session.availability(target).precisions
        ]
        return tuple(dict.fromkeys([*menu, *reduced]))

    @property
    def best_single_s(self) -> float:
        """Seconds of the fastest target that takes the whole model, and is right; infinite if there is none."""
        wholes = [found.whole for found in self.baselines.values()]
        return min((w.time.median_s for w in wholes if w.time is not None and self.is_right(w)), default=float("inf"))

    def is_right(self, whole: Outcome) -> bool:
        """Whether the whole model on one target keeps the tolerance, or the accuracy budget."""
        return whole.error is None or whole.error <= self.tolerance

    @property
    def has_choice(self) -> bool:
        """Whether more than one target takes anything, or devices, tuning or tuned kernels leave something open."""
        takers = [t for t, found in self.baselines.items() if found.availability.available and found.ranges]
        has_tuned = any(target.option("trials") is not None for target in self.overheads)
        return len(takers) > 1 or self.placement is not None or self.options.tune_s > 0 or has_tuned

    @property
    def kernels_left(self) -> int:
        """How many kernels the search may still ask for."""
        return max(0, self.budget.kernels(len(self._twins)) - self.budget.asked)

    @property
    def search_s_left(self) -> float:
        """Seconds that the search may still take."""
        return self.budget.seconds_left(
            [found.whole for found in self.baselines.values() if found.whole.time is not None]
        )

    def coverage_of(self, target: Target) -> Callable[[ir.Node], Support]:
        """Which nodes a target takes, as a predicate with reasons."""
        support = self.baselines[target].support
        return lambda node: support.get(self.graph.index_of(node), Support(False, "not asked"))

    def coverage_on(self, device: SEScope, target: Target) -> Callable[[ir.Node], Support]:
        """Which nodes a target takes, and may take on one device."""
        placement, covers = self.placement, self.coverage_of(target)
        assert placement is not None

        def ask(node: ir.Node) -> Support:
            refusal = placement.why_not(node, device, target)
            return covers(node) if refusal is None else Support(False, refusal)

        return ask

    def within_devices(self, candidates: Iterable[CandidateKernel]) -> list[CandidateKernel]:
        """Those of some candidates that one device may run, and whose target refines what is planned for every node."""
        return list(candidates if self.placement is None else self.placement.within(candidates))

    def shares_process(self, targets: Sequence[Target]) -> bool:
        """Whether the toolchains of these targets can share a process; asked once, in processes that may die."""
        verdict = self.process_compat.verdict(targets)
        if not verdict.ok:
            self.say(f"not in one process: {verdict.reason}")
        return verdict.ok

    def key_of(self, sub_graph: SubGraph, target: Target) -> tuple[Hashable, Target]:
        """Kernels of equal keys cost the same: twelve equal layers are measured once."""
        return self.kernels.signature(sub_graph), target

    def outcome_of(self, sub_graph: SubGraph, target: Target) -> Outcome | None:
        """What came of measuring this kernel, or one of equal key, in this session."""
        return self._outcomes.get(self.key_of(sub_graph, target))

    def introduce(self, candidates: Iterable[CandidateKernel]) -> None:
        """Notes which candidates have equal keys, so that a measurement of one, also an earlier one, tells of all."""
        for candidate in candidates:
            key = self.key_of(candidate.sub_graph, candidate.target)
            self._twins.setdefault(key, []).append(candidate)
            outcome = self._outcomes.get(key)
            if outcome is not None and outcome.time is not None:
                self._expectation.learn_measurement(candidate.target, candidate.bits, outcome.time.median_s)

    def can_tune(self, target: Target) -> bool:
        """Whether kernels of this target may be tuned: its toolchain can, and it is not a target of tuned kernels itself."""
        name = target.toolchain
        if name not in self._tuners:
            self._tuners[name] = self.measure_session.can_tune(target)
        return self._tuners[name] and target.option("trials") is None

    def introduce_variant(self, target: Target, of: Target) -> None:
        """Makes known a target that is called as another one is, but runs other code."""
        self.overheads.setdefault(target, self.overheads[of])
        self._expectation.introduce(target, of)

    def measure(self, candidates: Sequence[CandidateKernel]) -> list[Cost]:
        """Builds and measures candidates, and learns from what comes of it."""
        kernels = [(self.kernels.model(c.sub_graph, c.target), c.target) for c in candidates]
        for candidate, outcome in zip(candidates, self.estimator.measure(kernels, self.best_single_s), strict=True):
            self.budget.asked += not outcome.recorded
            self._learn(candidate.sub_graph, candidate.target, outcome)
        return [self.measured_cost(candidate) for candidate in candidates]

    def remeasure(self, kernels: Sequence[HasTarget]) -> bool:
        """Measures kernels once more, the most expensive ones first, if there is time for it; whether any was."""
        try:
            with self.budget.searching():
                return self.search_s_left > 0 and self._measure_again(kernels)
        except KeyboardInterrupt:
            self.say("interrupted: going on with the best so far")
            return False

    def _measure_again(self, kernels: Sequence[HasTarget]) -> bool:
        measured = [kernel for kernel in kernels if self.known_cost(kernel) not in (None, Cost.INVALID)]
        distinct = {self.key_of(c.sub_graph, c.target): c for c in measured}
        by_cost = sorted(distinct.values(), key=lambda c: -self.measured_cost(c).seconds)[:_SECOND_LOOKS]
        models = [(self.kernels.model(c.sub_graph, c.target), c.target) for c in by_cost]
        again = self.estimator.remeasure(models, self.best_single_s)
        for kernel, outcome in zip(by_cost, again, strict=True):
            if outcome is not None and outcome.status is Status.WRONG:
                self._reject(kernel.sub_graph, kernel.target)
            elif outcome is not None:
                self._learn(kernel.sub_graph, kernel.target, outcome)
        return any(outcome is not None for outcome in again)

    def recall(self, candidates: Iterable[CandidateKernel]) -> None:
        """Learns what the database knows of candidates; nothing is built or measured."""
        for candidate in candidates:
            if self.outcome_of(candidate.sub_graph, candidate.target) is None:
                job = self.estimator.job(self.kernels.model(candidate.sub_graph, candidate.target), candidate.target)
                if (outcome := self.measure_session.recall(job)) is not None:
                    self._learn(candidate.sub_graph, candidate.target, outcome)

    def measured_cost(self, candidate: HasTarget) -> Cost:
        """Cost of a candidate that was measured; INVALID for all others."""
        return self.known_cost(candidate) or Cost.INVALID

    def known_cost(self, candidate: HasTarget) -> Cost | None:
        """Cost of a candidate that was measured in this session, its error priced in, or None."""
        outcome = self.outcome_of(candidate.sub_graph, candidate.target)
        if (candidate.sub_graph, candidate.target) in self._rejected:
            return Cost.INVALID
        if outcome is None or not outcome.ok or outcome.time is None:
            return None if outcome is None else Cost.INVALID
        price_s = self.error_price_s * (outcome.error or 0.0) if candidate.target.is_reduced else 0.0
        return Cost(seconds=self.corrected_s(outcome.time.at(self.options.percentile), candidate.sub_graph) + price_s)

    def corrected_s(self, seconds: float, sub_graph: SubGraph) -> float:
        """What a kernel takes, by its measured or expected seconds, in view of what earlier finals have taught."""
        return seconds if len(sub_graph.inside) == len(self.graph) else self.correction.parts * seconds

    def why_wrong(self, sub_graph: SubGraph, target: Target) -> str | None:
        """Why this very kernel is wrong; from then on no search has it. None if it is right.

        What was measured may be another kernel of equal key, with other weights and on other values.

        Raises:
            ToolchainError: It could not be built or run.
        """
        reason = self.estimator.why_wrong(self.kernels.model(sub_graph, target), target)
        if reason is not None:
            self._reject(sub_graph, target)
        return reason

    def _reject(self, sub_graph: SubGraph, target: Target) -> None:
        """Leave this very kernel out of every further search."""
        self._rejected.add((sub_graph, target))

    @property
    def rejections(self) -> int:
        """How many kernels turned out to be wrong where another of equal key was right."""
        return len(self._rejected)

    def expected_s(self, candidate: CandidateKernel) -> float:
        """Expected seconds of a candidate that was not measured."""
        return self.corrected_s(self._expectation.expected_s(candidate.target, candidate.bits), candidate.sub_graph)

    def least_s(self, candidate: CandidateKernel) -> float:
        """Seconds that a candidate's cost cannot undercut, whoever compiles it."""
        place, target = candidate.sub_graph, candidate.target
        return self.corrected_s(sum(weight * line.bound_s(place, target) for line, weight in self._rooflines), place)

    def nbytes_of(self, value: ir.Value) -> int:
        """Size of a value in the reference run, or as the model states it; 0 where neither tells."""
        return value_nbytes(value, _shape_on(self.measure_session.values, value)) or 0

    def launch_penalty_s(self, target: Target) -> float:
        """Seconds that each kernel of a chain costs beyond its own: measured, unless the user knows better."""
        measured_s = self.overheads[target].launch_s + self.correction.chain_s
        return self.options.launch_penalties_s.get(target.toolchain, measured_s)

    def priority(self, target: Target) -> int:
        """Rank of a target on the menu, 0 first; the host comes last."""
        return self.menu.index(target) if target in self.menu else len(self.menu)

    def _learn(self, sub_graph: SubGraph, target: Target, outcome: Outcome) -> None:
        key = self.key_of(sub_graph, target)
        self._outcomes[key] = outcome
        if outcome.time is not None:
            for bits in {sub_graph.inside.bits, *(twin.bits for twin in self._twins.get(key, ()))}:
                self._expectation.learn_measurement(target, bits, outcome.time.median_s)


def _shape_on(values: ValueStore, value: ir.Value) -> Sequence[int] | None:
    """The shape that a value had in a reference run, or that the model states."""
    if str(value.name) in values:
        return values.shape(str(value.name))
    shape = value.const_value.shape if value.const_value is not None else value.shape
    axes = tuple(shape) if shape is not None else (None,)
    return tuple(axis for axis in axes if isinstance(axis, int)) if all(isinstance(a, int) for a in axes) else None
