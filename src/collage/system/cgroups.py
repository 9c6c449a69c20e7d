"""Processors' time and memory that control groups leave to this process, in a container or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TypeVar

__all__ = ["free_in_groups_bytes", "limit_of_groups_bytes", "processor_quota"]

_Amount = TypeVar("_Amount", int, float)
_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_PROCESSORS = "cpu"
_MEMORY = "memory"
_LIMIT_AND_USE = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def processor_quota(mount: Path = _MOUNT, own: Path = _OWN) -> float | None:
    """Return the processors' time that this process and its neighbours in a group may take, by version 1 or 2 of groups.

    Args:
        mount: Folder at which the groups are mounted.
        own: File that names the groups of this process. If it names none, as in a container, the root of the mount counts.

    Returns:
        The least of the limits of its group and of those around it; None if there is none.
    """
    return _least(_quota, _groups(_PROCESSORS, mount, own))


def free_in_groups_bytes(mount: Path = _MOUNT, own: Path = _OWN) -> int | None:
    """Memory that the groups of this process leave; None if they set no limit. Arguments as of ``processor_quota``."""
    return _least(_free_bytes, _groups(_MEMORY, mount, own))


def limit_of_groups_bytes(mount: Path = _MOUNT, own: Path = _OWN) -> int | None:
    """Memory that the groups of this process may take; None if they set no limit. Arguments as of ``processor_quota``."""
    return _least(_limit_bytes, _groups(_MEMORY, mount, own))


def _least(tell: Callable[[Path], _Amount | None], groups: Iterable[Path]) -> _Amount | None:
    return min((told for group in groups if (told := tell(group)) is not None), default=None)


def _quota(group: Path) -> float | None:
    try:
        if (limit := group / "cpu.max").exists():
            quota, period = limit.read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return None if quota in ("max", "-1") else round(int(quota) / int(period), 2)
    except (OSError, ValueError, ZeroDivisionError):  # It is not there, or says nothing that can be understood.
        return None


def _free_bytes(group: Path) -> int | None:
    for limit, used in _LIMIT_AND_USE:
        try:
            return max(0, int((group / limit).read_text()) - int((group / used).read_text()))
        except (OSError, ValueError):
            continue
    return None


def _limit_bytes(group: Path) -> int | None:
    for limit, _ in _LIMIT_AND_USE:
        try:
            return int((group / limit).read_text())
        except (OSError, ValueError):
            continue
    return None


def _groups(controller: str, mount: Path, own: Path) -> Iterator[Path]:
    """The folders of the groups that this process is in, of either version, each before those around it."""
    places = {"": PurePosixPath(), controller: PurePosixPath()}
    try:
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            # Groups outside of what can be seen are told as "/..".
            inside = PurePosixPath(*(part for part in PurePosixPath(path).parts if part not in ("/", "..")))
            if controller in controllers.split(",") or not controllers:
                places[controller if controllers else ""] = inside
    except (OSError, ValueError):
        pass
    for root, inside in (
        (mount, places[""]),
        (mount / "unified", places[""]),
        (mount / controller, places[controller]),
    ):
        yield from (root / group for group in (inside, *inside.parents))
