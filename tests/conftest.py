"""For all tests: they do the same every time, and no test depends on how long anything takes.

What hypothesis makes up follows from the test's own text: a change is judged by what it changes, and whoever reads of a failure
can have it again. New examples are looked for by ``make test-all``, with the profile ``fresh``.
"""

from __future__ import annotations

import functools
import gc
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("fresh", deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark as slow all but a few of a test's parameters, spread evenly, where the test says how many are enough: at least two."""
    of_test: dict[tuple[Any, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few"):
            of_test.setdefault((item.parent, item.originalname), []).append(item)
    for alike in of_test.values():
        count = alike[0].get_closest_marker("few").args[0]
        kept = {round(i * (len(alike) - 1) / (count - 1)) for i in range(count)}
        for place, item in enumerate(alike):
            if place not in kept:
                item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Exempt from garbage collection what is there until the end: thousands of tests, and the libraries that they import.

    PyTorch collects all garbage after each export, which takes a third of a second otherwise.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Begin each test with the same random numbers, whichever ran before; and see ``_share_tables``."""
    random.seed(0)
    np.random.seed(0)
    seed = getattr(sys.modules.get("torch"), "manual_seed", None)
    if seed is not None:
        seed(0)
    _share_tables()


def _share_tables() -> None:
    """Have exports of PyTorch share their table of ONNX functions.

    For each export PyTorch parses the source of all functions anew, which is more than half of a small one's time. Some ninety
    tests export something.
    """
    exporter = sys.modules.get("torch.onnx._internal.exporter._registration")
    registry = getattr(exporter, "ONNXRegistry", None)
    if registry is None or "made" in vars(registry):
        return
    make = functools.cache(registry.from_torchlib.__func__)

    def copied(kind: Any, *arguments: Any, **options: Any) -> Any:
        """Return a table to which the caller may add functions."""
        made, table = make(kind, *arguments, **options), kind()
        table.__dict__.update(made.__dict__)
        table.functions = {name: list(functions) for name, functions in made.functions.items()}
        return table

    registry.made = make
    registry.from_torchlib = classmethod(copied)
