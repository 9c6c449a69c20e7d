"""The artefact: a folder that holds a compiled model, verified before anything of it is used (design section 9).

::

    model.collage/
        manifest.json     what it is, made of what, for which machine, and the SHA-256 of every other file
        model.onnx        the partitioned model: valid ONNX, opens and runs anywhere
        weights.bin       large weights, once; model and kernels refer to them
        collage_*         compiled kernels: plain ONNX where the toolchain reads it, native code elsewhere

Native code is native code: load artefacts only from people whose programs you would run. The manifest protects against
damage and mix-ups, not against someone who can write a new manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from collage._errors import ArtefactError, CollageError, UsageError
from collage.machine import this_machine
from collage.runtime._executable import Executable
from collage.runtime._recipe import Recipe
from collage.target import Target
from collage.toolchains import Registry, registry

__all__ = ["MANIFEST", "SCHEMA", "load", "save", "verify"]

MANIFEST = "manifest.json"
SCHEMA = 1
"""Version of the manifest."""

_MAX_MANIFEST_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 22


def save(recipe: Recipe, workspace: Path, path: Path) -> Path:
    """Writes an artefact beside its final place, then moves it there.

    Raises:
        UsageError: The path is taken by something that is no artefact, or cannot be written.
    """
    if path.exists() and not (path / MANIFEST).is_file():
        raise UsageError(f"{path} exists and is no artefact; name another path or remove it")
    names = recipe.files_with_weights(workspace)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    try:
        for name in names:
            if (workspace / name).resolve() != (new / name).resolve():
                shutil.copyfile(workspace / name, new / name)
        manifest = _manifest(recipe, {name: _facts(new / name) for name in names})
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False))
        new.chmod(0o755)
        _move_into_place(new, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return path


def load(path: str | Path, *, toolchains: Registry | None = None) -> Executable:
    """Reads an artefact: verifies every byte, rebuilds kernels that do not fit this machine, and loads the rest.

    Args:
        path: The artefact's folder.
        toolchains: Where its toolchains are found.

    Returns:
        The executable. Its ``notes`` say what was rebuilt.

    Raises:
        UsageError: There is nothing at the path.
        ArtefactError: It is incomplete, was changed, or needs a toolchain that is not here.
    """
    folder = Path(path)
    recipe, machine = verify(folder)
    available = toolchains or registry()
    foreign = _foreign(recipe, machine, available)
    workspace, owned = folder, False
    if foreign:
        recipe, workspace = _rebuild(recipe, folder, set(foreign), available)
        owned = True
    try:
        executable = Executable(recipe, workspace, owns_workspace=owned, toolchains=available)
    except CollageError as error:
        raise ArtefactError(f"cannot load {folder}: {error}") from error
    executable.notes += [f"rebuilt {name}: {reason}" for name, reason in foreign.items()]
    return executable


def verify(folder: Path) -> tuple[Recipe, Mapping[str, Any]]:
    """Checks an artefact without loading anything of it.

    Returns:
        What it consists of, and the machine that it was made on.

    Raises:
        UsageError: There is nothing at the path.
        ArtefactError: The first thing that is wrong with it.
    """
    if not folder.exists():
        raise UsageError(f"{folder} does not exist")
    manifest = _read_manifest(folder)
    try:
        if manifest["schema"] != SCHEMA:
            raise ArtefactError(
                f"{folder} has manifest schema {manifest['schema']!r}, this version reads {SCHEMA}; compile it again"
            )
        listed = {str(name): (str(facts["sha256"]), int(facts["bytes"])) for name, facts in manifest["files"].items()}
        recipe = Recipe.from_json(manifest)
        machine = dict(manifest["machine"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtefactError(f"{folder / MANIFEST} is no manifest: {type(error).__name__}: {error}") from error
    for name in [*listed, *recipe.files]:
        if PurePosixPath(name).name != name or name in ("", ".", "..", MANIFEST) or "\\" in name:
            raise ArtefactError(f"{folder / MANIFEST} names a file {name!r}; only plain names are allowed")
    if missing := [name for name in recipe.files if name not in listed]:
        raise ArtefactError(f"{folder / MANIFEST} does not list {missing[0]}, which it uses")
    present = {entry.name for entry in os.scandir(folder)} - {MANIFEST}
    if extra := sorted(present - set(listed)):
        raise ArtefactError(f"{folder} holds {extra[0]!r}, which its manifest does not list")
    for name, (digest, size) in listed.items():
        _verify_file(folder / name, digest, size)
    return recipe, machine


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise ArtefactError(f"{folder} is no artefact: it has no {MANIFEST}")
    if path.stat().st_size > _MAX_MANIFEST_BYTES:
        raise ArtefactError(f"{path} is too large to be a manifest")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{path} is no manifest: {error}") from error
    if not isinstance(manifest, dict):
        raise ArtefactError(f"{path} is no manifest")
    return manifest


def _verify_file(path: Path, digest: str, size: int) -> None:
    if path.is_symlink() or not path.is_file():
        raise ArtefactError(f"{path} is missing, or is no plain file")
    if path.stat().st_size != size:
        raise ArtefactError(f"{path} has {path.stat().st_size} bytes, the manifest says {size}")
    if _sha256(path) != digest:
        raise ArtefactError(f"{path} was changed: its SHA-256 is not the manifest's")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _facts(path: Path) -> dict[str, Any]:
    return {"sha256": _sha256(path), "bytes": path.stat().st_size}


def _machine() -> dict[str, str]:
    """What native code depends on."""
    machine = this_machine()
    return {"system": machine.system, "isa": machine.isa}


def _manifest(recipe: Recipe, files: Mapping[str, Any]) -> dict[str, Any]:
    from collage import __version__

    return {
        "schema": SCHEMA,
        "collage": __version__,
        "machine": _machine(),
        **recipe.as_json(),
        "files": dict(files),
    }


def _foreign(recipe: Recipe, machine: Mapping[str, Any], toolchains: Registry) -> dict[str, str]:
    """Kernels that must be compiled again here, and why."""
    here = _machine()
    reasons = {}
    for kernel in recipe.kernels:
        compiled = kernel.compiled
        availability = toolchains.get(compiled.toolchain).availability()
        if not availability.available:
            remedy = f"; {availability.remedy}" if availability.remedy else ""
            raise ArtefactError(
                f"kernel {kernel.name} needs {compiled.toolchain}, which is not usable here: {availability.reason}{remedy}"
            )
        if compiled.portable:
            continue
        if machine != here:
            reasons[kernel.name] = "it was compiled on another kind of machine"
        elif recipe.builds.get(compiled.toolchain) != availability.build:
            reasons[kernel.name] = f"it was compiled by another build of {compiled.toolchain}"
    return reasons


def _rebuild(recipe: Recipe, folder: Path, names: set[str], toolchains: Registry) -> tuple[Recipe, Path]:
    """Compiles the named kernels again, from the partitioned model, in a new workspace."""
    import onnx_ir as ir

    from collage.graph import kernel_model, kernels_of

    workspace = Path(tempfile.mkdtemp(prefix="collage-"))
    for entry in os.scandir(folder):
        shutil.copyfile(entry.path, workspace / entry.name)
    model = ir.load(workspace / recipe.model_file)
    calls = {call.node.name: call.node for call in kernels_of(model)}
    kernels = []
    for kernel in recipe.kernels:
        if kernel.name in names:
            target = Target.parse(kernel.target)
            source = kernel_model(model, calls[kernel.name], kernel.name)
            compiled = toolchains.for_target(target).compile(source, target, workspace)
            kernel = replace(kernel, compiled=compiled, inputs=compiled.inputs, outputs=compiled.outputs)
        kernels.append(kernel)
    return replace(recipe, kernels=tuple(kernels)), workspace


def _move_into_place(new: Path, path: Path) -> None:
    """Renames; an artefact that is replaced is first moved aside, so that a reader never sees half of one."""
    old: Path | None = None
    if path.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
        path.rename(old / path.name)
    new.rename(path)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
