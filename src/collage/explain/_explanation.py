"""Answers to questions about a compilation: views of its record and its report."""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from collage._errors import UsageError
from collage.explain._answers import ChosenKernel, KernelExplanation, NodeExplanation, RunnerUp, TargetExplanation
from collage.explain._nodes import NodeRanges
from collage.explain._record import Border, Record, TargetAnswer, TriedKernel
from collage.explain._text import border_line, columns, first_of, label, ms, toolchain_of
from collage.report import KernelRow, Report, Row, short_name
from collage.status import Status
from collage.system.texts import counted, is_whole_number, printable

__all__ = ["Explanation", "as_plain", "chosen_kernels"]

_SHOWN_CHANCES = 5
_SHOWN_KERNELS = 40
_SHOWN_BORDERS = 20
# Below it a ratio of times says nothing.
_SHORTEST_US = 1e-9
_WHY_STOPPED = {
    "finished": "no other plan promised a gain",
    "min_gain": "no plan with them promised a gain",
    "deadline": "the time for the search was used up (--time-budget, --search proof)",
    "max_measured": "the search may measure only so many kernels (--measure-budget, --search proof)",
    "should_stop": "the compilation was interrupted",
    "not started": "there was nothing to search",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation of a compiled model: its kernels, the candidates that lost, and those that were not tried.

    Attributes:
        plan: Name of the returned plan.
        predicted_us: Predicted time of the plan; None if it is not known.
        kernels: Its kernels, in the order in which they run.
        borders: The borders between them.
        lost: The other plans of the comparison, as rows of the report.
        targets: The answers of the targets about the whole model.
        counts: Number of candidates by status, with those that the record has no room for.
        why_not_measured: One sentence about the candidates that were not measured.
        notes: Sentences about candidates that were left out before the search, and about facts that the record lacks.
        record: The record that the explanation is made from.
        returned_us: Measured time of the returned plan.
    """

    plan: str
    predicted_us: float | None
    kernels: tuple[KernelExplanation, ...]
    borders: tuple[Border, ...]
    lost: tuple[Row, ...]
    targets: tuple[TargetAnswer, ...]
    counts: Mapping[str, int]
    why_not_measured: str
    notes: tuple[str, ...]
    record: Record
    returned_us: float | None = None

    @classmethod
    def of(cls, record: Record, report: Report, kernels: Sequence[KernelRow] | None = None) -> Explanation:
        """Return the explanation of a compilation.

        Args:
            record: Its record.
            report: Its report.
            kernels: Its kernels, if they are not those of the report.
        """
        kernels = report.kernels if kernels is None else kernels
        counts = Counter(row.status.value for row in record.tried)
        counts.update(record.dropped)
        by_nodes = record.by_nodes()
        chosen = chosen_kernels(record, kernels)
        held = {each.kernel.nodes for each in chosen.values()}
        return cls(
            report.winner or "as given",
            report.estimate_us,
            tuple(
                _kernel(record, chosen[row.name], by_nodes.get(chosen[row.name].kernel.nodes, ()), row)
                for row in kernels
                if row.name in chosen
            ),
            # The plans of a remembered result are compared again, and another one may win.
            tuple(border for border in record.borders if {border.before, border.after} <= held),
            tuple(
                row
                for row in report.rows
                if row.kind != "baseline" and row.kernels is not None and row.name != report.winner
            ),
            record.targets,
            dict(counts),
            _why_not_measured(record, counts),
            record.notes,
            record,
            None if report.returned is None else report.returned.time_us,
        )

    def node(self, name: str, against: str | None = None) -> NodeExplanation:
        """Return every candidate that holds an operator, with its outcome.

        Args:
            name: Its name in the prepared model, a part of it that no other name has, or ``#`` and its index.
            against: A target to which candidates are limited; None is all.

        Raises:
            UsageError: There is no such operator, or no such target.
        """
        record, index = self.record, _index_of(self.record, name)
        wanted = None if against is None else set(_targets_called(record, against))
        rows = [row for row in record.tried if index in row.nodes and (wanted is None or row.target in wanted)]
        rows.sort(key=lambda row: (not row.is_measured, row.time_us is None, row.time_us or 0.0, len(row.nodes)))
        refusals = {
            answer.target: reason
            for answer in record.targets
            if wanted is None or answer.target in wanted
            for reason, nodes in (answer.refuses or _unavailable(answer)).items()
            if index in nodes or not answer.is_available
        }
        chosen = next((each.chosen for each in self.kernels if index in each.chosen.kernel.nodes), None)
        labels = tuple(label(record, row.nodes) for row in rows)
        return NodeExplanation(
            record.names[index], index, record.op_types[index], chosen, tuple(rows), refusals, labels
        )

    def target(self, name: str) -> tuple[TargetExplanation, ...]:
        """Return for each target the candidates that it took or got wrong, and the cost at which it would be chosen.

        Args:
            name: A target as printed, its short form, or the name of its toolchain, which may have several targets.

        Raises:
            UsageError: No such target took part.
        """
        return tuple(_target(self, target) for target in _targets_called(self.record, name))

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON values, without the record."""
        names = (field.name for field in dataclasses.fields(self))
        plain = {name: as_plain(getattr(self, name)) for name in names if name != "record"}
        for border, told in zip(self.borders, plain["borders"], strict=True):
            told["before"], told["after"] = self._ends(border)
        return plain

    def _ends(self, border: Border) -> tuple[str, str]:
        """Return the names of the two kernels of a border."""
        names = {each.chosen.kernel.nodes: each.chosen.name for each in self.kernels}
        return names[border.before], names[border.after]

    def __str__(self) -> str:
        took = "" if self.returned_us is None else f", {ms(self.returned_us)} ms end to end"
        lines = [f"{self.plan}: {counted(len(self.kernels), 'kernel')}{took}"]
        head = (
            "kernel",
            "operators",
            "target",
            "ms of the run",
            "share",
            "the same operators elsewhere, by the search's costs",
        )
        lines += first_of(
            columns([head, *(row for kernel in self.kernels for row in kernel.rows())]), _SHOWN_KERNELS, "kernels"
        )
        if self.borders:
            lines += [
                "",
                "borders:",
                *first_of([border_line(each, *self._ends(each)) for each in self.borders], _SHOWN_BORDERS, "borders"),
            ]
        if self.lost:
            lines += ["", "plans that lost:", *columns(_lost_cells(plan, self.returned_us) for plan in self.lost)]
        if self.targets:
            told = [
                (short_name(answer.target), target.why_not)
                for answer in self.targets
                for target in self.target(answer.target)
            ]
            lines += ["", "targets:", *columns(told)]
        lines += ["", self.why_not_measured] if self.why_not_measured else []
        if self.record.dropped:
            lines.append(f"the record has no room for {sum(self.record.dropped.values())} candidates")
        lines += [f"note: {note}" for note in self.notes]
        return printable("\n".join(lines))


def _lost_cells(plan: Row, returned_us: float | None) -> tuple[str, ...]:
    measured = f"ran {ms(plan.time_us)} ms" if plan.time_us is not None else str(plan.verdict)
    if plan.time_us is not None and returned_us:
        measured += f" ({plan.time_us / returned_us - 1.0:+.1%})"
    differs = f"{counted(plan.differs, 'operator')} in other kernels" if plan.differs else ""
    return short_name(plan.name), counted(plan.kernels or 0, "kernel"), measured, plan.reason or differs


def chosen_kernels(record: Record, kernels: Iterable[KernelRow]) -> Mapping[str, ChosenKernel]:
    """Return the candidates that the kernels of a plan are, by the names of the kernels.

    A kernel without names of operators is of a model that was built as it was given. Its record has a row for each kernel.
    """
    places = {name: i for i, name in enumerate(record.names)}
    rows: dict[tuple[NodeRanges, str], TriedKernel] = {}
    for row in record.tried:
        rows.setdefault((row.nodes, row.target), row)
    chosen = {}
    for place, kernel in enumerate(kernels):
        nodes = NodeRanges.of(places[name] for name in kernel.nodes if name in places)
        if not kernel.nodes and place < len(record.tried):
            nodes = record.tried[place].nodes
        if nodes.ranges:
            known = rows.get((nodes, kernel.target)) or TriedKernel(nodes, kernel.target, Status.NOT_MEASURED)
            chosen[kernel.name] = ChosenKernel(kernel.name, known, kernel.device, kernel.branch)
    return chosen


def as_plain(value: Any) -> Any:
    """Return a value of this room as JSON values: operators as text such as ``0-26,30``."""
    if isinstance(value, NodeRanges | StrEnum):
        return str(value)
    if dataclasses.is_dataclass(value):
        return {field.name: as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [as_plain(each) for each in value]
    return value


def _kernel(record: Record, chosen: ChosenKernel, rows: Sequence[TriedKernel], told: KernelRow) -> KernelExplanation:
    kernel = chosen.kernel
    others = [row for row in rows if row.target != kernel.target]
    best: dict[str, TriedKernel] = {}
    for row in sorted(others, key=lambda row: (not row.is_measured, row.time_us is None, row.time_us or 0.0)):
        best.setdefault(row.target, row)
    runner_ups = [RunnerUp(row, _margin(row, kernel)) for row in best.values()]
    runner_ups.sort(key=lambda each: (each.kernel.time_us is None, each.kernel.time_us or 0.0))
    operators = label(record, kernel.nodes)
    return KernelExplanation(chosen, operators, told.time_us, told.share, tuple(runner_ups), told.bodies)


def _margin(row: TriedKernel, chosen: TriedKernel) -> float | None:
    if row.time_us is None or chosen.time_us is None or chosen.time_us < _SHORTEST_US:
        return None
    return row.time_us / chosen.time_us - 1.0


def _why_not_measured(record: Record, counts: Mapping[str, int]) -> str:
    count = counts.get(Status.PREDICTED.value, 0)
    if not count:
        return ""
    reason = _WHY_STOPPED.get(record.stopped_by, record.stopped_by)
    if record.stopped_by == "min_gain":
        reason += f" of {record.min_gain:.0%}"
    return f"{count} of {sum(counts.values())} candidates were not measured: {reason}"


def _unavailable(answer: TargetAnswer) -> Mapping[str, NodeRanges]:
    return {} if answer.is_available else {answer.reason: NodeRanges()}


def _index_of(record: Record, name: str) -> int:
    """Return the index of the operator that is meant."""
    if name in record.names:
        return record.names.index(name)
    if name.startswith("#") and name.isascii() and is_whole_number(name[1:]) and int(name[1:]) < len(record.names):
        return int(name[1:])
    parts = [i for i, each in enumerate(record.names) if name and name in each]
    if len(parts) == 1:
        return parts[0]
    near = [record.names[i] for i in parts[:5]] or difflib.get_close_matches(name, record.names, 3, 0.5)
    near = near or [each for each, op_type in zip(record.names, record.op_types, strict=True) if op_type == name][:5]
    meant = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
    raise UsageError(
        f"there is no operator {name!r} in the prepared model, which has {len(record.names)} operators{meant}"
    )


def _targets_called(record: Record, name: str) -> list[str]:
    """Return the targets of a record that a text names."""
    known = list(dict.fromkeys([*(answer.target for answer in record.targets), *(row.target for row in record.tried)]))
    exact = [target for target in known if name in (target, short_name(target))]
    named = exact or [target for target in known if name == toolchain_of(target)]
    if not named:
        raise UsageError(f"no target {name!r} took part; these did: {', '.join(map(short_name, known)) or 'none'}")
    return named


def _target(explanation: Explanation, target: str) -> TargetExplanation:
    record = explanation.record
    answer = next((answer for answer in record.targets if answer.target == target), None)
    rows = [row for row in record.tried if row.target == target]
    counts = Counter(row.status.value for row in rows)
    chosen = tuple(each.chosen for each in explanation.kernels if each.chosen.kernel.target == target)
    nodes_chosen = {kernel.kernel.nodes for kernel in chosen}
    chances = _chances(record, [row for row in rows if row.nodes not in nodes_chosen])
    wrong = tuple(row for row in rows if row.status.is_fault)
    refused = tuple(row for row in rows if row.status is Status.REFUSED)
    shown = [*chances, *wrong, *refused, *(kernel.kernel for kernel in chosen)]
    labels = {str(row.nodes): label(record, row.nodes) for row in shown}
    why_not = _why_not(explanation, answer, rows, chosen, chances)
    if wrong:
        why_not += f"; {len(wrong)} of its kernels were wrong or failed"
    return TargetExplanation(answer, target, dict(counts), chosen, wrong, refused, chances, why_not, labels)


def _why_not(
    explanation: Explanation,
    answer: TargetAnswer | None,
    rows: Iterable[TriedKernel],
    chosen: tuple[ChosenKernel, ...],
    chances: tuple[TriedKernel, ...],
) -> str:
    """Return the one sentence that an author of a toolchain asks for first."""
    record = explanation.record
    if chosen:
        count = sum(len(kernel.kernel.nodes) for kernel in chosen)
        return (
            f"it runs {len(chosen)} of {len(explanation.kernels)} kernels, {count} of {len(record.op_types)} operators"
        )
    if answer is not None and not answer.is_available:
        return f"it cannot be used here: {answer.reason}"
    if answer is not None and (raced := _raced(explanation, answer.target)):
        return raced
    if answer is not None and answer.reason and not (len(answer.takes) or answer.refuses):
        return answer.reason  # It was not asked about any operator.
    hopeful = _most_hopeful(record, chances, explanation.predicted_us)
    if told := "; ".join(filter(None, (_nearest(record, chances), hopeful))):
        return told
    reasons = Counter(row.reason for row in rows if row.reason)
    reasons.update({} if answer is None else {reason: len(nodes) for reason, nodes in answer.refuses.items()})
    if reasons:
        return f"none of its kernels could be used: {reasons.most_common(1)[0][0]}"
    return "the record does not contain the reason"


def _raced(explanation: Explanation, target: str) -> str:
    """Return how a target alone did in the race; empty if it took no part in it."""
    row = next((row for row in explanation.lost if row.kind == "single" and row.target == target), None)
    if row is None:
        return ""
    if row.time_us is None or not explanation.returned_us:
        return f"alone it was left out: {row.reason}" if row.reason else ""
    times = row.time_us / explanation.returned_us
    return f"alone it took {ms(row.time_us)} ms end to end, {times:.2f} times the time of the returned plan"


def _chances(record: Record, rows: Iterable[TriedKernel]) -> tuple[TriedKernel, ...]:
    """Return the few candidates that came nearest to being chosen: measured ones first, equal ones once."""
    near = [row for row in rows if row.time_us and row.limit_us is not None]
    near.sort(key=lambda row: (not row.is_measured, (row.time_us or 0.0) / max(row.limit_us or 0.0, 1e-9)))
    distinct = {(label(record, row.nodes), row.time_us, row.status): row for row in reversed(near)}
    return tuple(reversed(distinct.values()))[:_SHOWN_CHANCES]


def _nearest(record: Record, chances: Iterable[TriedKernel]) -> str:
    """Return how far the nearest measured candidate was from being chosen; empty if none was measured."""
    best = next((row for row in chances if row.is_measured), None)
    if best is None or best.time_us is None or best.limit_us is None:
        return ""
    expected = " by the expected times of other kernels" if best.limit_is_expected else ""
    took = f"by the search's costs its nearest kernel is {label(record, best.nodes)}, at {ms(best.time_us)} ms"
    if best.limit_us <= 0:
        return f"{took}, and would not be chosen if it took no time"
    if best.time_us < best.limit_us:
        return f"{took}: a plan with it is predicted to be faster than the returned one{expected}, and was not returned"
    return (
        f"{took}, and would have to take less than {ms(best.limit_us)} ms{expected}, so be "
        f"{best.time_us / best.limit_us:.2f} times as fast"
    )


def _most_hopeful(record: Record, chances: Iterable[TriedKernel], predicted_us: float | None) -> str:
    """Return the expected gain of the best candidate that was not measured; empty if none promised a gain."""
    gains = [
        (row.limit_us - row.time_us, row) for row in chances if row.limit_us and row.time_us and not row.is_measured
    ]
    gain_us, row = max(gains, key=lambda pair: pair[0], default=(0.0, None))
    if row is None or gain_us <= 0 or not predicted_us:
        return ""
    share = gain_us / predicted_us
    return f"of those not measured, {label(record, row.nodes)} promised most: {share:.1%} of the plan"
