"""The manifest of an artefact, and the check of everything that it lists."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage._errors import ArtefactError, CollageError, UsageError
from collage._version import __version__
from collage.explain import RECORD
from collage.runtime._bodies import has_bodies
from collage.runtime._made_on import MACHINE_KEY, fingerprint_facts
from collage.runtime._recipe import WEIGHTS, Recipe
from collage.runtime._signature import Port
from collage.system.codec import check_bounds, read_text
from collage.system.machine import this_machine
from collage.system.plain_names import is_plain_name
from collage.system.sparse_files import has_large_holes
from collage.target import Target

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "MANIFEST",
    "SCHEMA",
    "check_models",
    "file_digest",
    "machine_facts",
    "manifest_of",
    "processor_facts",
    "read_json",
    "read_recipe",
    "understood",
    "verify",
    "verify_bytes",
    "verify_size",
]

MANIFEST = "manifest.json"

SCHEMA = 1
"""The version of the manifest."""

_MAX_MANIFEST_BYTES = 16 << 20
_MAX_THREADS = 4096


def manifest_of(recipe: Recipe, files: Iterable[Path]) -> bytes:
    """The manifest of an artefact that is made here, of these files."""
    files = list(files)
    manifest = {
        "schema": SCHEMA,
        "collage": __version__,
        "machine": machine_facts(),
        "processors": processor_facts(),
        MACHINE_KEY: fingerprint_facts(),
        **recipe.as_json(),
        "files": {file.name: {"sha256": file_digest(file), "bytes": file.stat().st_size} for file in files},
    }
    return json.dumps(manifest, indent=1, allow_nan=False).encode()


def machine_facts() -> dict[str, str]:
    """Return the facts about the machine that native code depends on."""
    machine = this_machine()
    return {"system": machine.system, "isa": machine.isa}


def processor_facts() -> dict[str, float | None]:
    """Return ``cores`` and ``quota`` of ``Machine``, which decide how many threads are worth having."""
    machine = this_machine()
    return {"cores": machine.cores, "quota": machine.quota}


def verify(folder: Path) -> tuple[Recipe, Mapping[str, Any]]:
    """Check an artefact's folder, every byte of it and every model in it, without loading anything.

    Returns:
        The artefact's recipe, and its manifest.

    Raises:
        UsageError: There is nothing at the path.
        ArtefactError: The first thing that is wrong with it.
    """
    recipe, manifest = verify_bytes(folder)
    check_models(folder)
    return recipe, manifest


def verify_bytes(folder: Path) -> tuple[Recipe, Mapping[str, Any]]:
    """Check an artefact's folder, every byte of it, but not the contents of its models; otherwise like ``verify``."""
    if not folder.exists():
        raise UsageError(f"{folder} does not exist")
    manifest = _read(folder)
    recipe, listed = understood(manifest, folder)
    for name in [*listed, *recipe.files]:
        if not is_plain_name(name) or name == MANIFEST:
            raise ArtefactError(f"{folder / MANIFEST} names a file {name[:80]!r}; only plain names are allowed")
    if missing := [name for name in recipe.files if name not in listed]:
        raise ArtefactError(f"{folder / MANIFEST} does not list {missing[0]}, which it uses")
    if unused := sorted(set(listed) - {*recipe.files, WEIGHTS, RECORD}):
        raise ArtefactError(f"{folder / MANIFEST} lists {unused[0]!r}, which nothing uses")
    present = {entry.name for entry in os.scandir(folder)} - {MANIFEST}
    if extra := sorted(present - set(listed)):
        raise ArtefactError(f"{folder} holds {extra[0]!r}, which its manifest does not list")
    for name, (_, size) in listed.items():
        verify_size(folder / name, size)
    with ThreadPoolExecutor() as pool:  # Large files are hashed side by side.
        digests = list(pool.map(file_digest, [folder / name for name in listed]))
    for (name, (digest, _)), found in zip(listed.items(), digests, strict=True):
        if found != digest:
            raise ArtefactError(f"{folder / name} was changed: its SHA-256 is not the manifest's")
    return recipe, manifest


def check_models(folder: Path) -> None:
    """Have the models of an artefact's folder pass the same checks as every model.

    Raises:
        ArtefactError: The first thing that is wrong with one.
    """
    recipe, listed = understood(_read(folder), folder)
    for name in listed:
        if name.endswith(".onnx") or name == recipe.model_file:
            model = _verified_model(folder / name)
            if name == recipe.model_file:
                _check_ports(recipe, model, folder)


def read_recipe(folder: Path, file: str) -> Recipe:
    """Return the recipe of an artefact's folder, of which no file is verified but one that may be missing.

    Raises:
        ArtefactError: The manifest cannot be read, or the file is not the one that it lists.
    """
    recipe, listed = understood(_read(folder), folder)
    path = folder / file
    if file in listed:
        digest, size = listed[file]
        if path.is_symlink() or not path.is_file() or path.stat().st_size != size:
            raise ArtefactError(f"{path} is missing, is not a plain file, or has another size than the manifest says")
        if file_digest(path) != digest:
            raise ArtefactError(f"{path} was changed: its SHA-256 is not the manifest's")
    elif path.exists():
        raise ArtefactError(f"{folder} holds {file!r}, which its manifest does not list")
    return recipe


def understood(manifest: Mapping[str, Any], folder: Path) -> tuple[Recipe, Mapping[str, tuple[str, int]]]:
    """Return the content of a manifest: the recipe, and the SHA-256 and size of each file.

    Raises:
        ArtefactError: It was written by a newer version, or its content is not valid.
    """
    schema = manifest.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise ArtefactError(
            f"{folder} has manifest schema {str(schema)[:40]}, this version reads {SCHEMA}; "
            f"compile it again, or use a newer version"
        )
    try:
        listed = {name: (str(facts["sha256"]), int(facts["bytes"])) for name, facts in manifest["files"].items()}
        recipe = Recipe.from_json(manifest)
        dict(manifest["machine"])
        recipe.check_wiring()
        _check_kernels(recipe)
    except (KeyError, TypeError, ValueError, AttributeError, CollageError) as error:
        raise ArtefactError(f"{folder / MANIFEST} is not a manifest: {type(error).__name__}: {error}") from error
    return recipe, listed


def _check_kernels(recipe: Recipe) -> None:
    """Refuse values that a toolchain would not check, such as thread counts that exhaust a machine."""
    counts = [recipe.threads, recipe.streams]
    if len({kernel.name for kernel in recipe.kernels}) < len(recipe.kernels):
        raise ValueError("two kernels have one name")
    for kernel in recipe.kernels:
        theirs = kernel.compiled
        if (len(theirs.inputs), len(theirs.outputs)) != (len(kernel.inputs), len(kernel.outputs)):
            raise ValueError(f"kernel {kernel.name!r} has other inputs or outputs than it was compiled for")
        for compiled in (replace(theirs, target=kernel.target), *theirs.inner):
            target = Target.parse(compiled.target)
            if compiled.toolchain != target.toolchain:
                raise ValueError(f"kernel {kernel.name!r} is for {target} but of {compiled.toolchain!r}")
            if compiled.parts and not has_bodies(target):
                raise ValueError(f"kernel {kernel.name!r} is for {target}, and holds other kernels")
            if not set(compiled.files) <= set(theirs.files):
                raise ValueError(f"kernel {kernel.name!r} lacks files of a kernel inside it")
            counts.append(int(target.option("threads") or 0))
    if not all(0 <= count <= _MAX_THREADS for count in counts):
        raise ValueError(f"{max(counts)} threads or streams")


def _read(folder: Path) -> Mapping[str, Any]:
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise ArtefactError(f"{folder} is not an artefact: it has no {MANIFEST}")
    return read_json(path)


def read_json(path: Path, most_bytes: int = _MAX_MANIFEST_BYTES) -> Mapping[str, Any]:
    """Return the JSON object in a manifest.

    Raises:
        ArtefactError: There is not a plain file, or it holds something other than a bounded JSON object.
    """
    if not path.is_file() or path.is_symlink():
        raise ArtefactError(f"{path} is missing, or is not a plain file")
    if path.stat().st_size > most_bytes:
        raise ArtefactError(f"{path} is too large to be a manifest")
    try:
        manifest = read_text(path.read_bytes())
        check_bounds(manifest, "it", most_bytes)
    except (ValueError, OSError) as error:
        raise ArtefactError(f"{path} is not a manifest: {error}") from error
    if not isinstance(manifest, dict):
        raise ArtefactError(f"{path} is not a manifest")
    return manifest


def verify_size(path: Path, size: int) -> None:
    """Raise ArtefactError if a path is not a plain file of this size, or is a file that was mostly never written."""
    if path.is_symlink() or not path.is_file():
        raise ArtefactError(f"{path} is missing, or is not a plain file")
    with path.open("rb") as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            raise ArtefactError(f"{path} has {found} bytes, the manifest says {size}")
        if has_large_holes(file.fileno()):
            raise ArtefactError(f"{path} has large holes: most of it was never written")


def _verified_model(path: Path) -> ir.Model:
    """Read a model of an artefact with all checks of ``read_model``."""
    # Digests do not protect against an author of a whole new manifest.
    # Late: the frontend imports onnx_ir, which running compiled kernels does not need.
    from collage.frontend import read_model

    try:
        return read_model(path)
    except CollageError as error:
        raise ArtefactError(str(error)) from error


def _check_ports(recipe: Recipe, model: ir.Model, folder: Path) -> None:
    """Refuses a recipe that takes or makes something else than its model does."""
    inputs = tuple(Port.of(value) for value in model.graph.inputs)
    outputs = [str(value.name) for value in model.graph.outputs]
    if inputs != recipe.inputs or outputs != [port.name for port in recipe.outputs]:
        raise ArtefactError(f"{folder / MANIFEST} describes other inputs or outputs than {recipe.model_file} has")


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
