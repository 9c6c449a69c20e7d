"""What timings depend on besides kernels: which cores, and how much of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collage.system.machine import free_memory_bytes, physical_cores, this_machine


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


@pytest.mark.parametrize("change", [{"cores": 64}, {"physical_cores": 64}, {"quota": 0.5}, {"isa": "other"}])
def test_timings_of_other_circumstances_are_not_comparable(change: dict[str, float]) -> None:
    machine = this_machine()
    assert replace(machine, **change).fingerprint != machine.fingerprint
    assert replace(machine, memory_bytes=1).fingerprint == machine.fingerprint


@pytest.mark.parametrize(
    ("flags", "saturates"),
    [
        (("avx2", "ssse3"), True),
        (("avx2", "avx_vnni", "ssse3"), False),
        (("avx512_vnni", "ssse3"), False),
        (("asimd", "asimddp"), False),
        ((), False),
    ],
)
def test_without_vnni_x86_adds_products_of_bytes_in_16_bits(flags: tuple[str, ...], saturates: bool) -> None:
    assert replace(this_machine(), flags=flags).saturates_products_of_bytes == saturates


def test_free_memory_is_told_by_the_system(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert free_memory_bytes(meminfo) == 0
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    4 kB\nBuffers: 1 kB\n")
    assert free_memory_bytes(meminfo) == 4 << 10
