"""The baselines of a model: the operators that each toolchain takes, their time as one kernel, and the time per operator.

Before any candidate is looked at, every target is tried on the whole model, or, where it refuses some operators, on the
largest ranges that it takes. That is needed anyway (nothing that Collage makes may be slower), it answers most questions
of support with a single build, and profiles of these large kernels give first estimates of smaller ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collage._errors import ToolchainError
from collage.cost.outcome import Outcome
from collage.database import Database, FactKind
from collage.graph import DataflowGraph
from collage.measure.estimator import MeasuringCostEstimator
from collage.measure.jobs import structure_of
from collage.measure.kernel_factory import KernelMaker
from collage.measure.session import MeasureSession
from collage.status import Status
from collage.system.codec import Count, Share
from collage.target import Target
from collage.toolchains import Availability, Importer, Registry, Support

__all__ = ["Baselines", "Step", "TargetBaseline", "attributed", "maximal_ranges", "measure_baselines"]

_SUPPORT: FactKind[Support] = FactKind("support", Support)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a profile: the places of its nodes, first that of the one it is known by, and its time."""

    nodes: tuple[Count, ...]
    seconds: Share


_PROFILE: FactKind[tuple[Step, ...]] = FactKind("profile", tuple[Step, ...])
_HOPELESS = 3.0
"""A target this many times slower than the best on the whole model is not measured precisely."""
_PRECISIONS = ("f32", "bf16", "int8", "f16")
"""The order in which targets are measured, by the option ``precision``. All others come last."""
_MOST_RANGES = 16
"""Most pieces to measure of a target that takes a model only in pieces: the largest, as its greedy partitioning."""


@dataclass(frozen=True, slots=True)
class TargetBaseline:
    """The baseline of one target on one model.

    Attributes:
        target: The target.
        availability: True if its toolchain can be used here.
        support: For each node, by index, if the target takes it, and the reason if it does not.
        ranges: Maximal ranges of nodes that it takes, as bits; a single one where it takes the whole model.
        outcomes: The result of measuring each of them.
        profile: Seconds per node inside these ranges, if its toolchain has a profiler.
        known_by: The node with whose seconds those of a node are, which may be the node itself.
        refusal: The reason why it cannot take the whole model, or None.
        refusal_status: Outcome of the attempt on the whole model.
    """

    target: Target
    availability: Availability
    support: Mapping[int, Support] = field(default_factory=dict)
    ranges: tuple[int, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    profile: Mapping[int, float] = field(default_factory=dict)
    known_by: Mapping[int, int] = field(default_factory=dict)
    refusal: str | None = None
    refusal_status: Status = Status.REFUSED

    @property
    def whole(self) -> Outcome:
        """The outcome for the whole model."""
        if not self.availability.available:
            return Outcome(Status.REFUSED, self.availability.reason or "not available")
        if self.refusal is not None:
            return Outcome(self.refusal_status, self.refusal)
        return self.outcomes[0]


Baselines = Mapping[Target, TargetBaseline]


def measure_baselines(
    graph: DataflowGraph,
    targets: Sequence[Target],
    toolchains: Registry,
    kernels: KernelMaker,
    estimator: MeasuringCostEstimator,
    measure_session: MeasureSession,
    database: Database,
    say: Callable[[str], None] = lambda _: None,
    why_not: Callable[[Target, Baselines], str | None] = lambda *_: None,
) -> Baselines:
    """Survey a model for every target of the menu.

    Args:
        graph: The model's graph.
        targets: The targets.
        toolchains: The registry of their toolchains.
        kernels: Makes the model's kernels.
        estimator: Measures them.
        measure_session: Builds and measures.
        database: Remembers profiles, and what targets take.
        say: Told what goes on.
        why_not: Asked before each target, once the time of another one is known, with the baselines so far. Returns a reason
            not to measure it, or None.
    """
    found: dict[Target, TargetBaseline] = {}
    best_s = float("inf")

    def rank(target: Target) -> tuple[bool, int]:
        # Toolchains that optimise whole graphs go first: they are the ones that the others have to beat.
        precision = (
            _PRECISIONS.index(p) if (p := target.option("precision", "f32")) in _PRECISIONS else len(_PRECISIONS)
        )
        return not toolchains.for_target(target).optimises_whole_graphs, precision

    for target in sorted(targets, key=rank):
        if math.isfinite(best_s) and (reason := why_not(target, found)) is not None:
            found[target] = TargetBaseline(target, measure_session.availability(target), refusal=reason)
            continue
        say(f"measuring baseline: whole model on {target.short}")
        availability = measure_session.availability(target)
        if not availability.available:
            found[target] = TargetBaseline(target, availability)
            continue
        surveyed = _BaselineMeasurer(
            graph,
            target,
            kernels,
            estimator,
            measure_session,
            database,
            isinstance(toolchains.for_target(target), Importer),
        ).baselines(availability, _HOPELESS * best_s)
        found[target] = surveyed
        if surveyed.whole.time is not None:
            best_s = min(best_s, surveyed.whole.time.median_s)
    if sum(bool(surveyed.ranges) for surveyed in found.values()) > 1:
        found = {target: _remeasure(surveyed, kernels, estimator, best_s) for target, surveyed in found.items()}
    return {target: found[target] for target in targets}


def _remeasure(
    found: TargetBaseline, kernels: KernelMaker, estimator: MeasuringCostEstimator, best_s: float
) -> TargetBaseline:
    """Measure a whole model again, now that all other targets had their turn: the machine may be slow for seconds.

    Much depends on it: a search abandons kernels that are slower than the best single target.
    """
    whole = found.whole
    if whole.time is None or whole.time.median_s > _HOPELESS * best_s:
        return found
    again = estimator.measure_again(kernels.model(found.ranges[0], found.target), found.target, _HOPELESS * best_s)
    if again is None or again.time is None:
        return found if again is None else replace(found, outcomes=(again,))
    scale = again.time.median_s / whole.time.median_s
    return replace(found, outcomes=(again,), profile={i: scale * s for i, s in found.profile.items()})


@dataclass(frozen=True, slots=True)
class _BaselineMeasurer:
    """Asks one target, whose toolchain may be an ``Importer``."""

    graph: DataflowGraph
    target: Target
    kernels: KernelMaker
    estimator: MeasuringCostEstimator
    measure_session: MeasureSession
    database: Database
    can_import: bool

    def baselines(self, availability: Availability, abandon_above_s: float) -> TargetBaseline:
        everything = (1 << len(self.graph)) - 1
        if self.graph.kernel_call_bits:
            whole = Outcome(Status.REFUSED, reason="the model has kernels already")
        else:
            whole = self._measure([everything], abandon_above_s)[0]
        if whole.status in (Status.OK, Status.WRONG):
            support = {i: Support(True) for i in range(len(self.graph))}
            profile, known_by = self._profile([everything], [whole])
            return TargetBaseline(self.target, availability, support, (everything,), (whole,), profile, known_by)
        for by_import in (True, False) if self.can_import else (False,):
            support = self._probe(by_import=by_import)
            ranges = maximal_ranges(self.graph, support)
            outcomes = self._measure(ranges, abandon_above_s)
            # What can be read and not built refuses a whole range: then each operator is built.
            if all(outcome.status in (Status.OK, Status.WRONG) for outcome in outcomes):
                break
        profile, known_by = self._profile(ranges, outcomes)
        return TargetBaseline(
            self.target,
            availability,
            support,
            tuple(ranges),
            tuple(outcomes),
            profile,
            known_by,
            whole.reason or whole.status.value,
            whole.status,
        )

    def _measure(self, ranges: Sequence[int], abandon_above_s: float) -> list[Outcome]:
        return self.estimator.measure(
            [(self.kernels.model(bits, self.target), self.target) for bits in ranges], abandon_above_s
        )

    def _probe(self, *, by_import: bool) -> dict[int, Support]:
        """Compile each distinct operator once, or only import it; the answer is stored."""
        support: dict[int, Support] = {}
        asked: dict[str, Support] = {}
        for i in range(len(self.graph)):
            if self.graph.is_kernel_call(i):
                support[i] = Support(False, "it is a kernel that was made earlier")
                continue
            model = self.kernels.model(1 << i, self.target)
            structure = structure_of(model)
            if structure not in asked:
                name = {"structure": structure, "target": str(self.target)}
                name["build"] = self.measure_session.build_of(self.target)
                name["by"] = "import" if by_import else "build"
                session = self.measure_session
                answer = session.recall_fact(_SUPPORT, **name)
                if answer is None:
                    error = (session.try_import if by_import else session.try_build)(model, self.target)
                    answer = Support(error is None, None if error is None else str(error)[:500])
                    if error is None or not error.is_accident:
                        self.database.keep_fact(_SUPPORT, answer, **name)
                asked[structure] = answer
            support[i] = asked[structure]
        return support

    def _profile(self, ranges: Sequence[int], outcomes: Sequence[Outcome]) -> tuple[dict[int, float], dict[int, int]]:
        """Return the profile, scaled to the time that was measured without the profiler, and by what nodes are known."""
        profile: dict[int, float] = {}
        known_by: dict[int, int] = {}
        for bits, outcome in zip(ranges, outcomes, strict=True):
            if outcome.time is None:
                continue
            model = self.kernels.model(bits, self.target)
            key = self.measure_session.key(self.estimator.job(model, self.target)).digest
            steps = self.measure_session.recall_fact(_PROFILE, key=key)
            if steps is None:
                inputs, is_lasting = [str(value.name) for value in model.graph.inputs], True
                try:
                    told = self.measure_session.profile(model, self.target, inputs)
                    steps = tuple(Step(nodes, seconds) for nodes, seconds in told.items())
                except ToolchainError as error:
                    steps, is_lasting = (), not error.is_accident
                if is_lasting:
                    self.database.keep_fact(_PROFILE, steps, key=key)
            members = [i for i in range(len(self.graph)) if bits >> i & 1]
            seconds, mains = attributed(steps, members, self.graph.producers, outcome.time.median_s)
            profile.update(seconds)
            known_by.update(mains)
        return profile, known_by


def attributed(
    steps: Sequence[Step], members: Sequence[int], producers: Callable[[int], Iterable[int]], total_s: float
) -> tuple[dict[int, float], dict[int, int]]:
    """Return the seconds of nodes by a profile, and the node with whose seconds those of each are.

    Args:
        steps: The profile.
        members: The nodes of the kernel by their places, in an order in which they can run.
        producers: Returns the nodes whose results a node reads.
        total_s: Seconds of all nodes together.

    Returns:
        Both are empty if the steps take no time, or name places that the kernel does not have.
    """
    measured_s = sum(step.seconds for step in steps)
    if not measured_s > 0 or not all(step.nodes and max(step.nodes) < len(members) for step in steps):
        return {}, {}
    seconds, known_by = dict.fromkeys(members, 0.0), dict[int, int]()
    for step in steps:
        main, *others = (members[place] for place in step.nodes)
        seconds[main] += step.seconds * total_s / measured_s
        known_by.update(dict.fromkeys(others, main))
    for i in members:
        if seconds[i] > 0:
            known_by[i] = i
        elif i not in known_by:  # What no step names was computed with what it reads.
            known_by[i] = next((known_by[p] for p in producers(i) if p in known_by), i)
    return seconds, known_by


def maximal_ranges(graph: DataflowGraph, support: Mapping[int, Support]) -> list[int]:
    """The maximal runs of consecutive nodes that are all supported, largest first, as bits."""
    runs: list[tuple[int, int]] = []
    for i in range(len(graph)):
        if support[i].ok:
            if runs and runs[-1][1] == i:
                runs[-1] = (runs[-1][0], i + 1)
            else:
                runs.append((i, i + 1))
    runs.sort(key=lambda run: (run[0] - run[1], run[0]))
    return [(1 << end) - (1 << start) for start, end in runs[:_MOST_RANGES]]
