"""Finalists: executables that are compared end to end, and the result of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collage.cost.outcome import Status
from collage.cost.statistics import Interval, Summary

__all__ = ["Finalist", "FinalistResult"]


@dataclass(frozen=True, slots=True)
class Finalist:
    """An executable that can be compared with others.

    Attributes:
        name: Unique name.
        service: ``module:attribute`` of a service with ``check`` and ``run``.
        arguments: Its arguments, JSON values.
        kernels: Number of kernels. If times are equal within doubt, the plan of the fewest kernels is returned.
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
class FinalistResult:
    """The result of one finalist.

    Attributes:
        finalist: The finalist.
        status: ``OK``, or the reason for having no time.
        time: Latency in the reporting phase; None if it had no part in it.
        reason: One sentence, if it failed or is wrong.
        max_abs: Largest absolute difference from the reference outputs.
        max_rel: The same, relative to the size of the output.
        noise: Error of right float arithmetic itself, relative to that size; None if the tolerance alone decided.
        excused: Share of elements that only the noise makes right, by output.
        drops_nan: A sentence on NaN among the inputs that goes lost; None if none does.
        paired_s: Latency as compared with the returned finalist, turn by turn: free of the machine's drift.
        ratio: Time over the returned finalist's, paired by rounds, with its interval.
        rounds_s: Median latency of each round of the reporting phase.
        alone: Latency in the qualification.
        precision: The type that it computes in, if it states one.
        lost: True if it was slower beyond doubt in the choosing phase, and so had no part in the reporting phase.
        p95_s: Ninety-fifth percentile of the latencies in the reporting phase.
        p99_s: Ninety-ninth percentile, in the same way.
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
    alone: Summary | None = None
    precision: str | None = None
    lost: bool = False
    p95_s: float | None = None
    p99_s: float | None = None
    noise: float | None = None
    excused: Mapping[str, float] = field(default_factory=dict)
    drops_nan: str | None = None
