"""A race makes two things equal for all: where inputs begin in memory, and the processor that a turn begins on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.measure._executable_worker import _Service
from collage.numerics.value_store import ValueStore
from collage.toolchains import ALIGNMENT_BYTES

SHAPES = {"small": (1, 3), "odd": (7, 11), "large": (3, 1 << 17), "scalar": (), "empty": (0, 4)}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    store = ValueStore(tmp_path / "values")
    for name, shape in SHAPES.items():
        store.put_input(name, np.ones(shape, np.float32))
    store.flush()
    return str(tmp_path / "values")


def test_inputs_begin_where_those_of_callers_do(folder: str) -> None:
    seen: list[Mapping[str, Any]] = []
    service = _Service(lambda feeds: seen.append(feeds) or {}, list(SHAPES), [folder], [1.0])
    service.run(runs=1, warm_up=0, number=0)
    (feeds,) = seen
    assert {name: value.shape for name, value in feeds.items()} == SHAPES
    assert all((value == 1.0).all() and value.flags.writeable for value in feeds.values())
    assert {value.ctypes.data % ALIGNMENT_BYTES for value in feeds.values() if value.size} == {16}


@pytest.mark.parametrize("one_thread", [False, True])
def test_what_has_one_thread_begins_on_the_processor_of_the_round(
    folder: str, monkeypatch: pytest.MonkeyPatch, one_thread: bool
) -> None:
    allowed = os.sched_getaffinity(0)
    told: list[set[int]] = []
    service = _Service(lambda _: {}, [], [folder], [1.0], one_thread=one_thread)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, processors: told.append(set(processors)))
    for number in range(3):
        assert len(service.run(runs=2, warm_up=1, number=number)) == 2
    ordered = sorted(allowed)
    wanted = [each for n in range(3) for each in ({ordered[n % len(ordered)]}, allowed)]
    assert told == (wanted if one_thread else [])
