"""Threads that a container leaves work for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage.system.machine import this_machine, thread_count
from collage.target import Target
from collage.toolchains import LoadOptions, load_threads
from collage.toolchains.sdk import model_files


@pytest.mark.parametrize(
    ("cores", "physical", "quota", "processors", "expected"),
    [
        (8, 4, None, 8, 0),
        (8, 4, 8.0, 8, 0),
        (8, 4, 4.0, 8, 0),
        (8, 4, 2.0, 8, 2),
        (8, 4, 1.5, 8, 2),
        (8, 4, 0.25, 8, 1),
        # Processors are taken from the process.
        (2, 2, None, 8, 2),
        (4, 2, None, 8, 2),
        (4, 2, 1.0, 8, 1),
        (1, 1, 16.0, 8, 1),
    ],
)
def test_the_lesser_of_quota_and_cores_counts(
    cores: int, physical: int, quota: float | None, processors: int, expected: int
) -> None:
    machine = replace(this_machine(), cores=cores, physical_cores=physical, quota=quota)
    assert thread_count(machine, processors) == expected


@pytest.mark.parametrize(
    ("target", "asked", "left", "expected"),
    [
        ("llvm -threads=3", 2, 1, 3),
        ("llvm", 2, 1, 2),
        ("llvm", 0, 1, 1),
        ("llvm", 0, 0, 0),
    ],
)
def test_a_target_asks_first_then_the_loader_then_the_container(
    target: str, asked: int, left: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "thread_count", lambda: left)
    assert load_threads(Target.parse(target), LoadOptions(threads=asked)) == expected
