"""Time one kernel with the caches that it meets inside the model, until the median is known well enough.

A kernel alone in a loop finds its weights in cache; inside the model, those of all others have been through the cache since.
Measured in a loop, small kernels look 10 to 20 % too cheap, and a search over many of them picks the luckiest. So before
every timed run all processors touch as much memory as the rest of the model leaves in their caches (see
``collage.measure.cache_pressure``), and then this one the inputs, which the kernel before has just written.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from collage.cost.statistics import median_interval
from collage.measure.cache_flush import cache_flusher_for
from collage.toolchains import Device, DeviceKernel, Kernel

__all__ = ["SamplingPlan", "sample", "sample_kernel"]

_SURELY = 4.0
"""A first run this many times above what is hopeless needs no second one if it took long; no warm-up saves so much."""
_FEWEST = 3


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """When to stop measuring.

    Attributes:
        evict_bytes: Memory that each processor touches before every timed run.
        cores: Number of processors.
        budget_s: Seconds after which no new run is started, once there are ``least`` runs.
        least: Fewest timed runs.
        most: Most timed runs.
        spread: Stop when the median's interval is within this share of the median, to either side.
        abandon_above_s: Stop after three runs if the fastest of them is above this: the kernel cannot be chosen.
    """

    evict_bytes: int = 0
    cores: int = 1
    budget_s: float = 0.3
    least: int = 7
    most: int = 60
    spread: float = 0.02
    abandon_above_s: float = 1e9


def sample_kernel(kernel: Kernel, inputs: Sequence[np.ndarray[Any, Any]], plan: SamplingPlan) -> list[float]:
    """Time a kernel as it runs within a model: on a device, between tensors that are there, and recorded if it can be.

    Args:
        kernel: The kernel.
        inputs: Its inputs, on the host.
        plan: The conditions to stop.

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
    """Time ``run`` as ``plan`` says, after one run to warm up.

    Args:
        run: The kernel on ``inputs``.
        inputs: Tensors that the kernel reads; brought back into cache after eviction.
        plan: The conditions to stop.
        device: Whose clock counts, and whose caches; None is the host.

    Returns:
        Seconds of each timed run.
    """
    flusher = cache_flusher_for(plan.cores) if plan.evict_bytes and device is None else None
    seconds = _wall_s if device is None else device.seconds
    tensors = [x for given in inputs if given is not None for x in (given if isinstance(given, list) else [given])]
    arrays = [x.reshape(-1).view(np.uint8) for x in tensors if x.dtype.kind not in "OSUT" and x.size]
    samples: list[float] = []
    # A short run may have waited for a processor for many times its length: what is said of it is said of several.
    if (first_s := seconds(run)) > max(_SURELY * plan.abandon_above_s, plan.budget_s):
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
        if _is_enough(samples, spent_s, plan):
            return samples


def _is_enough(samples: Sequence[float], spent_s: float, plan: SamplingPlan) -> bool:
    """Return True if no further run is worth its time."""
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
