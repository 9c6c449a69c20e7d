"""The collector of the record of what was tried: candidates, targets and borders of one compilation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from collage.compiler.break_even import Priced, Rest, cheapest_rests
from collage.compiler.cost_table import CostTable
from collage.compiler.final_comparison import FinalComparison
from collage.compiler.lab import Lab
from collage.compiler.plans import predicted_s
from collage.compiler.problem import Problem
from collage.compiler.refusals import in_short
from collage.cost.cost import Cost
from collage.cost.outcome import Outcome
from collage.explain import Border, NodeRanges, Record, TargetAnswer, TriedKernel
from collage.fusion import CandidateKernel, FusionReport, FusionSpec, UnionFusionRule
from collage.graph import IndexSet, SubGraph, kernels_of, operators_of, value_nbytes
from collage.plan import AnyKernel, Identity, Plan, PlannedKernel, identity_of
from collage.runtime import KernelRecord
from collage.search import SearchResult
from collage.status import Status
from collage.target import Target

__all__ = ["record_of_build", "record_of_plan", "record_of_trials"]

_RUNNER_UP = FusionSpec("runner-up", UnionFusionRule(()), ())
_MOST_VALUES = 8
_NOT_ALLOWED = "it was not to be chosen: forced to another target, or forbidden"
# The order in which candidates are kept: faults, refusals and measurements, then near misses.
_INTEREST = {Status.OK: 1, Status.PREDICTED: 2, Status.NOT_MEASURED: 3}


def record_of_trials(
    lab: Lab,
    finals: FinalComparison,
    *,
    has_costs: bool = False,
    found: SearchResult[CandidateKernel] | None = None,
    fusion: FusionReport | None = None,
) -> Record:
    """Return the record of a compilation that ends with these finals.

    Args:
        lab: The answers of the targets about the whole model, and the costs of kernels.
        finals: The comparison, with its winner.
        has_costs: True if kernels were measured.
        found: The result of the last search; None if there was none.
        fusion: Notes on candidates that were left out.
    """
    plan = finals.plan
    assert plan is not None
    problem, costs = lab.problem, lab.costs if has_costs else None
    collector = _Collector(lab, costs)
    collector.add_candidates(plan)
    predicted = None if costs is None else predicted_s(problem, costs, plan)
    rows = collector.priced(plan, predicted)
    chosen = [rows.pop(identity_of(place)) for place in plan.kernels]
    return Record(
        names=tuple(str(node.name) for node in problem.graph.nodes),
        op_types=tuple(node.op_type for node in problem.graph.nodes),
        tried=(*chosen, *sorted(rows.values(), key=lambda row: _interest(row, _us(predicted)))),
        borders=tuple(collector.borders(plan)),
        targets=tuple(collector.answer(target) for target in lab.survey.baselines),
        stopped_by="not started" if found is None else found.stopped_by,
        min_gain=problem.options.min_gain,
        notes=() if fusion is None else tuple(dict.fromkeys(fusion.notes)),
    )


def record_of_plan(problem: Problem, plan: Plan, note: str) -> Record:
    """Return the record of a plan that no measured search found, with the origin of the plan."""
    return Record(
        names=tuple(str(node.name) for node in problem.graph.nodes),
        op_types=tuple(node.op_type for node in problem.graph.nodes),
        tried=tuple(
            TriedKernel(
                NodeRanges.from_bits(place.sub_graph.inside.bits),
                str(place.target),
                Status.NOT_MEASURED,
                rule=place.rule,
            )
            for place in plan.kernels
        ),
        notes=(note,),
    )


def record_of_build(model: ir.Model, kernels: Sequence[KernelRecord], note: str) -> Record:
    """Return the record of a partitioned model without a search: its operators, and a row for each kernel.

    Args:
        model: The partitioned model.
        kernels: Its kernels, in the order in which they run.
        note: The origin of the partitioning.
    """
    functions = {str(call.node.name): call.function for call in kernels_of(model)}
    names, types, tried = list[str](), list[str](), list[TriedKernel]()
    for kernel in kernels:
        function, begin = functions[kernel.name], len(names)
        for node in operators_of(model, function):
            names.append(str(node.name or ""))
            types.append(node.op_type)
        nodes, rule = NodeRanges(((begin, len(names) - 1),)), function.metadata_props.get("rule", "")
        tried.append(TriedKernel(nodes, kernel.target, Status.NOT_MEASURED, rule=rule))
    return Record(tuple(names), tuple(types), tuple(tried), notes=(note,))


@dataclass(slots=True)
class _Collector:
    """Collects the rows of one record."""

    lab: Lab
    costs: CostTable | None
    rows: dict[Identity, TriedKernel] = field(default_factory=dict)
    refused: dict[Target, int] = field(default_factory=dict)

    def add_candidates(self, plan: Plan) -> None:
        """Add the kernels of the plan, the candidates of the search, whole models, and runner-ups of the plan."""
        surveyed = {
            (bits, target): outcome
            for target, found in self.lab.survey.baselines.items()
            for bits, outcome in zip(found.ranges, found.outcomes, strict=True)
        }
        for place in plan.kernels:
            # A variant that wins takes the whole model, and only its survey knows of it.
            self._add(place, place.rule, surveyed.get((place.sub_graph.inside.bits, place.target)))
        for candidate in () if self.costs is None else self.costs.introduced:
            self._add(candidate, " > ".join(candidate.rules))
        for target, found in self.lab.survey.baselines.items():
            rule = "whole" if found.refusal is None else "largest range"
            for bits, outcome in zip(found.ranges, found.outcomes, strict=True):
                self._add(PlannedKernel(SubGraph(self.lab.problem.graph, IndexSet(bits)), target), rule, outcome)
        known = {(sub_graph.inside, target) for sub_graph, target, _ in self.rows}
        for place in plan.kernels:
            for target in self.lab.survey.usable:
                if (place.sub_graph.inside, target) not in known:
                    self._add(PlannedKernel(place.sub_graph, target), "runner-up")

    def _add(self, kernel: AnyKernel, rule: str, outcome: Outcome | None = None) -> None:
        if identity_of(kernel) in self.rows:
            return
        candidate = _candidate(*identity_of(kernel))
        nodes = NodeRanges.from_bits(kernel.sub_graph.inside.bits)
        if self.costs is not None:
            outcome = self.costs.outcome_of(candidate) or outcome
        if outcome is None:
            self.rows[identity_of(kernel)] = self._not_measured(candidate, nodes, rule)
            return
        status = outcome.status
        reason = "" if outcome.reason is None else in_short(outcome.reason, self.lab.session.workspace)
        if outcome.ok and self.costs is not None and self.costs.known_cost(candidate) == Cost.INVALID:
            status, reason = Status.WRONG, "wrong with its own weights, where an equal kernel was right"
        time = outcome.time
        self.rows[identity_of(kernel)] = TriedKernel(
            nodes,
            str(kernel.target),
            status,
            None if time is None else time.median_s * 1e6,
            None if time is None else max(0.0, time.median_s * (1.0 - time.spread)) * 1e6,
            None if time is None else time.median_s * (1.0 + time.spread) * 1e6,
            outcome.error if outcome.error is not None and math.isfinite(outcome.error) else None,
            reason,
            rule,
            outcome.build_s or None,
            outcome.recorded,
        )

    def _not_measured(self, candidate: CandidateKernel, nodes: NodeRanges, rule: str) -> TriedKernel:
        """Return the row of a candidate without outcome: refused operator by operator, expected, or neither."""
        reason = self._refusal(candidate.sub_graph, candidate.target)
        if reason is not None:
            return TriedKernel(nodes, str(candidate.target), Status.REFUSED, reason=reason, rule=rule)
        seconds = None if self.costs is None else self.costs.expected_s(candidate)
        status = Status.NOT_MEASURED if seconds is None else Status.PREDICTED
        return TriedKernel(nodes, str(candidate.target), status, _us(seconds), rule=rule)

    def _refusal(self, sub_graph: SubGraph, target: Target) -> str | None:
        """Return why a target does not take one of the operators; None if it takes them, or was not asked."""
        if target not in self.lab.survey.baselines:
            return None
        found = self.lab.survey.baselines[target]
        if not found.availability.available:
            return found.availability.reason or "not available"
        if not found.support and found.refusal is not None:  # It was not asked about any operator.
            return in_short(found.refusal, self.lab.session.workspace)
        if target not in self.refused:
            self.refused[target] = sum(1 << i for i, support in found.support.items() if not support.ok)
        first = IndexSet(sub_graph.inside.bits & self.refused[target]).first
        if first < 0:
            return None
        node = self.lab.problem.graph.node(first)
        told = in_short(found.support[first].reason or "not taken", self.lab.session.workspace)
        return told if len(sub_graph.inside) == 1 else f"{node.name} ({node.op_type}): {told}"

    def launch_s(self, place: PlannedKernel | CandidateKernel) -> float:
        """Return the cost of a kernel beyond its own time in a chain, in seconds."""
        return 0.0 if self.costs is None else self.costs.launch_penalty_s(place.target)

    def priced(self, plan: Plan, predicted: float | None) -> dict[Identity, TriedKernel]:
        """Return the rows with the time at which a plan with each would be predicted to beat the returned plan."""
        if predicted is None or self.costs is None:
            return self.rows
        n, rows = len(self.lab.problem.graph), self.rows
        keys, prices = list(rows), [self._price(key) for key in rows]
        certain = [replace(price, seconds=math.inf) if price.is_expected else price for price in prices]
        measured, hoped = cheapest_rests(n, certain), cheapest_rests(n, prices)
        nothing = [Rest()] * len(keys)
        for key, sure, maybe in zip(keys, measured or nothing, hoped or nothing, strict=True):
            rest = sure if math.isfinite(sure.seconds) else maybe
            limit_s = predicted - rest.seconds - self._launch_of(key)
            if not self.lab.problem.choices.allows(*key[:2]):
                rows[key] = replace(rows[key], reason=rows[key].reason or _NOT_ALLOWED)
            elif math.isfinite(limit_s):
                rows[key] = replace(rows[key], limit_us=max(0.0, limit_s) * 1e6, limit_is_expected=rest.is_expected)
        totals = [price.seconds + rest.seconds for price, rest in zip(certain, measured or nothing, strict=True)]
        self._price_chosen(plan, predicted, dict(zip(keys, totals, strict=True)))
        return rows

    def _price_chosen(self, plan: Plan, predicted: float, totals: Mapping[Identity, float]) -> None:
        """Set for each kernel of the plan the time up to which the plan stays the cheapest of all plans of measured kernels.

        Args:
            plan: The plan.
            predicted: Its predicted seconds.
            totals: Seconds of the cheapest plan of measured kernels with each candidate, by candidate.
        """
        holding: dict[int, list[Identity]] = {}
        for key, total in totals.items():
            for i in key[0].inside if math.isfinite(total) else ():
                holding.setdefault(i, []).append(key)
        for key in map(identity_of, plan.kernels):
            others = [totals[other] for other in holding.get(key[0].inside.first, ()) if other != key]
            row, slack_s = self.rows[key], min(others, default=math.inf) - predicted
            is_known = row.time_us is not None and math.isfinite(slack_s)
            limit_us = max(0.0, (row.time_us or 0.0) + 1e6 * slack_s) if is_known else None
            self.rows[key] = replace(row, limit_us=limit_us, limit_is_expected=False)

    def _launch_of(self, key: Identity) -> float:
        sub_graph, target, _ = key
        assert self.costs is not None
        return self.costs.launch_penalty_s(target) if len(sub_graph.inside) < len(self.lab.problem.graph) else 0.0

    def _price(self, key: Identity) -> Priced:
        sub_graph, target, _ = key
        if not self.lab.problem.choices.allows(sub_graph, target):
            return Priced(sub_graph.inside.bits, math.inf)
        assert self.costs is not None
        row, candidate = self.rows[key], _candidate(*key)
        if row.status is Status.OK:
            known = self.costs.known_cost(candidate)
            seconds = math.inf if known is None else known.seconds
        elif row.status is Status.PREDICTED and row.time_us is not None:
            seconds = row.time_us * 1e-6
        else:
            seconds = math.inf
        is_expected = row.status is Status.PREDICTED
        return Priced(sub_graph.inside.bits, seconds + self._launch_of(key), is_expected)

    def borders(self, plan: Plan) -> Iterable[Border]:
        """Yield the borders between kernels of the plan that hand values to each other."""
        made = {value: place for place, kernel in enumerate(plan.kernels) for value in kernel.sub_graph.output_values()}
        for kernel in plan.kernels:
            crossing: dict[int, list[str]] = {}
            sizes: dict[int, list[int | None]] = {}
            for value in kernel.sub_graph.input_values():
                if value in made:
                    crossing.setdefault(made[value], []).append(str(value.name))
                    sizes.setdefault(made[value], []).append(value_nbytes(value, self._shape(str(value.name))))
            for place, values in crossing.items():
                known = [size for size in sizes[place] if size is not None]
                nbytes = sum(known) if len(known) == len(values) else None
                maker = plan.kernels[place]
                before, after = (NodeRanges.from_bits(each.sub_graph.inside.bits) for each in (maker, kernel))
                border = Border(before, after, tuple(values[:_MOST_VALUES]), len(values), nbytes)
                yield self._priced_border(border, maker, kernel)

    def _shape(self, name: str) -> Sequence[int] | None:
        values = self.lab.session.values
        return values.shape(name) if name in values else None

    def _priced_border(self, border: Border, before: PlannedKernel, after: PlannedKernel) -> Border:
        """Return a border with its cost, and with the cheapest kernel that would do without it."""
        costs = self.costs
        if costs is None:
            return border
        cost_s = self.launch_s(after)
        border = replace(border, cost_us=1e6 * cost_s)
        together = SubGraph(self.lab.problem.graph, before.sub_graph.inside | after.sub_graph.inside)
        if together.why_invalid() is not None:
            return border
        joined = []
        for target in self.lab.survey.usable:
            candidate = _candidate(together, target)
            known = costs.known_cost(candidate)
            if known is None and self._refusal(together, target) is None:
                joined.append((costs.expected_s(candidate), str(target), False))
            elif known is not None and not known.is_invalid:
                joined.append((known.seconds, str(target), True))
        apart = [costs.known_cost(place) for place in (before, after)]
        if not joined:
            return border
        seconds, name, is_measured = min(joined)
        apart_s = [cost.seconds for cost in apart if cost is not None and not cost.is_invalid]
        saves_s = seconds - sum(apart_s) - cost_s if len(apart_s) == len(apart) else None
        return replace(
            border,
            joined_target=name,
            joined_us=1e6 * seconds,
            joined_is_measured=is_measured,
            saves_us=_us(saves_s),
        )

    def answer(self, target: Target) -> TargetAnswer:
        """Return the answer of a target about the whole model."""
        found = self.lab.survey.baselines[target]
        if not found.availability.available:
            return TargetAnswer(str(target), False, found.availability.reason or "not available")
        whole, workspace = found.whole, self.lab.session.workspace
        refuses: dict[str, list[int]] = {}
        for i, support in found.support.items():
            if not support.ok:
                refuses.setdefault(in_short(support.reason or "not taken", workspace), []).append(i)
        status = whole.status
        reason = in_short(whole.reason or "", workspace)
        if whole.ok and not self.lab.survey.is_right(whole):
            status = Status.WRONG
            reason = f"differs by {whole.error:.1e} of the largest output, more than {self.lab.problem.tolerance:.0e}"
        return TargetAnswer(
            str(target),
            True,
            reason,
            self.lab.session.build_of(target),
            status,
            None if whole.time is None else whole.time.median_s * 1e6,
            NodeRanges.of(i for i, support in found.support.items() if support.ok),
            {told: NodeRanges.of(nodes) for told, nodes in refuses.items()},
        )


def _candidate(sub_graph: SubGraph, target: Target, bodies: tuple[Plan, ...] = ()) -> CandidateKernel:
    return CandidateKernel(sub_graph, target, _RUNNER_UP, (), bodies=bodies)


def _interest(row: TriedKernel, predicted_us: float | None) -> tuple[int, float, int]:
    """Return a sort key for candidates by interest: failures, measurements, then near misses."""
    excess = math.inf
    if predicted_us is not None and row.limit_us is not None and row.time_us is not None:
        excess = row.time_us - row.limit_us
    return _INTEREST.get(row.status, 0), excess if row.status is Status.PREDICTED else 0.0, row.nodes.first


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6
