"""Comparison of two artefacts of one model: times, in turns, and the changes in plan, versions and accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from collage._errors import UsageError
from collage.benchmark import row_of
from collage.explain import chosen_kernels, read_record
from collage.frontend import Lengths
from collage.inspection import describe_environment
from collage.measure.artefact_race import artefact_on, length_of, open_track, opened, raced
from collage.runtime import Recipe, kernel_rows
from collage.store import shown
from collage.system.scratch import scratch

__all__ = ["compare_artefacts"]

_BEFORE, _AFTER = "a", "b"
LEAST_ROUNDS = 6
"""With fewer there is no 95 % interval of a median."""


def compare_artefacts(
    before: Path,
    after: Path,
    model: Path | None = None,
    *,
    rounds: int = 15,
    doubt_below: float | None = None,
    dims: Lengths | None = None,
    inputs: Mapping[str, Any] = MappingProxyType({}),
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Race two artefacts of one model in turns, each in clean processes.

    Args:
        before: The artefact that is compared with, a folder or a zip.
        after: The other one.
        model: The file that the first was compiled from; None looks for it, and else takes the artefact's copy.
        rounds: Rounds, at least 6; each artefact has one turn in each.
        doubt_below: If the speed-up is below this beyond doubt, both artefacts race once more, in new processes. The
            better of both results counts. A process may be slow for as long as it lives.
        dims: Representative lengths of symbolic dimensions; None is those that the first was compiled for.
        inputs: Representative inputs by name; those not given are made up.
        say: Called with each line of progress.

    Returns:
        JSON values: ``rows`` with times in µs and errors, ``speedup`` of the second over the first with its interval (None
        if one of them failed), what changed in the ``plan`` and in ``versions``, and the environment.

    Raises:
        UsageError: The artefacts do not take and make the same, or the model is another one.
        ArtefactError: One of them is damaged, or was changed.
    """
    if rounds < LEAST_ROUNDS:
        raise UsageError(f"{rounds} rounds: no interval of 95 % follows from fewer than {LEAST_ROUNDS}")
    with ExitStack() as stack:
        workspace = stack.enter_context(scratch())
        folder_a, recipe_a, place_a = opened(before, stack, say)
        folder_b, recipe_b, place_b = opened(after, stack, say)
        _check_alike(recipe_a, recipe_b)
        track = open_track(stack, workspace, recipe_a, folder_a, model, dims, inputs, say)
        finalists = [
            artefact_on(track, _BEFORE, place_a, recipe_a, incumbent=True),
            artefact_on(track, _AFTER, place_b, recipe_b),
        ]
        length = length_of(rounds, abandon_ratio=math.inf)
        result, duration_s = raced(track, finalists, length, _AFTER, say)
        if doubt_below is not None and result.speedup is not None and result.speedup[1].high < doubt_below:
            say("below the limit: comparing once more, in new processes")
            again, more_s = raced(track, finalists, length, _AFTER, say)
            duration_s += more_s
            if again.speedup is not None and again.speedup[1].high > result.speedup[1].high:
                result = again
        plan = _plan_changes(recipe_a, folder_a, recipe_b, folder_b)
    recipes = {_BEFORE: recipe_a, _AFTER: recipe_b}
    rows = {each.finalist.name: row_of(each, recipes[each.finalist.name]) for each in result.standings}
    is_fair = all(row["median_us"] is not None for row in rows.values()) and result.speedup is not None
    return {
        "schema": 1,
        "a": shown(before),
        "b": shown(after),
        "rows": [{**rows[name], "artefact": shown(path)} for name, path in ((_BEFORE, before), (_AFTER, after))],
        "speedup": result.speedup[0] if is_fair and result.speedup else None,
        "speedup_interval": result.speedup[1].as_list() if is_fair and result.speedup else None,
        "plan": plan,
        "versions": _version_changes(recipe_a, recipe_b),
        "same_model": recipe_a.model.get("sha256") == recipe_b.model.get("sha256"),
        "rounds": rounds,
        "duration_s": duration_s,
        "environment": describe_environment(),
    }


def _check_alike(one: Recipe, other: Recipe) -> None:
    for kind in ("inputs", "outputs"):
        ours, theirs = ([str(port) for port in getattr(recipe, kind)] for recipe in (one, other))
        if [text.partition(" ")[0] for text in ours] != [text.partition(" ")[0] for text in theirs]:
            raise UsageError(
                f"the artefacts are not of one model: their {kind} are {'; '.join(ours)} and {'; '.join(theirs)}"
            )
        for mine, other_port in zip(getattr(one, kind), getattr(other, kind), strict=True):
            if not _may_be_equal(mine.shape, other_port.shape):
                raise UsageError(f"the artefacts are not of one model: one has {mine}, the other {other_port}")


def _may_be_equal(one: Sequence[Any] | None, other: Sequence[Any] | None) -> bool:
    """Return True if two shapes have some lengths in common; symbolic ones are any."""
    if one is None or other is None:
        return True
    pairs = list(zip(one, other, strict=False))
    return len(one) == len(other) and all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))


def _version_changes(one: Recipe, other: Recipe) -> list[dict[str, Any]]:
    """Return the toolchains whose builds differ, or that only one artefact uses."""
    names = dict.fromkeys([*one.builds, *other.builds])
    return [
        {"toolchain": name, "a": one.builds.get(name), "b": other.builds.get(name)}
        for name in names
        if one.builds.get(name) != other.builds.get(name)
    ]


def _plan_changes(one: Recipe, folder: Path, other: Recipe, other_folder: Path) -> dict[str, Any]:
    """Return what differs between two plans, by the names of operators, as far as the artefacts tell."""
    owners = [_owners(*each) for each in ((one, folder), (other, other_folder))]
    moved: dict[tuple[str, str], list[str]] = {}
    for name in owners[0].keys() & owners[1].keys():
        pair = owners[0][name], owners[1][name]
        if pair[0] != pair[1]:
            moved.setdefault(pair, []).append(name)
    only = [sorted(owners[i].keys() - owners[1 - i].keys()) for i in range(2)]
    return {
        "kernels": [len(one.kernels), len(other.kernels)],
        "moved": [
            {"from": source, "to": destination, "operators": sorted(names)}
            for (source, destination), names in sorted(moved.items())
        ],
        "only_a": only[0],
        "only_b": only[1],
    }


def _owners(recipe: Recipe, folder: Path) -> dict[str, str]:
    """Return the target of each operator, by the operator's name."""
    record = read_record(folder)
    if record is None:
        return {}
    chosen = chosen_kernels(record, kernel_rows(recipe)).values()
    return {record.names[i]: each.kernel.target for each in chosen for i in each.kernel.nodes}
