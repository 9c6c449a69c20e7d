"""The result of a compilation, and the store that keeps it: the same command again measures nothing.

A result is kept under everything that it depends on: the model with its weights, the candidates that today's rules propose,
the menu with the builds of its toolchains, this machine, the devices and the options. So compilations under other options
share timings, and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import Any

from collage._errors import TargetError, UsageError
from collage.compiler.cost_table import CostTable
from collage.compiler.final_comparison import BASELINE, FinalComparison, finalist_of
from collage.compiler.plans import Plan, PlannedKernel, estimate_s, predicted_s, with_costs
from collage.compiler.problem import Problem
from collage.cost.outcome import Status
from collage.cost.statistics import Interval, Summary
from collage.cost.workload_key import METHOD, runtime_settings
from collage.database.database import Database
from collage.explain import TriedRecord, as_json, from_json
from collage.frontend import model_digest
from collage.fusion import CandidateKernel, FusionReport
from collage.graph import ANY_VALID, IndexSet, NestedSubGraph, SubGraph
from collage.measure.finalist import Finalist, FinalistResult
from collage.measure.session import MeasureSession
from collage.measure.tuning_records import TuningRecords
from collage.numerics.value_store import ValueStore
from collage.search import SearchResult, kernel_successors
from collage.system.machine import this_machine
from collage.target import HOST_TARGET, Target
from collage.toolchains import TUNED

__all__ = ["CompileResult", "ResultStore", "SearchSummary"]

_FACT = "plan-4"
_TRIED_FACT = "tried-1"
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
)
"""Options that do not decide which plan is found, or that another part of the key stands for."""

_OWN_OPTIONS = ("trials", "seed", "threads")
"""Options that the kernels of a plan may have beside those of the menu: tuned ones, and those of branches."""


@dataclass(frozen=True, slots=True)
class SearchSummary:
    """The work of a search, for the report.

    Attributes:
        stopped_by: See ``SearchResult``; ``not started`` where there was nothing to search.
        candidates: Number of candidates.
        keys: Number of distinct kernels among them.
        states: Covered sets settled.
        rounds: Times that the best path was searched again.
        caps: Limits that were hit.
        optimal: True if no cover by the candidates can cost less.
        gap: Share of its cost that a better cover could save at most.
        strategy: The name of the strategy that ran.
        notes: The reasons why candidates were left out, a sentence each.
        tuning: A sentence on the kernels that ``--tune`` tuned; empty without it.
    """

    stopped_by: str = "not started"
    candidates: int = 0
    keys: int = 0
    states: int = 0
    rounds: int = 1
    caps: tuple[str, ...] = ()
    optimal: bool = False
    gap: float | None = None
    strategy: str = "none"
    notes: tuple[str, ...] = ()
    tuning: str = ""

    @classmethod
    def of(
        cls,
        problem: Problem,
        candidates: Iterable[CandidateKernel],
        result: SearchResult[CandidateKernel] | None,
        fusion: FusionReport,
    ) -> SearchSummary:
        """Return the summary of a search.

        Args:
            problem: The model.
            candidates: Among which it was searched.
            result: Its result; None if it was not started.
            fusion: The outcomes of the candidates that rules proposed.
        """
        candidates = list(candidates)
        keys = {problem.key_of(candidate.sub_graph, candidate.target) for candidate in candidates}
        capped, notes = tuple(fusion.capped), tuple(fusion.notes)
        if result is None:
            return cls(candidates=len(candidates), keys=len(keys), caps=capped, notes=notes)
        found, statistics = result.partitioning, result.statistics
        return cls(
            result.stopped_by,
            len(candidates),
            len(keys),
            statistics.states,
            statistics.rounds,
            (*capped, *statistics.caps),
            found is not None and found.optimal,
            None if found is None else found.gap,
            result.strategy,
            notes,
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
        tried: The record of what was tried; None if an earlier version kept the result without one.
        strategy_faults: The fault with the search strategy that the user chose. Such a result is not kept.
    """

    finals: FinalComparison
    search: SearchSummary
    estimates_s: Mapping[str, tuple[float | None, ...]]
    predicted_s: Mapping[str, float | None]
    kernels_ok: bool | None = None
    kernels_error: float | None = None
    is_remembered: bool = False
    tried: TriedRecord | None = None
    strategy_faults: tuple[str, ...] = ()

    @classmethod
    def of(cls, problem: Problem, costs: CostTable, finals: FinalComparison, search: SearchSummary) -> CompileResult:
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
        return cls(finals, SearchSummary(), estimates, {plan.name: None for plan in finals.plans})


class ResultStore:
    """The place of one compilation's result in the database.

    Args:
        problem: The model, the menu and the options.
        session: Knows the builds of the toolchains, and the lengths on which kernels are timed.
        database: The database that holds it.
        candidates: The candidates of the fusion rules.
    """

    def __init__(
        self, problem: Problem, session: MeasureSession, database: Database, candidates: Iterable[CandidateKernel]
    ) -> None:
        self._problem = problem
        self._session = session
        self._database = database
        tuned = TuningRecords(session, database).digest if problem.options.use_tuned else None
        self._name = {**_name_of(problem, session), "candidates": _digest_of(candidates), "tuned": tuned}

    def load(self) -> CompileResult | None:
        """Return the result of the last compilation like this one; None if there is none, or it does not fit."""
        told = self._database.local_fact(**self._name)
        if told is None:
            return None
        plans = [self._plan(each) for each in told["plans"]]
        if None in plans:
            return None
        known = {plan.name: plan for plan in plans if plan is not None}
        standings = {each["name"]: each["standing"] for each in told["plans"]}
        winner = known[told["winner"]]
        finals = FinalComparison(
            None,
            winner,
            list(known.values()),
            {
                name: _standing(finalist_of(self._problem, self._session, known[name], None), standing)
                for name, standing in standings.items()
                if standing is not None
            },
            told["time"] and Summary(*told["time"]),
            told["speedup"] and (told["speedup"][0], Interval(*told["speedup"][1:])),
            additive_error=told["additive_error"],
            rivals={name: Interval(*interval) for name, interval in told["rivals"].items() if name in known},
            overruled=told["overruled"],
            shares=tuple(told["shares"]),
        )
        if told["baseline"] is not None:
            arguments = {"target": told["baseline"]["target"]}
            entry = Finalist(BASELINE, "", arguments, is_candidate=False)
            finals.standings[BASELINE] = _standing(entry, told["baseline"]["standing"])
        return CompileResult(
            finals,
            SearchSummary(**{**told["search"], **{name: tuple(told["search"][name]) for name in ("caps", "notes")}}),
            {each["name"]: tuple(kernel["estimate_s"] for kernel in each["kernels"]) for each in told["plans"]},
            {each["name"]: each["predicted_s"] for each in told["plans"]},
            told["kernels_ok"],
            told["kernels_error"],
            is_remembered=True,
            tried=self._tried(),
        )

    def keep(self, result: CompileResult) -> None:
        """Keep a result for the next compilation like this one."""
        finals = result.finals
        assert finals.plan is not None
        baseline = finals.standings.get(BASELINE)
        target = None if baseline is None else baseline.finalist.arguments.get("target")
        told = {
            "winner": finals.plan.name,
            "plans": [self._told(result, plan) for plan in finals.plans],
            "time": finals.time and list(astuple(finals.time)),
            "speedup": finals.speedup and [finals.speedup[0], *finals.speedup[1].as_list()],
            "overruled": finals.overruled,
            "shares": list(finals.shares),
            "baseline": None if baseline is None else {"target": target, "standing": _standing_told(baseline)},
            "rivals": {name: interval.as_list() for name, interval in finals.rivals.items()},
            "additive_error": finals.additive_error,
            "kernels_ok": result.kernels_ok,
            "kernels_error": result.kernels_error,
            "search": {**asdict(result.search), "caps": list(result.search.caps), "notes": list(result.search.notes)},
        }
        self._database.keep_local_fact(told, **self._name)
        if result.tried is not None:
            tried = as_json(replace(result.tried, names=()))
            self._database.keep_local_fact(tried, **{**self._name, "fact": _TRIED_FACT})

    def _tried(self) -> TriedRecord | None:
        """Return the record of what was tried, without names; None if there is none, or it cannot be read."""
        told = self._database.local_fact(**{**self._name, "fact": _TRIED_FACT})
        try:
            return None if told is None else from_json(told)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def _told(self, result: CompileResult, plan: Plan) -> dict[str, Any]:
        standing = result.finals.standings.get(plan.name)
        return {
            "name": plan.name,
            "single": None if plan.single is None else plan.single.title,
            "kernels": [
                {
                    "target": kernel.target.title,
                    "nodes": list(kernel.sub_graph.inside),
                    "parts": list(map(_as_json, kernel.sub_graph.nested)),
                    "bodies": self._problem.kernels.bodies.as_json(kernel.target),
                    "rule": kernel.rule,
                    "device": None if kernel.device is None else str(kernel.device),
                    "branch": kernel.branch,
                    "tuned": self._tuned(kernel),
                    "estimate_s": estimate,
                }
                for kernel, estimate in zip(plan.kernels, result.estimates_s[plan.name], strict=True)
            ],
            "predicted_s": result.predicted_s[plan.name],
            "standing": None if standing is None else _standing_told(standing),
        }

    def _tuned(self, kernel: PlannedKernel) -> str | None:
        """Return the records that a tuned kernel is built from."""
        return self._problem.kernels.model(kernel.sub_graph, kernel.target).metadata_props.get(TUNED)

    def _plan(self, told: Mapping[str, Any]) -> Plan | None:
        """Return a plan of this model; None if its kernels do not cover the model, or are not for this menu and these devices."""
        kernels = [kernel for each in told["kernels"] if (kernel := self._kernel(each)) is not None]
        nodes = sorted(node for each in told["kernels"] for node in each["nodes"])
        single = None if told["single"] is None else self._target(told["single"])
        if nodes != list(range(len(self._problem.graph))) or (single is None) != (told["single"] is None):
            return None
        after = kernel_successors(self._problem.graph, [kernel.sub_graph.inside.bits for kernel in kernels])
        is_in_order = all(later > i for i, fed in enumerate(after) for later in fed)
        is_whole = len(kernels) == len(told["kernels"]) and is_in_order
        plan = Plan(told["name"], tuple(kernels), single, self._problem.placement)
        return with_costs(plan, [each["estimate_s"] for each in told["kernels"]]) if is_whole else None

    def _kernel(self, told: Mapping[str, Any]) -> PlannedKernel | None:
        placement, device = self._problem.placement, None
        target = self._target(told["target"]) if told["bodies"] is None else self._with_bodies(told)
        if target is None or not told["nodes"] or max(told["nodes"]) >= len(self._problem.graph):
            return None
        parts = [_from_json(part) for part in told["parts"]]
        sub_graph = SubGraph(self._problem.graph, IndexSet.of(*told["nodes"]), parts)
        if sub_graph.why_ill_formed(ANY_VALID) is not None:
            return None
        if placement is not None:
            allowed = placement.devices_for(sub_graph.nodes, target)
            device = next((each for each in allowed if str(each) == told["device"]), None)
            if not allowed or (device is None) != (told["device"] is None):
                return None
        if told["tuned"] is not None:
            self._problem.kernels.annotate(sub_graph, target, {TUNED: told["tuned"]})
        return PlannedKernel(sub_graph, target, told["rule"], device, told["branch"])

    def _with_bodies(self, told: Mapping[str, Any]) -> Target | None:
        """Return the target of an operator whose bodies are kernels of their own; None if they are not of this model."""

        def known(text: str) -> Target:
            if (target := self._target(text)) is None:
                raise UsageError(f"{text!r} is not on the menu")
            return target

        try:
            (index,) = told["nodes"]
            node = self._problem.graph.node(index)
            return self._problem.kernels.bodies.read(node, told["bodies"], known, self._session.build_of)
        except (UsageError, ValueError, IndexError):
            return None

    def _target(self, text: str) -> Target | None:
        """Return the target of the menu with this text, or the variant of one; None if there is none."""
        known = {target.title: target for target in (*self._problem.menu, HOST_TARGET)}
        if text in known:
            return known[text]
        try:
            target = Target.parse(text)
        except TargetError:
            return None
        options = dict(target.options)
        own = {name: options.pop(name) for name in _OWN_OPTIONS if name in options}
        plain = Target(target.kind, target.compiler, target.libs, tuple(options.items()))
        return known[str(plain)].with_options(**own) if own and str(plain) in known else None


def _standing_told(standing: FinalistResult) -> dict[str, Any]:
    ratio = standing.ratio
    return {
        "status": standing.status.value,
        "time": standing.time and list(astuple(standing.time)),
        "reason": standing.reason,
        "errors": [standing.max_abs, standing.max_rel],
        "paired_s": standing.paired_s,
        "ratio": ratio and [ratio[0], *ratio[1].as_list()],
        "rounds_s": list(standing.rounds_s),
        "slower": list(standing.slower),
        "lost": standing.lost,
    }


def _standing(entry: Finalist, told: Mapping[str, Any]) -> FinalistResult:
    time, ratio = told["time"], told["ratio"]
    return FinalistResult(
        entry,
        Status(told["status"]),
        time and Summary(*time),
        told["reason"],
        max_abs=told["errors"][0],
        max_rel=told["errors"][1],
        paired_s=told["paired_s"],
        ratio=ratio and (ratio[0], Interval(*ratio[1:])),
        rounds_s=tuple(told["rounds_s"]),
        slower=tuple(told["slower"]),
        lost=told["lost"],
    )


def _as_json(part: NestedSubGraph) -> dict[str, Any]:
    return {"nodes": list(part.inside), "label": part.label, "parts": list(map(_as_json, part.nested))}


def _from_json(told: Mapping[str, Any]) -> NestedSubGraph:
    return NestedSubGraph(IndexSet.of(*told["nodes"]), told["label"], tuple(map(_from_json, told["parts"])))


def _name_of(problem: Problem, session: MeasureSession) -> dict[str, Any]:
    """Return everything that the result of a compilation depends on, except its candidates."""
    options, placement = problem.options, problem.placement
    return {
        "fact": _FACT,
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
    }


def _shapes(problem: Problem, values: ValueStore) -> list[list[int]]:
    return [list(values.shape(str(v.name))) for v in problem.model.graph.inputs if v.name in values]


def _digest_of(candidates: Iterable[CandidateKernel]) -> str:
    """Return a digest of the proposed kernels. It differs for two fusion rules that propose different kernels."""
    rows = sorted(f"{c.target.title} {c.bits:x} {c.sub_graph.nested}" for c in candidates)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()
