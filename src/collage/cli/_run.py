"""``collage run``: one run of an artefact, from files to files."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage._errors import InputError, ToolchainError, UsageError
from collage.cli._arrays import read_arrays, write_array
from collage.runtime import Executable, Port, Profile, load, read_inputs

__all__ = ["profile_of", "run_once"]

_LONGEST_STEM = 200
"""Bytes; file systems take 255."""


def run_once(
    artefact: Path,
    files: Mapping[str, str],
    output_dir: Path | None,
    dims: Mapping[str, int],
    *,
    trace: Path | None = None,
    rebuild: bool = False,
) -> dict[str, Any]:
    """Run an artefact on inputs from .npy files, made up where none is given.

    Returns:
        Its ``outputs``, described; ``notes`` on how it was loaded and ran; its ``profile`` if a trace was asked for.
    """
    if trace is not None and not trace.parent.exists():
        raise UsageError(f"cannot write {trace}: the folder {trace.parent} does not exist")
    if output_dir is not None:
        with _writing(output_dir):
            output_dir.mkdir(parents=True, exist_ok=True)
    executable, feeds = _loaded(artefact, files, dims, rebuild=rebuild)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # What they say is among the notes.
        try:
            outputs = executable.run(feeds)
        except ToolchainError as error:
            raise ToolchainError(f"{error}{_way_out(executable, files)}") from error
    profile = executable.profile(feeds) if trace is not None else None
    if profile is not None and trace is not None:
        with _writing(trace):
            profile.to_chrome_trace(trace)
    files_of = dict(zip(outputs, _file_names(outputs), strict=True))
    return {
        "outputs": [
            _describe(name, value, None if output_dir is None else output_dir / files_of[name])
            for name, value in outputs.items()
        ],
        "notes": executable.notes,
        "profile": profile,
    }


def profile_of(artefact: Path, files: Mapping[str, str], dims: Mapping[str, int]) -> Profile:
    """Load an artefact and time its kernels, on inputs as of ``run_once``."""
    executable, feeds = _loaded(artefact, files, dims)
    return executable.profile(feeds)


def _loaded(
    artefact: Path, files: Mapping[str, str], dims: Mapping[str, int], *, rebuild: bool = False
) -> tuple[Executable, dict[str, Any]]:
    """Return an executable, and a tensor for each of its inputs."""
    ports = read_inputs(artefact)
    check_names(files, ports)
    feeds = read_arrays(files, {port.name: port.dtype for port in ports or ()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # What they say is among the notes.
        executable = load(artefact, rebuild=rebuild)
    check_names(files, executable.inputs)
    known = {port.name for port in executable.inputs}
    if known - set(feeds):
        feeds = {**_made_up(executable, dims, feeds), **feeds}
    return executable, feeds


def check_names(names: Iterable[str], inputs: Sequence[Port] | None) -> None:
    """Refuse names that are not inputs; accept all if the inputs are not known.

    Raises:
        InputError: A name that is none of them.
    """
    if inputs is not None and (unknown := sorted(set(names) - {port.name for port in inputs})):
        takes = "; ".join(map(str, inputs)) or "no inputs"
        raise InputError(f"unknown input {unknown[0]!r}; the model takes {takes}")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an error of the system about a path into a sentence for the user."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _made_up(executable: Executable, dims: Mapping[str, int], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return made-up inputs, of lengths that go with the given ones, and otherwise of those that were measured."""
    from collage.frontend import (
        check_given,
        lengths_from_json,
        make_inputs,
        read_model,
        separate_lengths,
        shape_profiles,
        with_lengths_of,
    )

    model = separate_lengths(read_model(executable.workspace / executable.recipe.model_file), given, dims)
    told = with_lengths_of(model, check_given(model, given), dims)
    free = _free_dimensions(executable.inputs)
    measured: Mapping[str, int] = {}
    with contextlib.suppress(UsageError):  # It is what a manifest says.
        measured = shape_profiles(lengths_from_json(executable.report.get("dims", {})))[0].dims
    lengths = {**{name: length for name, length in measured.items() if name in free}, **told}
    return make_inputs(model, 0, {name: length for name, length in lengths.items() if isinstance(length, int)})


def _way_out(executable: Executable, files: Mapping[str, str]) -> str:
    """Return what to do about a failed run on made-up inputs; nothing if all were given."""
    made_up = [port for port in executable.inputs if port.name not in files]
    if not made_up:
        return ""
    ways = [*(f"--dim '{name}=LENGTH'" for name in _free_dimensions(made_up)), f"--input '{made_up[0].name}=FILE.npy'"]
    return f". Inputs were made up: {' or '.join(ways)} gives real ones"


def _free_dimensions(ports: Iterable[Port]) -> list[str]:
    """Return the names of dimensions without a fixed length, as the option ``--dim`` has them."""
    found = [
        axis if isinstance(axis, str) else f"{port.name}[{place}]"
        for port in ports
        for place, axis in enumerate(port.shape or ())
        if not isinstance(axis, int)
    ]
    return list(dict.fromkeys(found))


def _file_names(names: Iterable[str]) -> list[str]:
    """Names of files for outputs: letters and digits of any script stay, and those that would meet are numbered.

    Names meet regardless of case, because some file systems know none.
    """
    taken: set[str] = set()
    files = []
    for name in names:
        stem = re.sub(r"[^\w.-]", "_", unicodedata.normalize("NFC", name))
        while len(stem.encode()) > _LONGEST_STEM:
            stem = stem[:-1]
        choices = itertools.chain([stem], (f"{stem}_{number}" for number in itertools.count(2)))
        free = next(choice for choice in choices if choice.casefold() not in taken)
        taken.add(free.casefold())
        files.append(os.fsdecode(f"{free}.npy".encode()))  # So that a locale of ASCII can write it.
    return files


def _describe(name: str, value: Any, file: Path | None) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "dtype": None, "shape": None, "min": None, "max": None, "file": None}
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        row |= {"dtype": "maps", "shape": [len(value)]}
        if file is not None:
            row["file"] = str(file := file.with_suffix(".json"))
            with _writing(file):
                file.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
        return row
    if not isinstance(value, np.ndarray):
        return row
    row |= {"dtype": value.dtype.name if value.dtype != object else "string", "shape": list(value.shape)}
    if value.size and value.dtype.kind not in "OSUTc":
        finite = value.astype(np.float64)[np.isfinite(value.astype(np.float64))]
        if finite.size:
            row |= {"min": float(finite.min()), "max": float(finite.max())}
    if file is not None:
        with _writing(file):
            write_array(file, value)
        row["file"] = str(file)
    return row
