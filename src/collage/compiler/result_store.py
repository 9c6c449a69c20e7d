"""The result of a compilation, and the store that keeps it: the same command again measures nothing.

A result is kept under everything that it depends on: the model with its weights, the candidates that today's rules propose,
the menu with the builds of its toolchains, this machine, the devices and the options. So compilations under other options
share timings, and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from collage._errors import UsageError
from collage.compiler.cost_table import CostTable
from collage.compiler.final_comparison import BASELINE, FinalComparison, finalist_of
from collage.compiler.planned import plan_file_of, plan_of_file, target_on
from collage.compiler.plans import estimate_s, predicted_s, with_costs
from collage.compiler.problem import Problem
from collage.cost.statistics import Interval, Summary
from collage.cost.workload_key import METHOD, runtime_settings
from collage.database import FactKind
from collage.explain import Record, trimmed
from collage.frontend import model_digest
from collage.fusion import CandidateKernel, FusionReport
from collage.measure.finalist import FinalistResult
from collage.measure.session import MeasureSession
from collage.measure.tuning_records import tuned_digest
from collage.numerics.value_store import ValueStore
from collage.plan import Plan
from collage.plan_file import PlanFile
from collage.report import SearchFacts
from collage.search import SearchResult
from collage.system.codec import Share
from collage.system.machine import this_machine

__all__ = ["CompileResult", "ResultStore", "search_facts"]

_ELSEWHERE = (
    "db",
    "remeasure",
    "dims",
    "fixed",
    "inputs",
    "data",
    "devices",
    "fusion",
    "launch_penalties_s",
    "plan",
    "plan_out",
    "specialise",
)
"""Options that do not decide which plan is found, or that another part of the key stands for."""


def search_facts(
    problem: Problem,
    candidates: Iterable[CandidateKernel],
    result: SearchResult[CandidateKernel] | None,
    fusion: FusionReport,
) -> SearchFacts:
    """Return the work of a search, as far as the search itself knows of it.

    Args:
        problem: The model.
        candidates: Among which it was searched.
        result: Its result; None if it was not started.
        fusion: The outcomes of the candidates that rules proposed.
    """
    candidates = list(candidates)
    facts = SearchFacts(
        stopped_by="not started",
        candidates=len(candidates),
        keys=len({problem.key_of(candidate) for candidate in candidates}),
        rounds=1,
        caps=tuple(fusion.capped),
        notes=tuple(fusion.notes),
    )
    if result is None:
        return facts
    found, statistics = result.partitioning, result.statistics
    return replace(
        facts,
        algorithm=result.strategy,
        stopped_by=result.stopped_by,
        states=statistics.states,
        rounds=statistics.rounds,
        caps=(*facts.caps, *statistics.caps),
        optimal=found is not None and found.optimal,
        gap=None if found is None else found.gap,
    )


@dataclass(frozen=True, slots=True)
class CompileResult:
    """The result of a compilation.

    Attributes:
        finals: The winner, and how the other plans compare.
        search: Figures of the search.
        estimates_s: Expected seconds of each kernel of a plan, by the name of the plan.
        predicted_s: Expected seconds of a whole plan, by its name.
        kernels_ok: True if every kernel of the winner was measured and is right; None if one was not measured.
        kernels_error: Largest error of the winner's kernels, where it is known.
        is_remembered: An earlier compilation found it.
        is_final: It was kept, and the same command again need not race any of its plans.
        tried: The record of what was tried; None if an earlier version kept the result without one.
        strategy_faults: The fault with the search strategy that the user chose. Such a result is not kept.
    """

    finals: FinalComparison
    search: SearchFacts
    estimates_s: Mapping[str, tuple[float | None, ...]]
    predicted_s: Mapping[str, float | None]
    kernels_ok: bool | None = None
    kernels_error: float | None = None
    is_remembered: bool = False
    is_final: bool = False
    tried: Record | None = None
    strategy_faults: tuple[str, ...] = ()

    @classmethod
    def of(cls, problem: Problem, costs: CostTable, finals: FinalComparison, search: SearchFacts) -> CompileResult:
        """Return the result of a comparison, with the expected times of its plans."""
        kernels = () if finals.plan is None else finals.plan.kernels
        outcomes = [costs.outcome_of(kernel) for kernel in kernels]
        known = [outcome for outcome in outcomes if outcome is not None]
        return cls(
            finals,
            search,
            {plan.name: tuple(estimate_s(costs, kernel) for kernel in plan.kernels) for plan in finals.plans},
            {plan.name: predicted_s(problem, costs, plan) for plan in finals.plans},
            all(outcome.ok for outcome in known) if len(known) == len(outcomes) else None,
            max((outcome.error for outcome in known if outcome.error is not None), default=None),
            strategy_faults=costs.strategy_faults,
        )

    @classmethod
    def unmeasured(cls, finals: FinalComparison) -> CompileResult:
        """Return the result where nothing could be measured."""
        estimates: dict[str, tuple[float | None, ...]] = {p.name: (None,) * len(p.kernels) for p in finals.plans}
        return cls(
            finals,
            SearchFacts(stopped_by="not started", rounds=1),
            estimates,
            {plan.name: None for plan in finals.plans},
        )


@dataclass(frozen=True, slots=True)
class _StoredPlan:
    """A plan of a stored result.

    Attributes:
        file: Its kernels, as in a plan file.
        single: The target that runs the whole model alone, if one does.
        estimates_s: See ``CompileResult``.
        predicted_s: See ``CompileResult``.
    """

    file: PlanFile
    single: str | None
    estimates_s: tuple[Share | None, ...]
    predicted_s: Share | None


@dataclass(frozen=True, slots=True)
class _StoredResult:
    """A result as the database keeps it; see ``CompileResult`` and ``FinalComparison``.

    Attributes:
        winner: Name of the winning plan.
        plans: All plans, by name.
        standings: The result of each plan, and of the baseline, by name. The arguments of finalists are left out.
    """

    winner: str
    plans: Mapping[str, _StoredPlan]
    standings: Mapping[str, FinalistResult]
    time: Summary | None
    speedup: tuple[Share, Interval] | None
    rivals: Mapping[str, Interval]
    overruled: str | None
    shares: tuple[Share, ...]
    additive_error: float | None
    kernels_ok: bool | None
    kernels_error: Share | None
    search: SearchFacts


_RESULT: FactKind[_StoredResult] = FactKind("result", _StoredResult)
_TRIED: FactKind[Record] = FactKind("tried", Record)


class ResultStore:
    """The place of one compilation's result in the database.

    Args:
        problem: The model, the menu and the options.
        session: Knows the builds of the toolchains, and the lengths on which kernels are timed.
        candidates: The candidates of the fusion rules.
    """

    def __init__(self, problem: Problem, session: MeasureSession, candidates: Iterable[CandidateKernel]) -> None:
        self._problem = problem
        self._session = session
        self._database = session.database
        tuned = tuned_digest(session.database) if problem.options.use_tuned else None
        self._name = {**_name_of(problem, session), "candidates": _digest_of(candidates), "tuned": tuned}

    def load(self) -> CompileResult | None:
        """Return the result of the last compilation like this one; None if there is none, or it does not fit."""
        stored = self._database.local_fact(_RESULT, **self._name)
        try:
            plans = {} if stored is None else {name: self._plan(name, plan) for name, plan in stored.plans.items()}
        except UsageError:
            return None
        if stored is None or stored.winner not in plans:
            return None
        standings = {
            name: replace(standing, finalist=finalist_of(self._problem, self._session, plans[name], None))
            if name in plans
            else standing
            for name, standing in stored.standings.items()
            if name in plans or name == BASELINE
        }
        finals = FinalComparison(
            None,
            plans[stored.winner],
            list(plans.values()),
            standings,
            stored.time,
            stored.speedup,
            additive_error=stored.additive_error,
            rivals={name: interval for name, interval in stored.rivals.items() if name in plans},
            overruled=stored.overruled,
            shares=stored.shares,
        )
        return CompileResult(
            finals,
            stored.search,
            {name: plan.estimates_s for name, plan in stored.plans.items()},
            {name: plan.predicted_s for name, plan in stored.plans.items()},
            stored.kernels_ok,
            stored.kernels_error,
            is_remembered=True,
            tried=self._tried(),
        )

    def keep(self, result: CompileResult) -> None:
        """Keep a result for the next compilation like this one."""
        finals = result.finals
        assert finals.plan is not None
        stored = _StoredResult(
            winner=finals.plan.name,
            plans={plan.name: self._stored(result, plan) for plan in finals.plans},
            standings={name: _without_files(standing) for name, standing in finals.standings.items()},
            time=finals.time,
            speedup=finals.speedup,
            rivals=finals.rivals,
            overruled=finals.overruled,
            shares=finals.shares,
            additive_error=finals.additive_error,
            kernels_ok=result.kernels_ok,
            kernels_error=result.kernels_error,
            search=result.search,
        )
        self._database.keep_local_fact(_RESULT, stored, **self._name)
        if result.tried is not None:
            self._database.keep_local_fact(_TRIED, trimmed(replace(result.tried, names=())), **self._name)

    def _tried(self) -> Record | None:
        """Return the record of what was tried, with the names that operators have now; None if there is none."""
        record = self._database.local_fact(_TRIED, **self._name)
        names = tuple(str(node.name) for node in self._problem.graph.nodes)
        return None if record is None or len(record.names) != len(names) else replace(record, names=names)

    def _stored(self, result: CompileResult, plan: Plan) -> _StoredPlan:
        file = plan_file_of(self._problem, plan, "", lambda target: target.title)
        single = None if plan.single is None else plan.single.title
        return _StoredPlan(file, single, result.estimates_s[plan.name], result.predicted_s[plan.name])

    def _plan(self, name: str, stored: _StoredPlan) -> Plan:
        """Return a plan of this model.

        Raises:
            UsageError: Its kernels do not cover the model, or are not for this menu and these devices.
        """
        plan = plan_of_file(self._problem, stored.file, "")
        single = None if stored.single is None else target_on(self._problem, stored.single)
        if len(stored.estimates_s) != len(plan.kernels):
            raise UsageError(f"{len(stored.estimates_s)} costs of {len(plan.kernels)} kernels")
        return with_costs(replace(plan, name=name, single=single), stored.estimates_s)


def _without_files(standing: FinalistResult) -> FinalistResult:
    """Return a result whose finalist only names its target, if it does: its files go with the workspace."""
    finalist = standing.finalist
    target = {key: value for key, value in finalist.arguments.items() if key == "target"}
    return replace(standing, finalist=replace(finalist, arguments=target))


def _name_of(problem: Problem, session: MeasureSession) -> dict[str, Any]:
    """Return everything that the result of a compilation depends on, except its candidates."""
    options, placement = problem.options, problem.placement
    return {
        "method": METHOD,
        "model": model_digest(problem.model),
        "menu": [[target.title, problem.is_bound(target), session.build_of(target)] for target in problem.menu],
        "machine": this_machine().fingerprint,
        "settings": runtime_settings(),
        "devices": None if placement is None else placement.digest,
        "tolerance": problem.tolerance,
        "occasions": [[_shapes(problem, values), weight] for values, weight in session.occasions],
        "options": {f.name: getattr(options, f.name) for f in fields(options) if f.name not in _ELSEWHERE},
        "penalties": dict(options.launch_penalties_s),
        "data": None if options.data is None else options.data.digest,
        "rival": None if problem.part.rival is None else problem.part.rival.digest,
    }


def _shapes(problem: Problem, values: ValueStore) -> list[list[int]]:
    return [list(values.shape(str(v.name))) for v in problem.model.graph.inputs if v.name in values]


def _digest_of(candidates: Iterable[CandidateKernel]) -> str:
    """Return a digest of the proposed kernels. It differs for two fusion rules that propose different kernels."""
    rows = sorted(f"{c.target.title} {c.bits:x} {c.sub_graph.nested}" for c in candidates)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()
