"""Kernels on a device are timed there: by its clock, between its tensors, recorded if they can be."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.runtime.test_device_chain import Affine, OnHost, PretendedDevice

from collage.measure.sampling import SamplingPlan, sample_kernel

PLAN = SamplingPlan(evict_bytes=1 << 20, budget_s=0.0, least=5, most=5)


@pytest.mark.parametrize("capturable", [True, False])
def test_the_devices_clock_counts_and_nothing_crosses(capturable: bool) -> None:
    device = PretendedDevice()
    evicted: list[int] = []
    device.evict = evicted.append  # type: ignore[method-assign]
    kernel = Affine(device, 2.0, capturable)
    samples = sample_kernel(kernel, [np.ones(4), np.ones(4)], PLAN)
    assert samples == [1e-3] * len(samples) and len(samples) >= 3
    assert device.uploads == 2 and device.downloads == 0
    assert device.recordings == int(capturable)
    assert evicted == [1 << 20] * len(samples)


def test_what_cannot_be_recorded_after_all_is_called() -> None:
    class Fussy(PretendedDevice):
        def record(self, work: object) -> object:
            raise RuntimeError("waits for a result")

    device = Fussy()
    assert sample_kernel(Affine(device, 2.0), [np.ones(4)], PLAN)
    assert device.replays == 0


def test_kernels_of_the_host_are_timed_as_before() -> None:
    samples = sample_kernel(OnHost(2.0), [np.ones(4)], PLAN)
    assert samples and all(0 < value < 1 for value in samples)
