"""Limits of containers, by either version of control groups, and of the groups that this process is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage.system.cgroups import free_in_groups_bytes, limit_of_groups_bytes, processor_quota


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    """In place of what says in which groups this process is: the root of what is mounted, as in a container."""
    return tmp_path / "nowhere"


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_the_quota_of_a_container_is_read_from_either_version(tmp_path: Path, nowhere: Path) -> None:
    assert processor_quota(tmp_path, nowhere) is None
    put(tmp_path / "cpu", cpu__cfs_period_us="100000", cpu__cfs_quota_us="-1")
    assert processor_quota(tmp_path, nowhere) is None
    put(tmp_path / "cpu", cpu__cfs_quota_us="150000")
    assert processor_quota(tmp_path, nowhere) == 1.5
    put(tmp_path, cpu__max="max 100000")
    assert processor_quota(tmp_path, nowhere) == 1.5
    put(tmp_path, cpu__max="50000 100000")
    assert processor_quota(tmp_path, nowhere) == 0.5
    put(tmp_path, cpu__max="nonsense")
    assert processor_quota(tmp_path, nowhere) == 1.5


@pytest.mark.parametrize(
    ("line", "root"), [("0::/machine/job", "."), ("0::/machine/job", "unified"), ("4:cpu,cpuacct:/machine/job", "cpu")]
)
def test_the_least_limit_of_a_group_and_those_around_it_counts(tmp_path: Path, line: str, root: str) -> None:
    own = tmp_path / "own"
    own.write_text(f"9:pids:/other\n{line}\n")
    if line.startswith("0"):
        limit = {whole: {"cpu__max": f"{whole}00000 100000"} for whole in (1, 2, 3)}
    else:
        limit = {n: {"cpu__cfs_period_us": "100000", "cpu__cfs_quota_us": f"{n}00000"} for n in (1, 2, 3)}
    put(tmp_path / root / "other", **limit[1])
    put(tmp_path / root / "machine" / "another", **limit[1])
    assert processor_quota(tmp_path, own) is None
    put(tmp_path / root / "machine" / "job", **limit[3])
    assert processor_quota(tmp_path, own) == 3.0
    put(tmp_path / root / "machine", **limit[2])
    assert processor_quota(tmp_path, own) == 2.0
    put(tmp_path / root, **limit[1])
    assert processor_quota(tmp_path, own) == 1.0


@pytest.mark.parametrize("text", ["", "nonsense", "0::/../../elsewhere", "0::/gone", "\0:\0:\0"])
def test_a_group_that_cannot_be_found_is_the_root(tmp_path: Path, text: str) -> None:
    (tmp_path / "own").write_text(text)
    put(tmp_path, cpu__max="50000 100000")
    assert processor_quota(tmp_path, tmp_path / "own") == 0.5


def test_free_memory_is_what_a_container_leaves(tmp_path: Path, nowhere: Path) -> None:
    assert free_in_groups_bytes(tmp_path, nowhere) is None
    put(tmp_path, memory__max="max", memory__current="1024")
    assert free_in_groups_bytes(tmp_path, nowhere) is None
    assert limit_of_groups_bytes(tmp_path, nowhere) is None
    put(tmp_path, memory__max="2048")
    assert free_in_groups_bytes(tmp_path, nowhere) == 1024
    assert limit_of_groups_bytes(tmp_path, nowhere) == 2048
    put(tmp_path, memory__current="4096")
    assert free_in_groups_bytes(tmp_path, nowhere) == 0


def test_free_memory_by_the_first_version_of_control_groups(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("4:memory:/job\n")
    put(tmp_path / "memory", memory__usage_in_bytes="1000", memory__limit_in_bytes="9223372036854771712")
    assert free_in_groups_bytes(tmp_path, tmp_path / "own") == 9223372036854771712 - 1000
    put(tmp_path / "memory" / "job", memory__usage_in_bytes="1000", memory__limit_in_bytes="3000")
    assert free_in_groups_bytes(tmp_path, tmp_path / "own") == 2000
    assert limit_of_groups_bytes(tmp_path, tmp_path / "own") == 3000


def test_this_machine_has_limits_or_none() -> None:
    assert (processor_quota() or 1.0) > 0.0
    assert (free_in_groups_bytes() or 0) >= 0
