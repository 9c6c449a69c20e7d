"""Opening: get the folder of a plain artefact from a folder, a zip, a pack or an address.

A folder is used where it is. A zip is unpacked, a pack gives the plan for this machine, and a URL is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from collage._errors import ArtefactError, CollageError, UsageError
from collage.explain import RECORD
from collage.runtime._choice import Choice, choose
from collage.runtime._manifest import MANIFEST, verify
from collage.runtime._pack import PACK, PackedPlan, materialise, read_pack, read_plans, verify_others
from collage.runtime._signature import Port
from collage.runtime._zip import unpack
from collage.store import download, shown, url_of
from collage.system.scratch import make_scratch, remove_scratch, scratch
from collage.toolchains import Registry, registry

__all__ = ["Opened", "glanced", "is_artefact", "open_artefact", "opened", "plans_in", "read_inputs", "unpacked"]

_HEADS = (MANIFEST, PACK)


class Opened:
    """The folder of a plain artefact, none of which is verified yet.

    Attributes:
        folder: The folder.
        own: The scratch folder that holds it, None if it is the user's.
        note: The reason for the choice among the plans of a pack, None for the plan of this machine.
        specialised: Scratch folders of the plans for some lengths only, if it is a pack that has such plans for this machine.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own: Path | None = None
        self.note: str | None = None
        self.specialised: list[Path] = []

    def close(self) -> None:
        """Remove the scratch folders, if there are any."""
        for folder in (*([] if self.own is None else [self.own]), *self.specialised):
            remove_scratch(folder)

    def fill(self, write: Callable[[Path], Path | None]) -> None:
        """Continue in a new scratch folder that a function fills. It may return another artefact to open instead."""
        new = make_scratch()
        try:
            found = write(new)
        except BaseException:
            remove_scratch(new)
            raise
        if self.own is not None:
            remove_scratch(self.own)
        self.own, self.folder = new, found or new


def open_artefact(place: str | Path, toolchains: Registry | None = None) -> Opened:
    """Return the folder of an artefact. Every byte of a pack is verified that does not belong to the chosen plan.

    The caller closes what it gets.

    Raises:
        UsageError: There is nothing at the place.
        ArtefactError: It is not an artefact, or it is a pack that is damaged.
    """
    found = Opened(Path(place))
    try:
        if (url := url_of(place)) is not None:
            found.fill(lambda new: download(url, new))
        if not found.folder.exists():
            raise UsageError(f"{shown(place)} does not exist")
        if found.folder.is_file():
            found.fill(lambda new: unpack(found.folder, new))
        if _is_pack(found.folder):
            found.fill(lambda new: _write_choice(found, new, toolchains or registry()))
    except BaseException as error:
        found.close()
        if isinstance(error, UsageError) or not isinstance(error, Exception):
            raise
        reason = " ".join(str(error).split())[:400].replace(str(found.folder), shown(place)) or type(error).__name__
        raise ArtefactError(
            reason if isinstance(error, ArtefactError) else f"cannot open {shown(place)}: {reason}"
        ) from error
    return found


@contextmanager
def opened(place: str | Path) -> Iterator[Opened]:
    """Give the folder of an artefact for as long as it is needed; otherwise like ``open_artefact``."""
    found = open_artefact(place)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def unpacked(place: str | Path) -> Iterator[Path]:
    """Give the folder of an artefact or of a pack, with all of its files. None of them is verified.

    Raises:
        UsageError: There is nothing at the place.
        ArtefactError: It is not an artefact.
    """
    with _fetched(place) as path, scratch() as folder:
        if path.is_file():
            unpack(path, folder)
            path = folder
        if not any((path / head).is_file() for head in _HEADS):
            raise ArtefactError(f"{shown(place)} is not an artefact: it has no {MANIFEST}")
        yield path


@contextmanager
def glanced(place: str | Path, toolchains: Registry | None = None) -> Iterator[tuple[Path, Choice | None]]:
    """Give a folder with the manifest and the record of an artefact, and the choice if the artefact is a pack.

    The other files may be there or not. None of them is verified.

    Raises:
        UsageError: There is nothing at the place.
        ArtefactError: It is not an artefact.
    """
    with _fetched(place) as path, scratch() as folder, scratch() as plan_folder:
        read, source = _reader(path, folder, (*_HEADS, RECORD))
        if not _is_pack(source):
            yield source, None
            return
        choice = choose(_plans_of(source, read), toolchains or registry())
        read({digest for name, (digest, _) in choice.plan.files.items() if name == RECORD})
        materialise(source, choice.plan, plan_folder, (MANIFEST, RECORD))
        yield plan_folder, choice


def plans_in(place: str | Path) -> tuple[bool, tuple[PackedPlan, ...]]:
    """Return if an artefact is a pack, and its plans. Manifests are read, and nothing else.

    Raises:
        UsageError: There is nothing at the place.
        ArtefactError: It is not an artefact.
    """
    with _fetched(place) as path, scratch() as folder:
        read, source = _reader(path, folder, _HEADS)
        if _is_pack(source):
            return True, _plans_of(source, read)
        if not (source / MANIFEST).is_file():
            raise ArtefactError(f"{shown(place)} is not an artefact: it has no {MANIFEST}")
        return False, (PackedPlan.read(source / MANIFEST),)


def is_artefact(place: str | Path) -> bool:
    """True if a place looks like an artefact: it has a file that lists the others. Places at URLs are taken for artefacts."""
    path = Path(place)
    if url_of(place) is not None:
        return True
    if not path.is_file():
        return any((path / head).is_file() for head in _HEADS)
    with suppress(CollageError, OSError), scratch() as folder:
        unpack(path, folder, only=_HEADS)
        return any(folder.iterdir())
    return False


def read_inputs(artefact: str | Path) -> Sequence[Port] | None:
    """Return the inputs that an artefact's manifest lists, without reading other files; None if it does not say so plainly.

    Use it for questions that need no certainty. ``load`` verifies the whole artefact and reports its faults.
    """
    if url_of(artefact) is not None:
        return None  # It would be downloaded for this, and then once more.
    try:
        return plans_in(artefact)[1][0].recipe.inputs
    except (CollageError, OSError):
        return None


@contextmanager
def _fetched(place: str | Path) -> Iterator[Path]:
    with scratch() as folder:
        url = url_of(place)
        path = Path(place) if url is None else download(url, folder)
        if not path.exists():
            raise UsageError(f"{shown(place)} does not exist")
        yield path


def _reader(path: Path, folder: Path, first: Sequence[str]) -> tuple[Callable[[set[str]], None], Path]:
    """Return a function that makes files of an artefact be in a folder, and that folder. The first files are there."""
    if path.is_dir():
        return lambda names: None, path

    def read(names: set[str]) -> None:
        unpack(path, folder, only=names)

    read(set(first))
    return read, folder


def _is_pack(folder: Path) -> bool:
    return (folder / PACK).is_file() and not (folder / MANIFEST).exists()


def _plans_of(folder: Path, read: Callable[[set[str]], None]) -> tuple[PackedPlan, ...]:
    model, manifests = read_pack(folder)
    read(set(manifests))
    return read_plans(folder, model, manifests)


def _write_choice(found: Opened, new: Path, toolchains: Registry) -> None:
    """Write the plan for this machine, as a plain artefact."""
    plans = _plans_of(found.folder, lambda names: None)
    choice = choose(plans, toolchains)
    verify_others(found.folder, plans, (choice.plan, *choice.specialised))
    found.note = choice.note
    for plan in choice.specialised:
        found.specialised.append(make_scratch())
        materialise(found.folder, plan, found.specialised[-1])
    if not choice.is_whole:
        return materialise(found.folder, choice.plan, new)
    # Late: it imports onnx_ir, which running compiled kernels does not need.
    from collage.runtime._whole import write_whole

    with scratch() as folder:
        materialise(found.folder, choice.plan, folder)
        recipe, _ = verify(folder)
        write_whole(folder, recipe, toolchains, new)
    return None
