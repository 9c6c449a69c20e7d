"""Answers about one kernel, one operator and one target, as values that print themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collage.explain._record import TargetAnswer, TriedKernel
from collage.explain._text import STATUS_WORDS, columns, first_of, limit_words, ms, outcome_words
from collage.report import BodyKernelRow, short_name
from collage.system.texts import counted, printable

__all__ = ["ChosenKernel", "KernelExplanation", "NodeExplanation", "RunnerUp", "TargetExplanation"]

_SHOWN_RUNNER_UPS = 3
_SHOWN_ROWS = 30
_NO_TIME = "no time"


@dataclass(frozen=True, slots=True)
class ChosenKernel:
    """One kernel of the returned plan.

    Attributes:
        name: Its name in the executable.
        kernel: The candidate that it is.
        device: The device that it runs on, if devices were planned.
        branch: The branch that it belongs to, from 1. Kernels of different branches run at the same time. None if it is
            in none.
    """

    name: str
    kernel: TriedKernel
    device: str | None = None
    branch: int | None = None


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """Another way to run exactly the operators of a kernel.

    Attributes:
        kernel: The candidate.
        margin: The share by which it takes longer than the chosen kernel; None if one of the times is not known.
    """

    kernel: TriedKernel
    margin: float | None


@dataclass(frozen=True, slots=True)
class KernelExplanation:
    """One kernel of the returned plan, with its runner-ups.

    Attributes:
        chosen: The kernel.
        operators: Its operators in a few words.
        time_us: Its part of the end-to-end time, measured inside the executable; None if that is not known.
        share: The same as a share of the run.
        runner_ups: The same operators on other targets, cheapest first; those without a time come last.
        bodies: The kernels of its bodies, if it is an If, a Loop or a Scan whose bodies are kernels of their own.
    """

    chosen: ChosenKernel
    operators: str
    time_us: float | None
    share: float | None
    runner_ups: tuple[RunnerUp, ...]
    bodies: tuple[BodyKernelRow, ...] = ()

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows of a table: its own, and below it one for each kernel of its bodies.

        The cells are name, operators, target, time, share and runner-ups, whose times are those of the search.
        """
        bodies = [(f"  {each.name}", each.operators, short_name(each.target), "", "", "") for each in self.bodies]
        return [self._cells(), *bodies]

    def _cells(self) -> tuple[str, ...]:
        kernel = self.chosen.kernel
        told = [_runner_up(each) for each in self.runner_ups[:_SHOWN_RUNNER_UPS]]
        return (
            self.chosen.name + ("" if self.chosen.branch is None else f" (branch {self.chosen.branch})"),
            self.operators,
            short_name(kernel.target),
            ms(self.time_us) or _NO_TIME,
            "" if self.share is None else f"{self.share:.0%}",
            "; ".join(told) or "no other target",
        )


def _runner_up(found: RunnerUp) -> str:
    kernel = found.kernel
    if kernel.time_us is None:
        return f"{short_name(kernel.target)}: {outcome_words(kernel)}"
    margin = "" if found.margin is None else f" ({found.margin:+.0%})"
    return f"{short_name(kernel.target)} {ms(kernel.time_us)}{margin}" + ("" if kernel.is_measured else " expected")


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """Everything that was tried with one operator.

    Attributes:
        name: Its name.
        index: Its index in the prepared model.
        op_type: Its type.
        chosen: The kernel that runs it; None if the record does not hold it.
        candidates: Every candidate that holds it, measured ones first, then by time.
        refusals: Reason of a refusal, by target.
        labels: The operators of each candidate in a few words.
    """

    name: str
    index: int
    op_type: str
    chosen: ChosenKernel | None
    candidates: tuple[TriedKernel, ...]
    refusals: Mapping[str, str]
    labels: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"operator #{self.index} {self.name} ({self.op_type})"]
        if self.chosen is not None:
            lines.append(f"runs in {self.chosen.name} on {short_name(self.chosen.kernel.target)}")
        rows = [
            (f"{short_name(row.target)}", words, outcome_words(row), _limit_of(row, self.chosen), row.rule)
            for row, words in zip(self.candidates, self.labels, strict=True)
        ]
        lines += first_of(columns(rows), _SHOWN_ROWS, "candidates")
        lines += [f"{short_name(target)} does not take it: {reason}" for target, reason in self.refusals.items()]
        if not rows and not self.refusals:
            lines.append("the record has no candidate with it")
        return printable("\n".join(lines))


@dataclass(frozen=True, slots=True)
class TargetExplanation:
    """All candidates of one target, with their outcomes.

    Attributes:
        answer: Its answer about the whole model; None if it was not on the menu.
        target: The target.
        counts: Number of its candidates, by status.
        chosen: Kernels of the returned plan on it.
        wrong: Candidates that failed, or computed wrongly.
        refused: Candidates that it refused.
        chances: The candidates that came nearest to being chosen, the nearest first.
        why_not: One sentence: the operators that it runs, or the reason why it runs nothing.
        labels: A short text for sets of operators, by operators.
    """

    answer: TargetAnswer | None
    target: str
    counts: Mapping[str, int]
    chosen: tuple[ChosenKernel, ...]
    wrong: tuple[TriedKernel, ...]
    refused: tuple[TriedKernel, ...]
    chances: tuple[TriedKernel, ...]
    why_not: str
    labels: Mapping[str, str]

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {STATUS_WORDS.get(status, status)}" for status, count in self.counts.items())
        lines = [f"{short_name(self.target)}: {self.why_not}", f"offered: {counts or 'no candidates'}"]
        answer = self.answer
        if answer is not None and answer.whole is not None:
            time = f", {ms(answer.whole_us)} ms" if answer.whole_us is not None else ""
            reason = f": {answer.reason}" if answer.reason else ""
            lines.append(f"whole model: {STATUS_WORDS.get(answer.whole, answer.whole)}{time}{reason}")
        if answer is not None and answer.is_available:
            lines.append(f"takes {counted(len(answer.takes), 'operator')}")
            lines += [
                f"refuses {counted(len(nodes), 'operator')}: {reason}" for reason, nodes in answer.refuses.items()
            ]
        for title, rows in (("nearest to being chosen", self.chances), ("wrong or failed", self.wrong)):
            told = [(self.labels[str(row.nodes)], outcome_words(row), limit_words(row)) for row in rows]
            lines += (
                [f"{title}:", *(f"  {line}" for line in first_of(columns(told), _SHOWN_ROWS, "kernels"))]
                if told
                else []
            )
        refused = dict.fromkeys((self.labels[str(row.nodes)], row.reason) for row in self.refused)
        if refused:
            lines += ["refused:", *(f"  {line}" for line in first_of(columns(refused), _SHOWN_ROWS, "kernels"))]
        return printable("\n".join(lines))


def _limit_of(row: TriedKernel, chosen: ChosenKernel | None) -> str:
    """Return the limit of a candidate in words; of a kernel of the plan it means another thing."""
    if chosen is None or (row.nodes, row.target) != (chosen.kernel.nodes, chosen.kernel.target):
        return limit_words(row)
    return "chosen" if row.limit_us is None else f"chosen; stays so up to {ms(row.limit_us)} ms"
