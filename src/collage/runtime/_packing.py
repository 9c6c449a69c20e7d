"""Packing: several artefacts of one model become one, and one of them is taken out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from collage._errors import UsageError
from collage.runtime._artefact import write_files
from collage.runtime._manifest import MANIFEST, verify, verify_bytes
from collage.runtime._open import unpacked
from collage.runtime._pack import (
    PACK,
    PackedPlan,
    entries,
    general_plans,
    materialise,
    pack_of,
    read_pack,
    read_plans,
    verify_others,
    why_not_together,
)
from collage.runtime._recipe import Recipe
from collage.store import shown
from collage.system.scratch import scratch

__all__ = ["pack", "unpack_plan", "verify_plans"]


def pack(artefacts: Sequence[str | Path], path: str | Path) -> tuple[PackedPlan, ...]:
    """Write one artefact with the plans of several, each for a machine or lengths of its own. Equal files are stored once.

    Args:
        artefacts: Artefacts of one model: folders, zips, URLs or packs, whose plans are taken. Every byte is verified.
        path: A folder, a file whose name ends in ``.zip``, or a URL.

    Returns:
        The plans of the pack, in order.

    Raises:
        UsageError: The artefacts are not of one model, or two plans are for one machine and the same lengths.
        ArtefactError: One of them is damaged.
    """
    if not artefacts:
        raise UsageError("there is nothing to pack")
    plans: dict[str, PackedPlan] = {}
    with ExitStack() as stack:
        objects = stack.enter_context(scratch())
        for artefact in artefacts:
            folder = stack.enter_context(unpacked(artefact))
            for plan, source in _verified(folder, stack):
                plans.setdefault(plan.manifest, plan)
                _gather(plan, source, objects)
        # Readers that look at one plan take the first: it is to be one that takes all lengths.
        general = general_plans(list(plans.values()))
        found = (*general, *(plan for plan in plans.values() if plan not in general))
        if (reason := why_not_together(found)) is not None:
            raise UsageError(f"cannot pack: {reason}")
        write_files(Path(path), PACK, lambda: pack_of(found), [objects / name for name in sorted(entries(found))])
    return found


def unpack_plan(artefact: str | Path, path: str | Path, machine: str) -> PackedPlan:
    """Write one plan of a pack as the artefact that was packed.

    Args:
        artefact: The pack.
        path: A folder, a file whose name ends in ``.zip``, or a URL.
        machine: The first characters of the fingerprint of the plan's machine, or of the digest of its manifest. Of a machine
            that has plans for some lengths too, the fingerprint means the plan for all lengths.

    Raises:
        UsageError: It is not a pack, or holds not exactly one plan of such a machine.
        ArtefactError: It is damaged.
    """
    with unpacked(artefact) as folder, scratch() as plain:
        if not (folder / PACK).is_file():
            raise UsageError(f"{shown(artefact)} is not a pack, so there is nothing to unpack")
        plans = read_plans(folder, *read_pack(folder))
        found = [
            plan
            for plan in plans
            if machine and (plan.made_on.fingerprint.startswith(machine) or plan.manifest.startswith(machine))
        ]
        if len(found) > 1:  # Plans for some lengths are named by their manifests.
            found = [plan for plan in found if plan in general_plans(plans)]
        if len(found) != 1:
            there = "; ".join(str(plan.made_on) for plan in plans)
            raise UsageError(
                f"{len(found)} plans are of a machine whose fingerprint begins with {machine!r}; there are {there}"
            )
        materialise(folder, found[0], plain)
        verify_bytes(plain)
        files = [plain / name for name in found[0].files]
        write_files(Path(path), MANIFEST, (plain / MANIFEST).read_bytes, files)
        return found[0]


def verify_plans(folder: Path) -> list[tuple[Recipe, Mapping[str, Any]]]:
    """Verify every file of an artefact or a pack in a folder, for whatever machine it was made.

    Returns:
        The recipe and the manifest of each plan. In a pack that ``pack`` wrote, the first one is for all lengths.

    Raises:
        ArtefactError: A file is missing, was changed, or belongs to no plan.
    """
    with ExitStack() as stack:
        return [verify(place) for _, place in _verified(folder, stack)]


def _verified(folder: Path, stack: ExitStack) -> list[tuple[PackedPlan, Path]]:
    """Return the plans of an artefact, each with a folder of its files, after every byte was compared with its digest."""
    if not (folder / PACK).is_file():
        verify_bytes(folder)
        return [(PackedPlan.read(folder / MANIFEST), folder)]
    plans, found = read_plans(folder, *read_pack(folder)), []
    verify_others(folder, plans)
    for plan in plans:
        plain = stack.enter_context(scratch())
        materialise(folder, plan, plain)
        verify_bytes(plain)
        found.append((plan, plain))
    return found


def _gather(plan: PackedPlan, source: Path, objects: Path) -> None:
    """Add the files of a plan to a folder in which their names are their digests."""
    for name, digest in ((MANIFEST, plan.manifest), *((name, digest) for name, (digest, _) in plan.files.items())):
        target = objects / digest
        if target.exists():
            continue
        try:
            os.link(source / name, target)
        except OSError:  # Another file system, or one without links.
            shutil.copyfile(source / name, target)
