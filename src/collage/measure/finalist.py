"""Finalists: executables that are compared end to end, the figures that they are compared by, and the result of each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collage.cost.statistics import Interval, Summary
from collage.status import Status
from collage.workers.worker import Worker

__all__ = ["LATENCY", "NO_TIME", "THROUGHPUT", "Block", "Figure", "Finalist", "FinalistResult", "Turn"]

NO_TIME = "the time budget left no time to compare it"
"""The reason of a finalist that is right, and was put aside until there was no time left."""


@dataclass(frozen=True, slots=True)
class Finalist:
    """An executable that can be compared with others.

    Attributes:
        name: Unique name.
        service: ``module:attribute`` of a service with ``check`` and the method that the figure calls.
        arguments: Its arguments, JSON values.
        kernels: Number of kernels. If figures are equal within doubt, the plan of the fewest kernels is returned.
        incumbent: True for a single toolchain.
        is_reduced: True if it computes in a coarser type than the model says.
        is_candidate: True if it may be returned. Others are only compared with, whether they are right or not.
        model: File of the model that doubts on its outputs are settled by; None if there is none.
    """

    name: str
    service: str
    arguments: Mapping[str, Any]
    kernels: int = 1
    incumbent: bool = False
    is_reduced: bool = False
    is_candidate: bool = True
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """The length of one turn.

    Attributes:
        runs: Runs that count.
        warm_up: Runs before them.
        seconds: Seconds that they are expected to take.
        timeout_s: Seconds that the turn may take.
        number: Number of the round.
    """

    runs: int
    warm_up: int
    seconds: float
    timeout_s: float
    number: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of one turn.

    Attributes:
        figure: Seconds. Less is better.
        samples: The figures that it is the median of.
        details: Further facts, JSON values.
    """

    figure: float
    samples: Sequence[float]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figure:
    """A quantity that finalists are compared by, in seconds. Less is better.

    Attributes:
        name: Its name for people.
        measure: Lets a worker run for one turn.
    """

    name: str
    measure: Callable[[Worker, Block], Turn]


def _latency(worker: Worker, block: Block) -> Turn:
    samples = worker.call("run", block.timeout_s, runs=block.runs, warm_up=block.warm_up, number=block.number)
    return Turn(statistics.median(samples), samples)


def _throughput(worker: Worker, block: Block) -> Turn:
    found = worker.call("serve", block.timeout_s + block.seconds, seconds=block.seconds, more=True)
    seconds = 1.0 / found["runs_per_s"]
    return Turn(seconds, [seconds], found)


LATENCY = Figure("latency of one caller", _latency)
THROUGHPUT = Figure("seconds for each run while all streams are busy", _throughput)
"""The inverse of the throughput."""


@dataclass(frozen=True, slots=True)
class FinalistResult:
    """The result of one finalist.

    Attributes:
        finalist: The finalist.
        status: ``OK``, or the reason for having no time.
        time: Latency in the reporting phase; None if it had no part in it.
        reason: One sentence, if it failed, is wrong, or was not compared.
        max_abs: Largest absolute difference from the reference outputs.
        max_rel: The same, relative to the size of the output.
        noise: Error of right float arithmetic itself, relative to that size; None if the tolerance alone decided.
        excused: Share of elements that only the noise makes right, by output.
        drops_nan: A sentence on NaN among the inputs that goes lost; None if none does.
        paired_s: Latency as compared with the returned finalist, turn by turn: free of the machine's drift.
        ratio: Time over the returned finalist's, paired by rounds, with its interval: of the reporting phase, or of the
            choosing phase if it had no part in that one.
        rounds_s: Median latency of each round of the reporting phase.
        slower: Ratios to the best in two samples that lay apart in time, if it was left out for these.
        precision: The type that it computes in, if it states one.
        lost: True if it was slower beyond doubt in the choosing phase, and so had no part in the reporting phase.
        p95_s: Ninety-fifth percentile of the latencies in the reporting phase.
        p99_s: Ninety-ninth percentile, in the same way.
        details: Further facts of its last turn, JSON values.
    """

    finalist: Finalist
    status: Status
    time: Summary | None = None
    reason: str | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    paired_s: float | None = None
    ratio: tuple[float, Interval] | None = None
    rounds_s: tuple[float, ...] = ()
    slower: tuple[float, ...] = ()
    precision: str | None = None
    lost: bool = False
    p95_s: float | None = None
    p99_s: float | None = None
    noise: float | None = None
    excused: Mapping[str, float] = field(default_factory=dict)
    drops_nan: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
