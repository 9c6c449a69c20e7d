"""Artefacts that come back from other machines: each is checked before it is kept."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collage._errors import ArtefactError
from collage.fleet.machines import MachineType
from collage.fleet.models import ModelFiles
from collage.runtime import MadeOn, unpack, verify_plans
from collage.system.scratch import scratch

__all__ = ["Kept", "file_digest", "keep", "most_bytes"]

_ROOM_BYTES = 256 << 20
_TIMES = 8


@dataclass(frozen=True, slots=True)
class Kept:
    """An artefact that was kept.

    Attributes:
        digest: SHA-256 of its file.
        time_us: Median latency, if it was measured.
        gain: Speed-up over the original model on ONNX Runtime, if it was measured.
        versions: The version of Collage, and the build of each toolchain that it uses.
    """

    digest: str
    time_us: float | None
    gain: float | None
    versions: Mapping[str, str]


def most_bytes(model: ModelFiles) -> int:
    """Return the largest size of an artefact of a model. Kernels hold packed copies of their weights, but only a few."""
    return _ROOM_BYTES + _TIMES * model.bytes


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file; empty if there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def keep(artefact: bytes, model: ModelFiles, machine: MachineType, path: Path) -> Kept:
    """Check an artefact, and put it in its place in one step.

    Args:
        artefact: A zip.
        model: The model that it must be of.
        machine: The type of machine that it must be made on.
        path: Path to write the artefact to.

    Raises:
        ArtefactError: It is damaged, too large, or of another model or machine.
    """
    if not isinstance(artefact, bytes) or len(artefact) > most_bytes(model):
        raise ArtefactError(f"the returned file for {model.path.name} is too large for its artefact")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(artefact)
            file.flush()
            os.fsync(file.fileno())
        kept = _checked(Path(draft), model, machine, hashlib.sha256(artefact).hexdigest())
        Path(draft).chmod(0o644)
        Path(draft).replace(path)
    finally:
        Path(draft).unlink(missing_ok=True)
    return kept


def _checked(archive: Path, model: ModelFiles, machine: MachineType, digest: str) -> Kept:
    with scratch() as folder:
        unpack(archive, folder)
        plans = verify_plans(folder)
    recipe, manifest = plans[0]
    name = model.path.name
    if any((made_on := MadeOn.read(told)).fingerprint != machine.fingerprint for _, told in plans):
        raise ArtefactError(f"the returned file for {name} was made on another machine than {machine.name}: {made_on}")
    if recipe.model.get("sha256") != model.digest:
        raise ArtefactError(f"the returned file for {name} is the artefact of another model or of other weights")
    ports = [tuple((port.name, port.dtype) for port in each) for each in (recipe.inputs, recipe.outputs)]
    if ports != [model.inputs, model.outputs]:
        raise ArtefactError(f"the returned file for {name} has other inputs or outputs than the model")
    returned, gain = recipe.report.returned, recipe.report.gain("baseline")
    time = None if returned is None else returned.measured_us
    versions = {"collage": str(manifest.get("collage")), **{str(k): str(v) for k, v in recipe.builds.items()}}
    return Kept(digest, None if time is None else time.median, None if gain is None else gain.ratio.value, versions)
