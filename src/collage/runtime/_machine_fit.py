"""The processors of the machine that an artefact was compiled on, against those that this process may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collage.runtime._manifest import processor_facts
from collage.runtime._recipe import Recipe
from collage.system.machine import threads_of_quota, usable_cores

__all__ = ["fitting_branches", "fitting_streams", "fitting_threads"]

_SEVERAL = 2


def fitting_threads(recipe: Recipe, compiled_on: Any) -> tuple[int, list[str]]:
    """Return the threads that kernels are to use here, 0 for their toolchains' default, and notes for the user.

    A quota of a container does not hide cores. A runtime that starts a thread for each core is then stopped by the system
    for most of the time. If nothing has changed since the compilation, neither do the threads: they were measured so.

    Args:
        recipe: The recipe of the executable.
        compiled_on: The return value of ``processor_facts`` on the machine of the compilation. Any other value counts as unknown.
    """
    here = processor_facts()
    cores, quota = int(here["cores"] or 1), here["quota"]
    usable = cores if quota is None else min(cores, threads_of_quota(quota))
    if recipe.devices is not None or compiled_on == here:
        return recipe.threads, []
    notes, threads = [], recipe.threads
    if (threads or cores) > usable:
        limit = f"{cores} cores" if quota is None or cores <= quota else f"{quota:g} of {cores} processors"
        was = f"compiled for {threads} threads" if threads else f"a thread for each of {cores} cores"
        notes.append(f"{was}, and this process may use {limit}: kernels use {_counted(usable)}")
        threads = usable
    known = _usable(compiled_on)
    if known is not None and known != usable:
        notes.append(
            f"its kernels were chosen where {known} processors were usable, and here are {usable}: "
            f"compile it here for the fastest choice"
        )
    return threads, notes


def fitting_streams(recipe: Recipe, threads: int) -> tuple[int, list[str]]:
    """Return the number of runs that may go on at once here, at most as the recipe says, and notes for the user.

    Args:
        recipe: The recipe of the executable.
        threads: Threads that its kernels are to use here; 0 is one for each core.
    """
    here = processor_facts()
    cores, quota = int(here["cores"] or 1), here["quota"]
    usable = cores if quota is None else min(cores, threads_of_quota(quota))
    room = max(1, usable // (threads or usable))
    if recipe.streams <= room:
        return recipe.streams, []
    return room, [
        f"compiled for {recipe.streams} runs at once, and {usable} processors are usable: {room} at once here"
    ]


def fitting_branches(recipe: Recipe, threads: int) -> tuple[int, list[str]]:
    """Return the number of branches that may run at the same time here, and notes for the user.

    With fewer processors than branches, some branches run one after the other.

    Args:
        recipe: The recipe of the executable.
        threads: Threads that a run may use; 0 is one for each core.
    """
    here = processor_facts()
    cores, quota = min(int(here["cores"] or 1), usable_cores()), here["quota"]
    usable = min([cores, *([threads] if threads else []), *([] if quota is None else [threads_of_quota(quota)])])
    if recipe.branches <= usable or recipe.branches < _SEVERAL:
        return recipe.branches, []
    told = "kernels run one after the other" if usable == 1 else f"{usable} run at the same time"
    return usable, [f"compiled for {recipe.branches} branches side by side, and {_processors(usable)} usable: {told}"]


def _processors(count: int) -> str:
    return "1 processor is" if count == 1 else f"{count} processors are"


def _usable(facts: Any) -> int | None:
    """Return how many processors some facts leave, None if they do not say."""
    if not isinstance(facts, Mapping):
        return None
    cores, quota = facts.get("cores"), facts.get("quota")
    if type(cores) is not int or cores < 1:
        return None
    if not isinstance(quota, int | float) or not 0 < quota < cores:
        return int(cores)
    return threads_of_quota(quota)


def _counted(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"
