"""The pack: one artefact with several plans of one model, whose files are stored once.

The plans are for several machines, or for several lengths of the model's dimensions, or for both.

::

    model.collage/
        pack.json         the digest of the model, and the SHA-256 of each plan's manifest
        <sha256>          every manifest, and every file that a manifest lists, named by the SHA-256 of its bytes

Or a zip of it, stored without compression. A plan in a pack is byte for byte the artefact that was packed. A file's name is
its digest, so files that are equal are one file, and a file that was changed no longer has its name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collage._errors import ArtefactError
from collage._version import __version__
from collage.runtime._made_on import MadeOn
from collage.runtime._manifest import MANIFEST, file_digest, read_json, understood, verify_size
from collage.runtime._recipe import WEIGHTS, Recipe
from collage.runtime._signature import Port
from collage.system.plain_names import is_plain_name
from collage.target import Target
from collage.toolchains.sdk.model_files import MAPPED_WEIGHTS

__all__ = [
    "PACK",
    "PackedPlan",
    "entries",
    "general_plans",
    "materialise",
    "pack_of",
    "read_pack",
    "read_plans",
    "verify_others",
    "why_not_together",
]

PACK = "pack.json"

_SCHEMA = 1
_MOST_PLANS = 64
_MAX_PACK_BYTES = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PackedPlan:
    """One plan of a pack.

    Attributes:
        manifest: SHA-256 of its manifest, which is the name of that file in the pack.
        files: SHA-256 and size of each of its other files, by name.
        recipe: Its parts.
        made_on: The machine that it was made on.
    """

    manifest: str
    files: Mapping[str, tuple[str, int]]
    recipe: Recipe
    made_on: MadeOn

    @property
    def model(self) -> str:
        """The digest of the model that it was compiled from, empty if it is not known."""
        return _digest_or_empty(self.recipe.model.get("sha256"))

    @property
    def device_builds(self) -> Mapping[str, str]:
        """Builds of the toolchains that serve devices beside the processor. They name the device, such as a GPU."""
        return {name: build for name, build in self.recipe.builds.items() if ":" in name}

    @property
    def machine(self) -> tuple[str, ...]:
        """Facts that are equal for two plans of one machine. A pack holds one of these for each set of lengths."""
        return (*self.made_on.identity, *(f"{name} {build}" for name, build in sorted(self.device_builds.items())))

    @property
    def lengths(self) -> str:
        """The inputs with their lengths, as text."""
        return "; ".join(map(str, self.recipe.inputs))

    @property
    def targets(self) -> tuple[str, ...]:
        """The short forms of its targets, each once."""
        return tuple(dict.fromkeys(Target.parse(kernel.target).short for kernel in self.recipe.kernels))

    @classmethod
    def read(cls, path: Path) -> PackedPlan:
        """Return the plan of a manifest, of which nothing but the manifest itself is read.

        Raises:
            ArtefactError: It is not a manifest, or lists a file that a pack cannot hold.
        """
        manifest = read_json(path)
        recipe, listed = understood(manifest, path)
        for name, (digest, size) in listed.items():
            if not is_plain_name(name) or name == MANIFEST or not _DIGEST.fullmatch(digest) or size < 0:
                raise ArtefactError(f"{path} names a file {name[:80]!r} in a way that a pack cannot hold")
        return cls(file_digest(path), listed, recipe, MadeOn.read(manifest))

    def __str__(self) -> str:
        count = len(self.recipe.kernels)
        devices = "".join(f", {build}" for build in self.device_builds.values())
        return f"{self.made_on}{devices}: {count} {'kernel' if count == 1 else 'kernels'} on {', '.join(self.targets)}"


def pack_of(plans: Sequence[PackedPlan]) -> bytes:
    """Return the contents of ``pack.json`` for these plans."""
    told = {
        "schema": _SCHEMA,
        "collage": __version__,
        "model": plans[0].model,
        "plans": [plan.manifest for plan in plans],
    }
    return json.dumps(told, indent=1).encode()


def read_pack(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a pack's model and those of its manifests, of which none is read.

    Raises:
        ArtefactError: The file ``pack.json`` cannot be read, or says something that is not a pack.
    """
    path = folder / PACK
    told = read_json(path, _MAX_PACK_BYTES)
    if told.get("schema") != _SCHEMA or type(told["schema"]) is not int:
        raise ArtefactError(
            f"{path} has schema {str(told.get('schema'))[:40]}, this version reads {_SCHEMA}; use a newer version"
        )
    manifests, model = told.get("plans"), _digest_or_empty(told.get("model"))
    if not isinstance(manifests, list) or not 1 <= len(manifests) <= _MOST_PLANS or not model:
        raise ArtefactError(f"{path} is not a pack: it has no model, or not 1 to {_MOST_PLANS} plans")
    if not all(_digest_or_empty(digest) for digest in manifests) or len(set(manifests)) < len(manifests):
        raise ArtefactError(f"{path} is not a pack: a plan is not named by a digest, or is there twice")
    return model, tuple(manifests)


def read_plans(folder: Path, model: str, manifests: Sequence[str]) -> tuple[PackedPlan, ...]:
    """Return the plans of a pack whose manifests are in a folder, and check that they belong together.

    Raises:
        ArtefactError: A manifest is missing, was changed, or is of another model or of a machine that is there twice.
    """
    plans = []
    for digest in manifests:
        path = folder / digest
        # The size first: a file of any length may have this name.
        read_json(path)
        if file_digest(path) != digest:
            raise ArtefactError(f"{path} was changed: its SHA-256 is not its name")
        plans.append(PackedPlan.read(path))
    if (reason := why_not_together(plans)) is not None or plans[0].model != model:
        raise ArtefactError(f"{folder / PACK} is not a pack: {reason or 'its plans are of another model'}")
    return tuple(plans)


def why_not_together(plans: Sequence[PackedPlan]) -> str | None:
    """Return why plans cannot be in one pack, None if they can."""
    if len(plans) > _MOST_PLANS:
        return f"{len(plans)} plans; a pack holds at most {_MOST_PLANS}"
    general = general_plans(plans)
    first, seen = (general or plans)[0], set[tuple[str, ...]]()
    sizes: dict[str, int] = {}
    for plan in plans:
        if not plan.model:
            return f"the plan for {plan.made_on} does not say which model it was compiled from"
        if plan.model != first.model:
            return f"the plan for {plan.made_on} is of another model than the plan for {first.made_on}"
        for kind in ("inputs", "outputs"):
            if not _all_fit(getattr(plan.recipe, kind), getattr(first.recipe, kind), may_open=kind == "outputs"):
                ours, theirs = ("; ".join(map(str, getattr(each.recipe, kind))) for each in (first, plan))
                return f"its plans have different {kind}: {ours}, and {theirs}"
        if (identity := (*plan.machine, plan.lengths)) in seen:
            return f"two plans are for one machine, {plan.made_on}, and the same lengths"
        seen.add(identity)
        if general and plan.machine not in {one.machine for one in general}:
            return f"a plan for {plan.made_on} takes {plan.lengths} only, and no other plan is for that machine"
        for digest, size in plan.files.values():
            if sizes.setdefault(digest, size) != size:
                return f"one file has two sizes, {digest}"
    return None


def general_plans(plans: Sequence[PackedPlan]) -> list[PackedPlan]:
    """Return the plans that take all lengths that any of the plans takes. The others are for some of these lengths only."""
    return [plan for plan in plans if all(_all_fit(one.recipe.inputs, plan.recipe.inputs) for one in plans)]


def _all_fit(ports: Sequence[Port], general: Sequence[Port], *, may_open: bool = False) -> bool:
    """Return True if ports differ from the general ones only in lengths, and these are among those of the general ones.

    With ``may_open`` a length may be open where the general port has a number.
    """
    if len(ports) != len(general):
        return False
    for one, other in zip(ports, general, strict=True):
        if replace(one, shape=None) != replace(other, shape=None):
            return False
        if one.shape is None or other.shape is None:
            if other.shape is not None and not may_open:
                return False
        elif len(one.shape) != len(other.shape) or any(
            isinstance(theirs, int) and mine != theirs and not (may_open and not isinstance(mine, int))
            for mine, theirs in zip(one.shape, other.shape, strict=True)
        ):
            return False
    return True


def entries(plans: Iterable[PackedPlan]) -> Mapping[str, int | None]:
    """Return the names of the files that belong to plans, and their sizes. Those of manifests are not told."""
    told: dict[str, int | None] = {}
    for plan in plans:
        told |= {digest: size for digest, size in plan.files.values()}
    return {**told, **{plan.manifest: None for plan in plans}}


def verify_others(folder: Path, plans: Sequence[PackedPlan], chosen: Sequence[PackedPlan] = ()) -> None:
    """Check every file of a pack besides those of the chosen plans, which are checked when these are opened.

    Raises:
        ArtefactError: A file is missing, was changed, or belongs to no plan.
    """
    told = entries(plans)
    present = {entry.name for entry in os.scandir(folder)} - {PACK}
    if extra := sorted(present - set(told)):
        raise ArtefactError(f"{folder} holds {extra[0]!r}, which belongs to none of its plans")
    own = set(entries(chosen))
    for name, size in sorted(told.items(), key=lambda item: item[1] or 0):
        path = folder / name
        if size is not None:
            verify_size(path, size)
        if name not in own and size is not None and file_digest(path) != name:
            raise ArtefactError(f"{path} was changed: its SHA-256 is not its name")


def materialise(folder: Path, plan: PackedPlan, empty: Path, only: Iterable[str] | None = None) -> None:
    """Write a plan of a pack as the plain artefact that it was, into an empty folder. Nothing is verified.

    Weights are linked, if the file system can: a file of several gigabytes is not copied, and processes share its pages.
    Everything else is copied, since what is built again may be written over it.

    Args:
        folder: The pack's folder.
        plan: The plan.
        empty: The folder to write to.
        only: Names of the files to write, None for all.

    Raises:
        ArtefactError: A file is missing, or nothing can be written.
    """
    wanted = {MANIFEST: plan.manifest, **{name: digest for name, (digest, _) in plan.files.items()}}
    for name in wanted if only is None else wanted.keys() & set(only):
        source, target = folder / wanted[name], empty / name
        if source.is_symlink() or not source.is_file():
            raise ArtefactError(f"{source} is missing, or is not a plain file")
        try:
            # Of several names of one file, the front door wants all to belong to one user.
            is_shared = name == WEIGHTS or name.endswith(MAPPED_WEIGHTS)
            if is_shared and source.stat().st_uid == empty.stat().st_uid and _linked(source, target):
                continue
            shutil.copyfile(source, target)
        except OSError as error:
            raise ArtefactError(f"cannot write {target}: {error.strerror or error}") from error


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:  # Another file system, one without links, or a file of another user.
        return False
    return True


def _digest_or_empty(value: Any) -> str:
    return value if isinstance(value, str) and _DIGEST.fullmatch(value) else ""
