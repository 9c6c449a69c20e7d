"""The artefact: a folder that holds a compiled model, verified before anything of it is used.

::

    model.collage/
        manifest.json     what it is, made of what, for which machine, and the SHA-256 of every other file
        model.onnx        the partitioned model: valid ONNX, opens and runs anywhere
        weights.bin       large weights, once; model and kernels refer to them
        tried.json.gz     the record of what was tried, for ``collage explain``
        collage_*         compiled kernels: plain ONNX where the toolchain reads it, native code elsewhere

Or a zip of it, stored without compression, which ``load`` unpacks into a folder of its own. Or a recipe only, folder or
zip, without the compiled kernels: ``load`` builds them.

Native code is native code: load artefacts only from people whose programs you would run, or have ``load`` rebuild all
kernels from the model. The manifest protects against damage and mix-ups, not against an author of a new manifest.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from collage._errors import UsageError
from collage.runtime._manifest import MANIFEST, manifest_of
from collage.runtime._pack import PACK
from collage.runtime._recipe import Recipe
from collage.runtime._zip import write_zip
from collage.store import check_writable, shown, upload, url_of
from collage.system.scratch import scratch

__all__ = ["check_destination", "save", "write_condensed", "write_files"]


def check_destination(path: Path) -> None:
    """Check that ``save`` can write to a path or a URL: before a compilation, rather than when it is over.

    Raises:
        UsageError: Something else is in the way, or nothing can be written there.
    """
    if (url := url_of(path)) is not None:
        return check_writable(url)
    try:
        _refuse_to_replace(path, path.suffix == ".zip")
        tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent).cleanup()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def save(recipe: Recipe, workspace: Path, path: Path, *, recipe_only: bool = False) -> Path:
    """Write an artefact. See ``Executable.save``."""
    if recipe_only:
        recipe = replace(recipe, kernels=tuple(kernel.unbuilt() for kernel in recipe.kernels))
    files = [workspace / name for name in recipe.files_with_weights(workspace)]
    return write_files(path, MANIFEST, lambda: manifest_of(recipe, files), files)


def write_condensed(recipe: Recipe, workspace: Path, empty: Path) -> Recipe:
    """Write the files of a recipe to another folder in as few bytes as can be, and return the recipe of these."""
    from collage.runtime._condensed import write_condensed as write  # late: running compiled kernels needs no onnx_ir

    return write(recipe, workspace, empty)


def write_files(path: Path, head: str, contents: Callable[[], bytes], files: Sequence[Path]) -> Path:
    """Write a folder or a zip beside its final place, then move it there; to a URL, a zip.

    Args:
        path: The final place.
        head: Name of the file that lists the others.
        contents: Makes the contents of that file.
        files: The others.

    Returns:
        The path.

    Raises:
        UsageError: The path holds something other than an artefact, or cannot be written.
    """
    if (url := url_of(path)) is not None:
        _write_to_url(url, head, contents, files)
        return path
    zipped = path.suffix == ".zip"
    try:
        _refuse_to_replace(path, zipped)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            manifest = new / head
            manifest.write_bytes(contents())
            if zipped:
                _save_zip([manifest, *files], new / path.name, path)
            else:
                _save_folder(files, new, path)
        finally:
            if new.is_symlink():  # It was at the path, and was exchanged.
                new.unlink()
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return path


def _write_to_url(url: str, head: str, contents: Callable[[], bytes], files: Sequence[Path]) -> None:
    with scratch() as folder:
        try:
            (folder / head).write_bytes(contents())
            with (folder / "zip").open("wb") as archive:
                write_zip([folder / head, *files], archive)
        except OSError as error:
            raise UsageError(f"cannot write {shown(url)}: {error.strerror}") from error
        upload(folder / "zip", url)


def _refuse_to_replace(path: Path, zipped: bool) -> None:
    """Raise UsageError if something other than an artefact of the same form is in the way."""
    if path.exists() and not (_is_zip(path) if zipped else any((path / head).is_file() for head in (MANIFEST, PACK))):
        raise UsageError(f"{path} exists and is not an artefact; name another path or remove it")


def _is_zip(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return not {MANIFEST, PACK}.isdisjoint(archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError):
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
        with entry.open("r+b") as written:  # Windows flushes only what can be written to.
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
    """Swap two folders in one step, if system and file system can; Python has no name for it."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # Windows has no library without a name.
        return False
    return bool(renameat2(here, os.fsencode(new), here, os.fsencode(path), exchange) == 0)
