"""The artefact: a folder that holds a compiled model, verified before anything of it is used (design section 9).

::

    model.collage/
        manifest.json     what it is, made of what, for which machine, and the SHA-256 of every other file
        model.onnx        the partitioned model: valid ONNX, opens and runs anywhere
        weights.bin       large weights, once; model and kernels refer to them
        collage_*         compiled kernels: plain ONNX where the toolchain reads it, native code elsewhere

Or a zip of it, stored without compression, which ``load`` unpacks into a folder of its own. Or a recipe only, folder or
zip, without the compiled kernels: ``load`` builds them.

Native code is native code: load artefacts only from people whose programs you would run, or have ``load`` rebuild all
kernels from the model. The manifest protects against damage and mix-ups, not against someone who can write a new manifest.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage._errors import ArtefactError, UsageError
from collage.runtime._executable import Executable
from collage.runtime._manifest import MANIFEST, machine_facts, manifest_of, verify
from collage.runtime._recipe import KernelRecord, Recipe
from collage.runtime._zip import unpack, write_zip
from collage.system.scratch import make_scratch, remove_scratch
from collage.target import Target
from collage.toolchains import Registry, availability_for, importing_here, registry

__all__ = ["check_destination", "load", "save"]


def check_destination(path: Path) -> None:
    """Looks whether ``save`` can write to a path: before a compilation, rather than when it is over.

    Raises:
        UsageError: Something else is in the way, or nothing can be written there.
    """
    _refuse_to_replace(path, path.suffix == ".zip")
    try:
        tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent).cleanup()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def save(recipe: Recipe, workspace: Path, path: Path, *, recipe_only: bool = False) -> Path:
    """Writes an artefact beside its final place, then moves it there. See ``Executable.save``."""
    zipped = path.suffix == ".zip"
    _refuse_to_replace(path, zipped)
    if recipe_only:
        recipe = replace(recipe, kernels=tuple(kernel.unbuilt() for kernel in recipe.kernels))
    files = [workspace / name for name in recipe.files_with_weights(workspace)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            manifest = new / MANIFEST
            manifest.write_bytes(manifest_of(recipe, files))
            if zipped:
                _save_zip([manifest, *files], new / path.name, path)
            else:
                _save_folder(files, new, path)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return path


def load(
    path: str | Path,
    *,
    toolchains: Registry | None = None,
    contexts: int | None = None,
    rebuild: bool = False,
    debug: bool = False,
) -> Executable:
    """Reads an artefact: verifies every byte, rebuilds kernels that do not fit this machine, and loads the rest.

    Args:
        path: The artefact: a folder, or a zip.
        toolchains: Where its toolchains are found.
        contexts: How many runs may go on at once; see ``Executable``.
        rebuild: Build every kernel anew from the model, and load nothing that the artefact brings compiled: for
            artefacts of people whose programs you would not run.
        debug: Check every kernel at its border, on every call.

    Returns:
        The executable. Its ``notes`` say what was rebuilt.

    Raises:
        UsageError: There is nothing at the path.
        ArtefactError: It is incomplete, was changed, or needs a toolchain that is not here.
    """
    folder, own = Path(path), None
    if contexts is not None and contexts < 1:
        raise UsageError(f"an executable needs at least one context, not {contexts}")
    if not folder.exists():
        raise UsageError(f"{folder} does not exist")
    if folder.is_file():
        folder = own = make_scratch()
    try:
        if own is not None:
            unpack(Path(path), own)
        recipe, machine = verify(folder)
        available = toolchains or registry()
        reasons = _to_build(recipe, machine, available, rebuild)
        if reasons:
            own = own or _copy(folder)
            recipe = _rebuild(recipe, own, reasons, available)
        executable = Executable(
            recipe, own or folder, owns_workspace=own is not None, toolchains=available, contexts=contexts, debug=debug
        )
    except BaseException as error:
        if own is not None:
            remove_scratch(own)
        if not isinstance(error, Exception):
            raise
        # Whatever a toolchain makes of an artefact that was made by somebody else, it does not load.
        reason = " ".join(str(error).split())[:400].replace(str(folder), str(path)) or type(error).__name__
        raise ArtefactError(reason if isinstance(error, ArtefactError) else f"cannot load {path}: {reason}") from error
    executable.notes += [f"rebuilt {name}: {reason}" for name, reason in reasons.items()]
    return executable


def _to_build(recipe: Recipe, machine: Mapping[str, Any], toolchains: Registry, rebuild: bool) -> Mapping[str, str]:
    """Kernels that must be compiled here, and why."""
    reasons = {}
    for kernel in recipe.kernels:
        name = kernel.compiled.toolchain
        target = Target.parse(kernel.target)
        with importing_here():
            availability = availability_for(toolchains.get(name), target)
        if not availability.available:
            remedy = f"; {availability.remedy}" if availability.remedy else ""
            raise ArtefactError(
                f"kernel {kernel.name} needs {name}, which is not usable here: {availability.reason}{remedy}"
            )
        if rebuild:
            reasons[kernel.name] = "as was asked for"
        elif not kernel.is_built:
            reasons[kernel.name] = "the artefact is a recipe only"
        elif kernel.compiled.portable:
            continue
        elif machine != machine_facts():
            reasons[kernel.name] = "it was compiled on another kind of machine"
        elif recipe.builds.get(target.build_name) != availability.build:
            reasons[kernel.name] = f"it was compiled by another build of {name}"
    return reasons


def _rebuild(recipe: Recipe, workspace: Path, names: Mapping[str, str], toolchains: Registry) -> Recipe:
    """Compiles the named kernels from the partitioned model."""
    from collage.runtime._sources import KernelSources

    sources = KernelSources(workspace / recipe.model_file)
    builds = dict(recipe.builds)

    def built(kernel: KernelRecord) -> KernelRecord:
        if kernel.name not in names:
            return kernel
        target = Target.parse(kernel.target)
        compiled = sources.compile(kernel, target, toolchains, workspace)
        builds[target.build_name] = availability_for(toolchains.for_target(target), target).build
        return replace(kernel, compiled=compiled, inputs=compiled.inputs, outputs=compiled.outputs)

    return replace(recipe, kernels=tuple(map(built, recipe.kernels)), builds=builds)


def _copy(folder: Path) -> Path:
    own = make_scratch()
    for entry in os.scandir(folder):
        shutil.copyfile(entry.path, own / entry.name)
    return own


def _refuse_to_replace(path: Path, zipped: bool) -> None:
    """Raises UsageError where something other than an artefact of the same form is in the way."""
    if path.exists() and not (_is_zip(path) if zipped else (path / MANIFEST).is_file()):
        raise UsageError(f"{path} exists and is no artefact; name another path or remove it")


def _is_zip(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return MANIFEST in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False


def _save_zip(files: Sequence[Path], draft: Path, path: Path) -> None:
    with draft.open("wb") as archive:
        write_zip(files, archive)
        archive.flush()
        os.fsync(archive.fileno())
    draft.replace(path)


def _save_folder(files: Sequence[Path], new: Path, path: Path) -> None:
    for file in files:
        shutil.copyfile(file, new / file.name)
    for entry in new.iterdir():
        with entry.open("rb") as written:
            os.fsync(written.fileno())
    new.chmod(0o755)
    if not path.exists():
        new.rename(path)
    elif not _exchange(new, path):
        # Where folders cannot be exchanged, there is a moment without either; the old one is kept until it is over.
        old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
        path.rename(old / path.name)
        new.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(new: Path, path: Path) -> bool:
    """Swaps two folders in one step, if system and file system can; Python has no name for it."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(renameat2(here, os.fsencode(new), here, os.fsencode(path), exchange) == 0)
