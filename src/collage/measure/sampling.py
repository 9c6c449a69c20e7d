"""How one kernel is timed: with the caches that it will meet inside the model, until the median is known well enough.

A kernel alone in a loop finds its weights in cache; inside the model, those of all others have been through the cache since.
Measured in a loop, small kernels look 10 to 20 % too cheap, and a search over many of them picks the luckiest. So before
every timed run all processors touch as much memory as the rest of the model leaves in their caches (see
``collage.measure.cache_pressure``), and then this one the inputs, which the kernel before has just written.

The tuner has it run in short bursts, and looks at the machine's pace between them. Bursts that the machine was calm for count;
where there are not enough of those, the calmest, whose runs count as what they would have taken on a calm machine.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from collage.cost.statistics import median_interval
from collage.measure.cache_flush import cache_flusher_for
from collage.toolchains import Device, DeviceKernel, Kernel

__all__ = ["SamplingPlan", "kernel_slowdown", "normalize", "sample", "sample_in_bursts", "sample_kernel"]

_SURELY = 4.0
"""A first run this many times above what is hopeless needs no second one if it took long; no warm-up saves so much."""
_FEWEST = 3
_CALM = 1.12
"""Pace up to which a machine is calm. Within it 46 kernels took up to 7 % longer than at their fastest; from there on, all of
a sudden, 12 to 25 %, and 40 to 60 % at a pace of 1.6. They are busy for a tenth of a second at a time, most of them.
"""
_USUAL = 1.06
"""What a calm machine's pace usually is: the fastest product ever seen was luckier than most."""
_SLOWER = 0.9
"""The power of the pace beyond the usual by which kernels are slower: 0.8 to 1.1, by regression."""
_PATIENCE = 1.5
"""So many times the budget may be spent until the machine has been calm for long enough."""


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """When to stop measuring.

    Attributes:
        evict_bytes: Memory that each processor touches before every timed run.
        cores: Number of processors.
        budget_s: Seconds after which no new run is started (at least ``least`` runs are made all the same, and some more
            on a machine that is not calm).
        burst_s: Seconds after which a burst starts no new run.
        warm_up: Run once before the first timed run.
        least: Fewest timed runs.
        most: Most timed runs.
        spread: Stop when the median's interval is within this share of the median, to either side.
        abandon_above_s: Stop after three runs if the fastest of them is above this: the kernel cannot be chosen.
    """

    evict_bytes: int = 0
    cores: int = 1
    budget_s: float = 0.3
    burst_s: float = 1e9
    warm_up: bool = True
    least: int = 7
    most: int = 60
    spread: float = 0.02
    abandon_above_s: float = 1e9


def sample_kernel(kernel: Kernel, inputs: Sequence[np.ndarray[Any, Any]], plan: SamplingPlan) -> list[float]:
    """Times a kernel as it runs within a model: on a device, between tensors that are there, and recorded if it can be.

    Args:
        kernel: The kernel.
        inputs: Its inputs, on the host.
        plan: When to stop.

    Returns:
        Seconds of each timed run; on a device by its own clock.
    """
    if not isinstance(kernel, DeviceKernel):
        return sample(lambda: kernel(inputs), inputs, plan)
    device = kernel.device
    tensors = [device.upload(x) for x in inputs]
    return sample(_work(kernel, tensors), [], plan, device)


def _work(kernel: DeviceKernel, tensors: Sequence[Any]) -> Callable[[], Any]:
    work = partial(kernel.on_device, tensors)
    work()
    if not kernel.capturable:
        return work
    try:
        return kernel.device.record(work).replay
    except Exception:  # As in a chain, which then calls it.
        return work


def sample(
    run: Callable[[], Any], inputs: Sequence[np.ndarray[Any, Any]], plan: SamplingPlan, device: Device | None = None
) -> list[float]:
    """Times ``run`` as ``plan`` says, for one burst.

    Args:
        run: The kernel on ``inputs``.
        inputs: Tensors that the kernel reads; brought back into cache after eviction.
        plan: When to stop.
        device: Whose clock counts, and whose caches; None is the host.

    Returns:
        Seconds of each timed run.
    """
    flusher = cache_flusher_for(plan.cores) if plan.evict_bytes and device is None else None
    seconds = _wall_s if device is None else device.seconds
    arrays = [a.reshape(-1).view(np.uint8) for a in inputs if a.dtype.kind not in "OSUT" and a.size]
    samples: list[float] = []
    # A short run may have waited for a processor for many times its length: what is said of it is said of several.
    if plan.warm_up and (first_s := seconds(run)) > max(_SURELY * plan.abandon_above_s, plan.budget_s):
        return [first_s]
    started = time.perf_counter()
    while True:
        if flusher is not None:
            flusher.flush(plan.evict_bytes)
            for array in arrays:
                array.max()
        elif device is not None and plan.evict_bytes:
            device.evict(plan.evict_bytes)
        samples.append(seconds(run))
        spent_s = time.perf_counter() - started
        if spent_s > plan.burst_s or _is_enough(samples, spent_s, plan):
            return samples


def sample_in_bursts(
    burst: Callable[[SamplingPlan], Sequence[float]], slowdown: Callable[[], float], plan: SamplingPlan
) -> list[float]:
    """Times a kernel in bursts, between which it is seen how fast the machine is.

    Args:
        burst: Times it as a plan says, until the burst ends (see ``sample``).
        slowdown: How many times as long as at best the machine takes just now, 1 or more.
        plan: When to stop. Of a machine that is not calm, up to half the budget more is spent.

    Returns:
        Seconds of the timed runs that count, as they would be if the machine were calm: those of bursts that it was calm
        for, or of the calmest where these have fewer than ``least`` runs.
    """
    bursts: list[tuple[float, list[float]]] = []
    spent_s, least_s = 0.0, math.inf
    before = slowdown()
    while True:
        started = time.perf_counter()
        # A long run warms up for itself.
        found = burst(replace(plan, warm_up=least_s < plan.burst_s or not bursts))
        spent_s += time.perf_counter() - started
        least_s = min(least_s, *found)
        after = slowdown()
        met = math.sqrt(before * after)
        bursts.append((met, [normalize(seconds, met) for seconds in found]))
        counting = _calmest(bursts, plan.least)
        if _is_enough(counting, spent_s, plan) and not _may_become_calm(bursts, spent_s, plan):
            return counting
        before = after


def _may_become_calm(bursts: Sequence[tuple[float, Sequence[float]]], spent_s: float, plan: SamplingPlan) -> bool:
    """Whether to wait for calm bursts, since those so far do not have enough runs."""
    calm = [seconds for met, samples in bursts if met <= _CALM for seconds in samples]
    hopeless = min(min(samples) for _, samples in bursts) > plan.abandon_above_s
    if hopeless or (calm and _is_enough(calm, spent_s, plan)):
        return False
    return spent_s < _PATIENCE * plan.budget_s and sum(len(s) for _, s in bursts) < _PATIENCE * plan.most


def _calmest(bursts: Sequence[tuple[float, Sequence[float]]], least: int) -> list[float]:
    """The samples of all bursts that the machine was calm for, and of the next calmest until there are ``least`` of them."""
    counting: list[float] = []
    for met, samples in sorted(bursts, key=lambda burst: burst[0]):
        if met > _CALM and len(counting) >= least:
            break
        counting += samples
    return counting


def kernel_slowdown(slowdown: float) -> float:
    """How many times as long as on a calm machine kernels take at a pace, 1 or more."""
    return math.pow(max(slowdown / _USUAL, 1.0), _SLOWER)


def normalize(seconds: float, slowdown: float) -> float:
    """What a kernel would take on this machine while it is calm, that took so long at this pace."""
    return seconds / kernel_slowdown(slowdown)


def _is_enough(samples: Sequence[float], spent_s: float, plan: SamplingPlan) -> bool:
    """Whether no further run is worth its time."""
    least_s = min(samples)
    if len(samples) >= plan.most:
        return True
    if least_s > plan.abandon_above_s and (len(samples) >= _FEWEST or least_s > plan.budget_s):
        return True
    # Slow kernels are worth fewer runs: some of more than the whole budget each are enough.
    if spent_s > plan.budget_s and len(samples) >= (_FEWEST if least_s > plan.budget_s else plan.least):
        return True
    if len(samples) < plan.least:
        return False
    interval = median_interval(samples)
    return (interval.high - interval.low) / 2 < plan.spread * statistics.median(samples)


def _wall_s(run: Callable[[], Any]) -> float:
    before = time.perf_counter()
    run()
    return time.perf_counter() - before
