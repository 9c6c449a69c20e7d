"""Marks of elements that rounding errors decide."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from collage.measure._kernel_worker import KernelWorker
from collage.numerics.value_store import ValueStore


@pytest.mark.parametrize(("changed", "marked"), [(0, 0), (2, 2), (5, 5), (6, 10), (9, 10), (10, 10)])
def test_if_rounding_decides_most_of_a_value_none_of_it_is_compared(changed: int, marked: int, tmp_path: Path) -> None:
    """The few elements that stay as they are do so by chance."""
    store = ValueStore(tmp_path)
    store.put("y", np.ones(10, np.float32))
    store.flush()
    noisy = np.ones(10, np.float32)
    noisy[:changed] = 2.0
    worker = KernelWorker("collage.testing:FakeToolchain")
    with patch.object(KernelWorker, "_captured", return_value=[("y", noisy)]):
        worker.mark_unstable("", "", "", str(tmp_path), [], 1e-4)
    found = ValueStore(tmp_path).unstable("y")
    assert (0 if found is None else int(found.sum())) == marked
