"""The problem that a compilation solves: a prepared model, a menu, and what the user decided."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from collage.compiler.choices import Choices
from collage.compiler.device_placement import DevicePlacement
from collage.fusion import CandidateKernel, FusionOptions
from collage.graph import DataflowGraph
from collage.measure.estimator import model_tolerance
from collage.measure.jobs import weight_bytes
from collage.measure.kernel_factory import KernelMaker
from collage.measure.session import MeasureSession
from collage.measure.track import LEGS, ComparisonPlan
from collage.options import CompileOptions
from collage.plan import AnyKernel
from collage.plan_file import PlanFile
from collage.system.machine import free_memory_bytes
from collage.target import Target
from collage.toolchains import Registry

__all__ = ["Part", "Problem", "Rival", "with_reduced_precision"]


@dataclass(frozen=True, slots=True)
class Rival:
    """A plan that another one has to beat.

    Attributes:
        artefact: Its artefact.
        digest: Digest of its kernels. Results that were compared with it are kept under it.
    """

    artefact: Path
    digest: str


@dataclass(frozen=True, slots=True)
class Part:
    """One of several compilations of a model: its share of the limits, the plan that it has to beat, and one to begin with.

    Attributes:
        budget: Share of the user's budgets of time and kernels.
        search: Share of the usual limits on a search, where the user gives none.
        rival: The plan to beat, in place of the original file; None for the first compilation.
        plan: The plan of an earlier part at other lengths. Its kernels are all candidates beside single targets, if they fit.
            None has the fusion rules propose candidates.
        refused: Targets that were refused where the first compilation was judged, and are not tried again.
    """

    budget: float = 1.0
    search: float = 1.0
    rival: Rival | None = None
    plan: PlanFile | None = None
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Problem:
    """A model to be compiled, with the targets and options.

    Attributes:
        model: The prepared model, its large weights in one file.
        graph: Its dataflow graph.
        menu: The targets, preferred ones first.
        toolchains: The registry of their toolchains.
        options: The options of the user.
        placement: The devices that operators run on; None if nothing was asked for.
        kernels: Makes the kernels of the model.
        tolerance: Largest error of an output that counts as right.
        strict_tolerance: The same if sums of products of bytes may not saturate.
        comparison_plan: Lengths of the end-to-end comparison.
        choices: Operators that the user forces to a target, or forbids to one.
        source: Digest of the model as the user gave it.
        part: Its share of the limits, if several compilations share them.
    """

    model: ir.Model
    graph: DataflowGraph
    menu: tuple[Target, ...]
    toolchains: Registry
    options: CompileOptions
    placement: DevicePlacement | None
    kernels: KernelMaker
    tolerance: float
    strict_tolerance: float
    comparison_plan: ComparisonPlan
    choices: Choices = field(default_factory=Choices)
    source: str = ""
    part: Part = Part()

    @classmethod
    def of(
        cls,
        model: ir.Model,
        menu: Sequence[Target],
        toolchains: Registry,
        options: CompileOptions,
        placement: DevicePlacement | None = None,
    ) -> Problem:
        """Return the problem of compiling a prepared model whose weights have their place."""
        graph = DataflowGraph(model)
        strict = max(model_tolerance(model, saturating=False), options.accuracy_budget or 0.0)
        return cls(
            model,
            graph,
            tuple(menu),
            toolchains,
            options,
            placement,
            KernelMaker(graph),
            strict if options.accuracy_budget else model_tolerance(model),
            strict,
            replace(ComparisonPlan.of_model(weight_bytes(model), free_memory_bytes()), neighbour=options.neighbour),
            Choices.of(graph, menu, options.force, options.forbid),
        )

    def ending_at(self, ends_at: float) -> Problem:
        """Return the problem with a search and a comparison that end by this value of ``time.monotonic()``."""
        return replace(self, comparison_plan=replace(self.comparison_plan, ends_at=ends_at))

    def as_part(self, part: Part) -> Problem:
        """Return the problem as a part of a compilation. If it has a plan to beat, the others are not reported."""
        if part.rival is None:
            return replace(self, part=part)
        return replace(self, part=part, comparison_plan=replace(self.comparison_plan, legs=LEGS, is_brief=True))

    @property
    def time_budget_s(self) -> float | None:
        """The seconds that the user allows this part of the compilation; None if there is no limit."""
        budget_s = self.options.time_budget_s
        return None if budget_s is None else self.part.budget * budget_s

    @property
    def is_placed_by_search(self) -> bool:
        """True if the search chooses devices."""
        return self.placement is not None and self.placement.is_free

    def is_bound(self, target: Target) -> bool:
        """Return True if the user said which kernels a target may have; see ``FusionOptions.binds``."""
        return (self.options.fusion or FusionOptions()).binds(target)

    def key_of(self, kernel: AnyKernel) -> tuple[Hashable, Target]:
        """Return a key that kernels share if they cost the same: twelve equal layers are measured once."""
        return self.kernels.key(kernel), kernel.target.without_rule

    def kernel_of(self, kernel: AnyKernel) -> tuple[ir.Model, Target]:
        """Return a kernel as a standalone model, with its target."""
        return self.kernels.of(kernel), kernel.target

    def priority(self, target: Target) -> int:
        """Return the rank of a target on the menu, 0 first; the host comes last."""
        return self.menu.index(target) if target in self.menu else len(self.menu)

    def within_devices(self, candidates: Iterable[CandidateKernel]) -> list[CandidateKernel]:
        """Return the candidates that the user's choices allow, and one device whose plan their target refines."""
        allowed = self.choices.within(candidates)
        return allowed if self.placement is None else list(self.placement.within(allowed))


def with_reduced_precision(
    menu: Sequence[Target], session: MeasureSession, options: CompileOptions
) -> tuple[Target, ...]:
    """Return a menu with variants of its targets in coarser types.

    These are the ones that this machine computes faster, and if time does not decide, those of small weights.
    """
    reduced = []
    for target in menu:
        found = session.availability(target)
        precisions = [*found.precisions, *(() if options.time_decides else found.compact)]
        if target.option("precision") is None:
            reduced += [target.with_options(precision=precision) for precision in precisions]
    return tuple(dict.fromkeys([*menu, *reduced]))
