"""Checks of arguments that need no library, so that a wrong command is refused at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from collage._errors import ModelError, UsageError
from collage.file_kinds import is_address, way_out
from collage.options import CompileOptions
from collage.target import check_head

__all__ = ["check_model_file", "check_name", "check_target_names", "notes_on"]

_OTHER_ARCHIVES = (".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_PYTORCH = (".pt", ".pt2", ".pth", ".ckpt")


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
    if model.suffix not in _PYTORCH and (found := way_out(model)) is not None:
        raise ModelError(f"{model} is {found[0]}", hint=found[1])


def check_name(output: Path) -> None:
    """Refuse the name of an archive that an artefact cannot be."""
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
            "--data decides nothing without a limit such as --max-drop 1%; its first sample is used for timing"
        )
    if options.max_drop is not None:
        name = options.metric or "the metric (top1 if samples have labels)"
        notes.append(f"limit: {name} may drop by at most {options.max_drop:.2%} (--max-drop)")
    if options.accuracy_budget is not None:
        notes.append(
            f"limit: errors of at most {options.accuracy_budget:.2%} of the largest output (--accuracy-budget)"
        )
    return notes


def check_target_names(targets: Iterable[str]) -> None:
    """Refuse targets whose first word names nothing.

    Raises:
        TargetError: There is no such kind, toolchain or alias.
    """
    from importlib.metadata import entry_points

    points = entry_points(group="collage.toolchains")
    if any(not point.value.startswith("collage.") for point in points):
        return  # A toolchain of another package may bring a kind of target, which its module registers.
    names = {point.name for point in points}
    for text in targets:
        check_head(text, names)
