"""The least times of several profiles, so that a busy neighbour decides no test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from collage.target import Target
from collage.toolchains import Compiled, Profiler


def least_seconds(
    toolchain: Profiler, compiled: Compiled, target: Target, folder: Path, inputs: Sequence[np.ndarray]
) -> Mapping[int, float]:
    """Return the seconds of each node that a step is known by: the least of five profiles, each the median of five runs."""
    profiles = [toolchain.profile(compiled, target, folder, inputs, 5) for _ in range(5)]
    return {step[0]: min(profile.get(step, 0.0) for profile in profiles) for step in profiles[0]}
