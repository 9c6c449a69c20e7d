"""What timings depend on besides kernels: which cores, and how much of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collage.machine import free_memory_bytes, physical_cores, processor_quota, this_machine


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    """Two packages of two cores of two threads each: processors 0 to 7, siblings four apart."""
    for number in range(8):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{number % 4 // 2}\n")
        (folder / "core_id").write_text(f"{number % 2}\n")
    return tmp_path


def test_two_threads_of_one_core_are_one_core(topology: Path) -> None:
    assert physical_cores({0, 4}, topology) == 1
    assert physical_cores({0, 1}, topology) == 2
    assert physical_cores({0, 2}, topology) == 2  # Equal numbers in two packages.
    assert physical_cores(range(8), topology) == 4


def test_where_the_system_does_not_say_every_processor_is_a_core(tmp_path: Path) -> None:
    assert physical_cores({0, 1, 2}, tmp_path) == 3


def test_the_quota_of_a_container_is_read_from_either_version(tmp_path: Path) -> None:
    assert processor_quota(tmp_path) is None
    old = tmp_path / "cpu"
    old.mkdir()
    (old / "cpu.cfs_period_us").write_text("100000\n")
    (old / "cpu.cfs_quota_us").write_text("-1\n")
    assert processor_quota(tmp_path) is None
    (old / "cpu.cfs_quota_us").write_text("150000\n")
    assert processor_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert processor_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert processor_quota(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("nonsense\n")
    assert processor_quota(tmp_path) is None


@pytest.mark.parametrize("change", [{"cores": 64}, {"physical_cores": 64}, {"quota": 0.5}, {"isa": "other"}])
def test_timings_of_other_circumstances_are_not_comparable(change: dict[str, float]) -> None:
    machine = this_machine()
    assert replace(machine, **change).fingerprint != machine.fingerprint
    assert replace(machine, memory_bytes=1).fingerprint == machine.fingerprint


def test_free_memory_is_what_a_container_leaves(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert free_memory_bytes(meminfo, tmp_path) == 0
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\nBuffers: 1 kB\n")
    assert free_memory_bytes(meminfo, tmp_path) == 4000 << 10
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1024\n")
    assert free_memory_bytes(meminfo, tmp_path) == 4000 << 10
    (tmp_path / "memory.max").write_text("2048\n")
    assert free_memory_bytes(meminfo, tmp_path) == 1024
    (tmp_path / "memory.current").write_text("4096\n")
    assert free_memory_bytes(meminfo, tmp_path) == 0


def test_free_memory_by_the_first_version_of_control_groups(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "memory"
    meminfo.write_text("MemAvailable: 4000 kB\n")
    group.mkdir()
    (group / "memory.usage_in_bytes").write_text("1000\n")
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert free_memory_bytes(meminfo, tmp_path) == 4000 << 10
    (group / "memory.limit_in_bytes").write_text("3000\n")
    assert free_memory_bytes(meminfo, tmp_path) == 2000
