"""Loading an artefact: verify it, rebuild the kernels that do not fit this machine, and make an executable of it."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collage._errors import ArtefactError, UsageError
from collage.runtime._checked_before import note_as_checked, was_checked
from collage.runtime._executable import Executable
from collage.runtime._machine_fit import fitting_streams, fitting_threads
from collage.runtime._made_on import Fit, MadeOn
from collage.runtime._manifest import verify_bytes
from collage.runtime._model_check import ModelCheck
from collage.runtime._open import open_artefact
from collage.runtime._recipe import KernelRecord, Recipe
from collage.store import shown
from collage.system.scratch import make_scratch, remove_scratch
from collage.target import Target
from collage.toolchains import (
    Availability,
    Compiled,
    Registry,
    availability_for,
    importing_here,
    loading_availability_for,
    registry,
)

__all__ = ["load"]


def load(
    path: str | Path,
    *,
    toolchains: Registry | None = None,
    contexts: int | None = None,
    rebuild: bool = False,
    debug: bool = False,
    lazy: bool = False,
    trusted: bool = False,
    threads: int | None = None,
) -> Executable:
    """Read an artefact: verify every byte, rebuild kernels that do not fit this machine, and load the rest.

    Of a pack, the plan for this machine is loaded. If there is none, the nearest plan is loaded, or else one portable kernel
    for the whole model, with a warning. Plans for some lengths only are verified, and loaded by the first run with such lengths.

    If the artefact has more threads than this process may use processors, kernels use fewer threads.

    Args:
        path: The artefact: a folder, a zip, or a URL of one such as ``s3://bucket/m.collage``.
        toolchains: The registry of its toolchains.
        contexts: Number of runs that may go on at the same time; see ``Executable``.
        rebuild: Build every kernel from the model, and load no compiled code of the artefact. For artefacts of people whose
            programs you would not run.
        debug: Check the inputs and outputs of every kernel, on every call.
        lazy: Load kernels at the first run, or in ``warm_up``: for servers that load before they fork.
        trusted: Skip the check of the models in the artefact, which takes a second. For artefacts of your own. Every byte is
            still compared with its digest. An artefact that this user has loaded before is not checked again.
        threads: Threads of each kernel. None uses those of the compilation, or fewer if this machine has fewer.

    Returns:
        The executable. Its ``notes`` name the kernels that were rebuilt, and the differences between this machine and the one
        of the compilation.

    Raises:
        UsageError: There is nothing at the path.
        ArtefactError: It is incomplete, was changed, or needs a toolchain that is not installed.
    """
    if contexts is not None and contexts < 1:
        raise UsageError(f"an executable needs at least one context, not {contexts}")
    if threads is not None and threads < 1:
        raise UsageError(f"a kernel needs at least one thread, not {threads}")
    opened = open_artefact(path, toolchains)
    how = _How(toolchains or registry(), contexts, rebuild, debug, trusted, threads)
    waiting = [(folder, folder) for folder in opened.specialised]
    try:
        specialised = []
        while waiting:
            specialised.append(_executable(*waiting.pop(0), how, path, is_lazy=True))
        executable = _executable(opened.folder, opened.own, how, path, is_lazy=lazy, specialised=specialised)
    except BaseException:
        opened.close()
        raise
    executable.notes += [note for one in specialised for note in one.notes if note not in executable.notes]
    if opened.note is not None:
        executable.notes.insert(0, opened.note)
        warnings.warn(opened.note, RuntimeWarning, stacklevel=2)
    return executable


@dataclass(frozen=True, slots=True)
class _How:
    """Arguments of ``load`` that hold for every plan."""

    toolchains: Registry
    contexts: int | None
    rebuild: bool
    debug: bool
    trusted: bool
    threads: int | None


def _executable(
    folder: Path,
    own: Path | None,
    how: _How,
    path: str | Path,
    *,
    is_lazy: bool,
    specialised: Sequence[Executable] = (),
) -> Executable:
    """Return the executable of a plain artefact.

    Args:
        folder: The folder of the artefact.
        own: The same, if it is a scratch folder. It is removed with the executable, or if there is none.
        how: Arguments of ``load``.
        path: The place that the user named.
        is_lazy: Load no kernel before the first run.
        specialised: Its plans for some lengths only.
    """
    check, available, contexts, threads = None, how.toolchains, how.contexts, how.threads
    try:
        recipe, manifest = verify_bytes(folder)
        reads_models = how.rebuild or not all(kernel.is_built for kernel in recipe.kernels)
        if not how.trusted and (reads_models or not was_checked(manifest)):
            check = ModelCheck(folder, is_here=reads_models)
        reasons = _to_build(recipe, manifest, available, how.rebuild)
        if check is not None:
            check.finish()
            note_as_checked(manifest)
        if reasons:
            own = own or _copy(folder)
            recipe = _rebuild(recipe, own, reasons, available)
        fitting, notes = fitting_threads(recipe, manifest.get("processors"))
        if contexts is None and recipe.streams:
            contexts, fewer = fitting_streams(recipe, threads or fitting)
            notes += fewer
        executable = Executable(
            recipe,
            own or folder,
            owns_workspace=own is not None,
            toolchains=available,
            contexts=contexts,
            debug=how.debug,
            is_lazy=is_lazy,
            threads=threads or fitting,
            specialised=specialised,
        )
    except BaseException as error:
        if check is not None:
            check.cancel()
        if own is not None:
            remove_scratch(own)
        if not isinstance(error, Exception):
            raise
        # Whatever a toolchain makes of an artefact that was made by somebody else, it does not load.
        reason = " ".join(str(error).split())[:400].replace(str(folder), shown(path)) or type(error).__name__
        raise ArtefactError(
            reason if isinstance(error, ArtefactError) else f"cannot load {shown(path)}: {reason}"
        ) from error
    executable.notes += [
        *(f"rebuilt {name}: {reason}" for name, reason in reasons.items()),
        *(notes if threads is None else ()),
    ]
    return executable


def _to_build(recipe: Recipe, manifest: Mapping[str, Any], toolchains: Registry, rebuild: bool) -> Mapping[str, str]:
    """Return the kernels that must be compiled here, and why."""
    reasons, fit = dict[str, str](), MadeOn.read(manifest).fit()
    for kernel in recipe.kernels:
        # An operator with bodies is compiled again as a whole if one of the kernels inside has to be.
        for compiled in (replace(kernel.compiled, target=kernel.target), *kernel.compiled.inner):
            toolchain, target = toolchains.get(compiled.toolchain), Target.parse(compiled.target)
            with importing_here():
                found = loading_availability_for(toolchain, target)
                reason = _reason_to_build(compiled, recipe.builds.get(target.build_name), fit, found, rebuild)
                if reason is not None and found.available:
                    found = availability_for(toolchain, target)
            if not found.available:
                remedy = f"; {found.remedy}" if found.remedy else ""
                need = "needs" if reason is None else f"is to be built again, since {reason}, and needs"
                raise ArtefactError(
                    f"kernel {kernel.name} {need} {toolchain.name}, which is not usable here: {found.reason}{remedy}"
                )
            if reason is not None:
                reasons.setdefault(kernel.name, reason)
    return reasons


def _reason_to_build(compiled: Compiled, build: str | None, fit: Fit, found: Availability, rebuild: bool) -> str | None:
    """Return the reason to compile a kernel here, None if there is none.

    Args:
        compiled: The kernel as its toolchain compiled it.
        build: Build of the toolchain that compiled it.
        fit: Fit of this machine to the one that compiled the kernel.
        found: The toolchain here.
        rebuild: Everything is to be compiled.
    """
    if rebuild:
        return "a rebuild was requested"
    if not compiled.files:
        return "the artefact is a recipe only"
    # The host only calls what is inside a kernel with parts.
    if compiled.portable or compiled.parts:
        return None
    if fit is Fit.OTHER:
        return "it was compiled on another kind of machine"
    return f"it was compiled by another build of {compiled.toolchain}" if build != found.build else None


def _rebuild(recipe: Recipe, workspace: Path, names: Mapping[str, str], toolchains: Registry) -> Recipe:
    """Compiles the named kernels from the partitioned model."""
    # Late: it imports onnx_ir, which running compiled kernels does not need.
    from collage.runtime._sources import KernelSources

    sources = KernelSources(workspace / recipe.model_file)
    builds = dict(recipe.builds)

    def built(kernel: KernelRecord) -> KernelRecord:
        if kernel.name not in names:
            return kernel
        target = Target.parse(kernel.target)
        compiled = sources.compile(kernel, target, toolchains, workspace)
        for owner in {target, *(Target.parse(part.target) for part in compiled.inner)}:
            builds[owner.build_name] = availability_for(toolchains.for_target(owner), owner).build
        return replace(kernel, compiled=compiled, inputs=compiled.inputs, outputs=compiled.outputs)

    return replace(recipe, kernels=tuple(map(built, recipe.kernels)), builds=builds)


def _copy(folder: Path) -> Path:
    own = make_scratch()
    for entry in os.scandir(folder):
        shutil.copyfile(entry.path, own / entry.name)
    return own
