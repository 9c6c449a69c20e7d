"""Checks of arguments that need no library, so that a wrong command is refused at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from collage._errors import ModelError, TargetError, UsageError
from collage.file_kinds import is_address, torch_file_reason, way_out
from collage.options import CompileOptions
from collage.store import url_of
from collage.target import check_head

__all__ = ["check_model_file", "check_name", "check_paths", "check_places", "check_target_names", "notes_on"]

_OTHER_ARCHIVES = (".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar")


def check_model_file(model: Path) -> None:
    """Refuse a path that holds no model in ONNX, if its name or its first bytes say so.

    Raises:
        UsageError: It does not exist, or is an address.
        ModelError: It is a file of another kind.
    """
    if is_address(model):
        raise UsageError(f"{model}: models are read from files", hint="download it first; only -o takes a URL")
    if not model.exists():
        raise UsageError(f"{model}: there is no such file")
    if model.is_dir():
        raise ModelError(f"{model} is a folder; name the ONNX file in it")
    if (found := way_out(model)) is not None:
        if (reason := torch_file_reason(model)) is not None:
            raise ModelError(f"{model} {reason}")
        raise ModelError(f"{model} is {found[0]}", hint=found[1])


def check_places(*artefacts: Path) -> None:
    """Refuse paths of this machine at which there is no artefact, nor anything else.

    Raises:
        UsageError: One does not exist.
    """
    for place in artefacts:
        if url_of(place) is None and not place.exists():
            raise UsageError(f"{place} does not exist")


def check_paths(options: CompileOptions) -> None:
    """Refuse files and modules that options name and that do not exist."""
    for flag, path in (("--data", options.data), ("--plan", options.plan), ("--devices", options.devices)):
        if isinstance(path, str | Path) and not Path(path).exists():
            raise UsageError(f"{flag} {path}: there is no such file")
    kind, _, function = (options.metric or "").partition(":")
    module = function.partition(":")[0].partition(".")[0]
    if kind == "python" and find_spec(module) is None and not (Path(f"{module}.py").exists() or Path(module).is_dir()):
        raise UsageError(f"--metric {options.metric}: there is no module {module!r}", hint="python:MODULE:FUNCTION")


def check_name(output: Path) -> None:
    """Refuse the name of an archive that an artefact cannot be, and of a file that would be overwritten."""
    if output.is_file() and output.suffix != ".zip":
        raise UsageError(f"{output} exists and is not an artefact; name another path or remove it")
    if output.suffix.lower() in _OTHER_ARCHIVES:
        raise UsageError(f"-o {output}: an artefact is a folder or a .zip, not {output.suffix}", hint="-o model.zip")


def notes_on(options: CompileOptions) -> list[str]:
    """Return sentences on options that do something else than most people expect, before minutes are spent."""
    notes = []
    cores = len(os.sched_getaffinity(0))
    if options.threads > cores:
        notes.append(f"--threads {options.threads} on {cores} processors: kernels wait for each other")
    if options.data is not None and not options.allows_reduced:
        notes.append(
            "--data decides nothing without a limit such as --max-drop 1%; its first sample, and its lengths, are used for timing"
        )
    if options.max_drop is not None:
        name = options.metric or "the metric (top1 if samples have labels)"
        notes.append(f"limit: {name} may get worse by at most {options.max_drop:.2%} (--max-drop)")
    if options.accuracy_budget is not None:
        notes.append(
            f"limit: errors of at most {options.accuracy_budget:.2%} of the largest output (--accuracy-budget)"
        )
    return notes


def check_target_names(targets: Sequence[str]) -> None:
    """Refuse targets that are empty, or whose first word names nothing.

    Raises:
        TargetError: A target is empty, or there is no such kind, toolchain or alias.
    """
    from importlib.metadata import entry_points

    if not all(text.split() for text in targets):
        raise TargetError("an empty target; write for example 'llvm' or 'onnxruntime'")
    points = entry_points(group="collage.toolchains")
    if any(not point.value.startswith("collage.") for point in points):
        return  # A toolchain of another package may bring a kind of target, which its module registers.
    names = {point.name for point in points}
    for text in targets:
        check_head(text, names)
