"""The cost table: the costs of kernels, measured or expected, for the search."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property, partial

import onnx_ir as ir

from collage.compiler.budget import SearchBudget
from collage.compiler.copy_costs import hand_overs, transfers_of
from collage.compiler.survey import Survey
from collage.cost.cost import Cost
from collage.cost.outcome import Outcome
from collage.fusion import CandidateKernel
from collage.graph import IndexSet, SubGraph, value_nbytes
from collage.measure.estimator import MeasuringCostEstimator
from collage.measure.jobs import Job, weight_bytes
from collage.measure.learned_model import LearnedCostModel
from collage.measure.overheads import Overheads, measure_overheads
from collage.measure.roofline import Roofline, measure_peak
from collage.measure.segment_profile import MOST, profile_from_segments, segments
from collage.measure.session import MeasureSession
from collage.measure.work import shape_in
from collage.plan import AnyKernel, Identity, PlannedKernel, identity_of
from collage.search import Transfer
from collage.status import Status
from collage.target import HOST_TARGET, Target

__all__ = ["CostTable"]

_BATCH_SIZE = 16
_PROBED_SHARE = 0.5
"""Share of a budget of kernels that is spent on profiles of targets without a profiler. The search has the rest."""
_LEAST_CALLS = 5
"""A segment on which the fastest target spends less than so many calls is not cut: the parts would measure the calls.

With 0, chains that take less than a few calls are profiled for nothing. With 10, a mix of 61 operators with long calls is missed.
"""
_LEAST_SHARE = 0.1
"""The least share of a kernel's time that is left when the cost of the call is taken off."""
_HOPED = 0.5
"""Share of the error of a measured kernel that one of nearly the same operators is expected to have at least."""


class CostTable:
    """The costs of the kernels of one model.

    Args:
        survey: The model, the operators that each target takes, and its time for them.
        session: Builds and measures.

    Attributes:
        budget: The limits of all searches together.
        error_price_s: Seconds that the search adds for each unit of relative error of a kernel of reduced precision.
        overheads: Measured overheads of a call, by target.
        batch_size: So many kernels are measured at once.
        proves: True if the search goes on until no other cover can cost less.
        min_gain: Share of the best cover's cost below which a hoped-for gain is not worth a measurement.
        searching: Returns a context within which the time of a search counts.
        say: Called with each line of progress.
        strategy_faults: The fault with the user's search strategy, which is not asked again then.
        is_interrupted: True after an interrupt, which ends all searches of kernels that are still to come.
    """

    def __init__(self, survey: Survey, session: MeasureSession) -> None:
        problem = survey.problem
        self.budget = SearchBudget(problem.options, problem.comparison_plan, problem.part)
        self.error_price_s = 0.0
        self.overheads: dict[Target, Overheads] = {}
        self.batch_size = _BATCH_SIZE
        self.proves = problem.options.proves
        self.min_gain = problem.options.min_gain
        self.searching = self.budget.searching
        self.say = session.say
        self.strategy_faults: tuple[str, ...] = ()
        self.is_interrupted = False
        self._problem = problem
        self._survey = survey
        self._session = session
        self._estimator = MeasuringCostEstimator(session, weight_bytes(problem.model))
        self._expectation = LearnedCostModel([], {})
        self._rooflines: list[tuple[Roofline, float]] = []
        self._outcomes: dict[tuple[Hashable, Target], Outcome] = {}
        self._rejected: set[Identity] = set()
        self._twins: dict[tuple[Hashable, Target], list[CandidateKernel]] = {}
        self._hand_overs: dict[int, list[Transfer]] = {}
        self._errors: dict[Target, dict[int, float]] = {}

    def learn(self) -> None:
        """Measure the overheads, compute the bounds, and profile the targets, so that a search can begin."""
        usable = [*self._survey.usable, HOST_TARGET]
        # A variant takes the whole model alone, so that no kernel of it is expected or asked about.
        baselines = {target: found for target, found in self._survey.baselines.items() if target in usable}
        graph, session = self._problem.graph, self._session
        self.overheads = {target: measure_overheads(target, session) for target in usable}
        peak = measure_peak(self._session.database)
        self._rooflines = [
            (Roofline(graph.nodes, partial(shape_in, values), peak), weight) for values, weight in session.occasions
        ]
        op_types = [node.op_type for node in graph.nodes]
        alone_s = [sum(weight * line.node_s(i) for line, weight in self._rooflines) for i in range(len(graph))]
        dispatch_s: dict[Hashable, float] = {t: found.dispatch_s for t, found in self.overheads.items()}
        self._expectation = LearnedCostModel(op_types, dispatch_s, alone_s)
        for target, found in baselines.items():
            if found.profile:
                self._expectation.learn_profile(target, found.profile, found.known_by)
        takes = (Status.OK, Status.WRONG)
        silent = [t for t, b in baselines.items() if not b.profile and any(o.status in takes for o in b.outcomes)]
        if len(usable) > 2:  # With one target beside the host, nothing is chosen.
            ends_at = self.budget.asked + int(_PROBED_SHARE * self.kernels_left)
            for left, target in zip(range(len(silent), 0, -1), silent, strict=True):
                self._probe(target, (ends_at - self.budget.asked) // left)
        for target, found in baselines.items():
            for bits, outcome in zip(found.ranges, found.outcomes, strict=True):
                self._learn(PlannedKernel(SubGraph(graph, IndexSet(bits)), target), outcome)

    def _probe(self, target: Target, most: int) -> None:
        """Estimate the time of each operator on a target without a profiler, from at most this many kernels."""
        found, graph = self._survey.baselines[target], self._problem.graph
        taken = [i for bits in found.ranges for i in IndexSet(bits)]
        weights = self._expectation.weights(taken)
        overheads = self.overheads[target]
        call_s = overheads.dispatch_s + overheads.launch_s
        least = _LEAST_CALLS * call_s / self.best_single_s * sum(weights.values())
        parts = segments(graph.cuts, found.ranges, weights, min(MOST, most), least)
        if len(parts) <= len(found.ranges) or self.search_s_left <= 0:
            return
        self.say(f"profiling {target.short}: {len(parts)} segments of the model")
        places = [PlannedKernel(SubGraph(graph, IndexSet(bits)), target) for bits in parts]
        outcomes = self._estimator.measure([self._problem.kernel_of(place) for place in places])
        asked = {self._problem.key_of(p) for p, outcome in zip(places, outcomes, strict=True) if not outcome.recorded}
        self.budget.asked += len(asked)
        seconds = {
            bits: max(outcome.time.median_s - overheads.dispatch_s, _LEAST_SHARE * outcome.time.median_s)
            for bits, outcome in zip(parts, outcomes, strict=True)
            if outcome.time is not None
        }
        whole = [outcome.time.median_s for outcome in found.outcomes if outcome.time is not None]
        total_s = sum(whole) if len(whole) == len(found.outcomes) else None
        self._expectation.learn_profile(target, profile_from_segments(weights, seconds, total_s))
        for place, outcome in zip(places, outcomes, strict=True):
            self._learn(place, outcome)

    @property
    def best_single_s(self) -> float:
        """Seconds of the fastest target that takes the whole model, and is right; infinite if there is none."""
        return self._survey.best_single_s

    @property
    def has_variants(self) -> bool:
        """True if tuned kernels take part."""
        return any(target.option("trials") is not None for target in self.overheads)

    @property
    def kernels_left(self) -> int:
        """Return the number of kernels that the search may still have measured."""
        return max(0, self.budget.kernels(len(self._twins)) - self.budget.asked)

    @property
    def search_s_left(self) -> float:
        """Seconds that the search may still take."""
        return 0.0 if self.is_interrupted else self.budget.seconds_left(self._survey.wholes)

    @cached_property
    def transfers(self) -> list[Transfer]:
        """Return the values that operators hand to each other with their copy costs, if the search places operators."""
        problem = self._problem
        assert problem.placement is not None
        return transfers_of(
            problem.placement,
            problem.graph,
            self._nbytes_of,
            self._session.database,
            remeasure=problem.options.remeasure,
        )

    def hand_overs(self, lanes: int) -> list[Transfer]:
        """Return the values that operators hand to each other, with the costs of handing them from lane to lane."""
        if lanes not in self._hand_overs:
            graph, remeasure = self._problem.graph, self._problem.options.remeasure
            self._hand_overs[lanes] = hand_overs(
                graph, lanes, self._nbytes_of, self._session.database, remeasure=remeasure
            )
        return self._hand_overs[lanes]

    @property
    def introduced(self) -> list[CandidateKernel]:
        """All candidates that were introduced so far."""
        return [candidate for twins in self._twins.values() for candidate in twins]

    def introduce(self, candidates: Iterable[CandidateKernel]) -> None:
        """Note which candidates have equal keys: a measurement of one, also an earlier one, is valid for all."""
        for candidate in candidates:
            key = self._problem.key_of(candidate)
            self._twins.setdefault(key, []).append(candidate)
            outcome = self._outcomes.get(key)
            if outcome is not None and outcome.time is not None:
                self._expectation.learn_measurement(candidate.target, candidate.bits, outcome.time.median_s)

    def introduce_variant(self, target: Target, of: Target) -> None:
        """Note a target that is called as another one is, but runs other code."""
        self.overheads.setdefault(target, self.overheads[of])
        self._expectation.introduce(target, of)

    def measure(self, candidates: Sequence[CandidateKernel], most_s: float | None = None) -> list[Cost]:
        """Build and measure candidates, and teach the cost model the results.

        Args:
            candidates: The candidates.
            most_s: Seconds beyond which a kernel is too slow; None for those of the fastest single target.
        """
        kernels = [self._problem.kernel_of(c) for c in candidates]
        outcomes = self._estimator.measure(kernels, self.best_single_s if most_s is None else most_s)
        for candidate, outcome in zip(candidates, outcomes, strict=True):
            self.budget.asked += not outcome.recorded
            self._learn(candidate, outcome)
        return [self.measured_cost(candidate) for candidate in candidates]

    def recall(self, candidates: Iterable[CandidateKernel]) -> None:
        """Take over the database's timings of candidates; nothing is built or measured."""
        for candidate in candidates:
            if self.outcome_of(candidate) is None and (known := self._session.recall(self.job(candidate))) is not None:
                self._learn(candidate, known)

    def job(self, kernel: AnyKernel, target: Target | None = None) -> Job:
        """Return the job of measuring a kernel, for its own target or another one."""
        model, own = self._problem.kernel_of(kernel)
        return self._estimator.job(model, target or own)

    def outcome_of(self, kernel: AnyKernel) -> Outcome | None:
        """Return the outcome of measuring this kernel, or one of equal key, in this compilation."""
        return self._outcomes.get(self._problem.key_of(kernel))

    def measured_cost(self, candidate: AnyKernel) -> Cost:
        """Return the cost of a candidate that was measured; INVALID for all others."""
        return self.known_cost(candidate) or Cost.INVALID

    def known_cost(self, candidate: AnyKernel) -> Cost | None:
        """Return the cost of a candidate that was measured in this compilation, its error priced in, or None."""
        outcome = self.outcome_of(candidate)
        if identity_of(candidate) in self._rejected:
            return Cost.INVALID
        if outcome is None or not outcome.ok or outcome.time is None:
            return None if outcome is None else Cost.INVALID
        price_s = self.error_price_s * (outcome.error or 0.0) if candidate.target.is_reduced else 0.0
        return Cost(seconds=outcome.time.at(self._problem.options.percentile) + price_s)

    def why_wrong(self, kernel: AnyKernel) -> str | None:
        """Return why this very kernel is wrong, and reject it; None if it is right.

        The cached outcome may be that of another kernel of equal key, with other weights and on other values.

        Raises:
            ToolchainError: It could not be built or run.
        """
        reason = self._estimator.why_wrong(*self._problem.kernel_of(kernel))
        if reason is not None:
            self.reject(kernel)
        return reason

    def reject(self, kernel: AnyKernel) -> None:
        """Leave this very kernel out of every further search."""
        self._rejected.add(identity_of(kernel))

    @property
    def rejections(self) -> int:
        """Return the number of kernels that are wrong although another one of equal key is right."""
        return len(self._rejected)

    def expected_s(self, candidate: CandidateKernel) -> float:
        """Return the expected seconds of a candidate that was not measured, its expected error priced in."""
        seconds = self._expectation.expected_s(candidate.target, candidate.bits)
        return seconds + (self.error_price_s * self._expected_error(candidate) if self.error_price_s else 0.0)

    def _expected_error(self, candidate: CandidateKernel) -> float:
        """Return the error of a candidate that was not measured, by kernels of the same target, on the optimistic side."""
        bits, known = candidate.bits, self._errors.get(candidate.target, {})
        alike = ((bits & other).bit_count() / (bits | other).bit_count() * error for other, error in known.items())
        return _HOPED * max(alike, default=0.0)

    def node_seconds(self, kernels: Iterable[AnyKernel]) -> list[float]:
        """Return the expected seconds of each operator inside larger kernels, on the target of the kernel that has it."""
        found = [0.0] * len(self._problem.graph)
        for kernel in kernels:
            for node in kernel.sub_graph.inside:
                found[node] = self._expectation.node_s(kernel.target, node)
        return found

    def least_s(self, candidate: CandidateKernel) -> float:
        """Return seconds that a candidate's cost cannot undercut, whichever toolchain compiles it."""
        place, target = candidate.sub_graph, candidate.target
        return sum(weight * line.bound_s(place, target) for line, weight in self._rooflines)

    def launch_penalty_s(self, target: Target) -> float:
        """Return the seconds that each kernel of a chain costs beyond its own: measured, unless the user says it."""
        return self._problem.options.launch_penalties_s.get(target.toolchain, self.overheads[target].launch_s)

    def _nbytes_of(self, value: ir.Value) -> int:
        """Return the size of a value in the reference run, or as the model states it; 0 if neither tells."""
        return value_nbytes(value, shape_in(self._session.values, value)) or 0

    def _learn(self, kernel: AnyKernel, outcome: Outcome) -> None:
        key = self._problem.key_of(kernel)
        self._outcomes[key] = outcome
        if kernel.target.is_reduced and outcome.error is not None:
            self._errors.setdefault(kernel.target, {})[kernel.sub_graph.inside.bits] = outcome.error
        if outcome.time is not None:
            for bits in {kernel.sub_graph.inside.bits, *(twin.bits for twin in self._twins.get(key, ()))}:
                self._expectation.learn_measurement(kernel.target, bits, outcome.time.median_s)
