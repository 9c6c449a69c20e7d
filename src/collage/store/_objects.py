"""The content-addressed store.

::

    ROOT/
        objects/sha256/ab/cdef...     files, named by the SHA-256 of their bytes: equal files are one file
        names/resnet50.json           the name of an artefact, and the SHA-256 of its tree

A tree is an object too. It lists the files of an artefact by their names, digests and sizes. Its digest is that of the whole
artefact: two artefacts have one digest if and only if they hold the same bytes. A stored object never changes; a name
may refer to another object later.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage._errors import ArtefactError, UsageError
from collage.store._copies import copy_verified
from collage.store._places import DRAFT, FileSystem, shown, telling, url_of
from collage.system.plain_names import is_plain_name
from collage.system.scratch import scratch

__all__ = ["GRACE_S", "Collected", "Problem", "Store", "StoredName", "check_name", "default_root"]

_SCHEMA = 1
_MOST_TREE_BYTES = 16 << 20
_MOST_NAME_BYTES = 1 << 16
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_MOST_PARTS = 8
_DIGEST = re.compile(r"[0-9a-f]{64}")
_BY_DIGEST = "sha256:"

# An object without a name may belong to an artefact that is being stored. It is removed when it is so old.
GRACE_S = 86400.0


@dataclass(frozen=True, slots=True)
class StoredName:
    """A name in a store.

    Attributes:
        name: The name.
        digest: SHA-256 of its tree.
        files: SHA-256 and size of each file of the artefact.
        made_at_s: The time at which the name was written, in seconds since 1970.
    """

    name: str
    digest: str
    files: Mapping[str, tuple[str, int]]
    made_at_s: float

    @property
    def size_bytes(self) -> int:
        """The size of the artefact. Files that it shares with others count in full."""
        return sum(size for _, size in self.files.values())


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a store that is not as it was written.

    Attributes:
        what: The name or the digest that it belongs to.
        reason: A sentence.
        path: The damaged file, None if a file is missing.
    """

    what: str
    reason: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Collected:
    """Objects that no name refers to, and drafts.

    Attributes:
        objects: Their number.
        size_bytes: Their size.
        young: The number of others that are too young to be removed.
    """

    objects: int
    size_bytes: int
    young: int


def default_root() -> str:
    """Return the store of this user: ``$COLLAGE_STORE``, or a folder in the user's data folder."""
    if root := os.environ.get("COLLAGE_STORE"):
        return root
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return str(data / "collage" / "store")


def check_name(name: str) -> None:
    """Raise UsageError if something cannot be the name of an artefact in a store."""
    parts = name.split("/")
    if len(parts) > _MOST_PARTS or not all(_PART.fullmatch(part) for part in parts):
        raise UsageError(
            f"{name[:80]!r} cannot be a name in the store: letters, digits and . _ @ + - in up to {_MOST_PARTS} parts "
            f"between slashes, such as resnet50/v3"
        )


class Store:
    """A content-addressed store.

    Args:
        root: A folder, or a URL that ``fsspec`` knows. None is the store of this user.

    Attributes:
        place: The file system and the path of the root.
    """

    def __init__(self, root: str | Path | None = None) -> None:
        root = default_root() if root is None else root
        url = url_of(root)
        self.place = FileSystem(Path(root).absolute().as_uri() if url is None else url)
        self._shown = str(root) if url is None else shown(url)

    def __str__(self) -> str:
        return self._shown

    def put(self, files: Mapping[str, Path], name: str) -> str:
        """Store files under a name. The name is written last, so that readers see either all new files or the old state.

        Args:
            files: The files by the names that they are to have, without folders.
            name: The name. One that exists refers to these files from then on.

        Returns:
            The digest of the tree.

        Raises:
            UsageError: The name is not a name, or the store cannot be written.
        """
        check_name(name)
        if bad := [each for each in files if not is_plain_name(each)]:
            raise UsageError(f"{bad[0][:80]!r} cannot be stored: it is not a plain file name")
        listed = {each: (_digest_of(path), path.stat().st_size) for each, path in files.items()}
        tree = {each: {"sha256": digest, "bytes": size} for each, (digest, size) in sorted(listed.items())}
        text = json.dumps({"schema": _SCHEMA, "files": tree}, sort_keys=True).encode()
        with telling("write", self._shown), scratch() as folder:
            tree_file, name_file = folder / "tree", folder / "name"
            tree_file.write_bytes(text)
            digest = _digest_of(tree_file)
            sources = {**{listed[each][0]: path for each, path in files.items()}, digest: tree_file}
            used: set[str] | None = None
            for each, source in sources.items():
                used = self._write(each, source, used)
            told = {"schema": _SCHEMA, "tree": digest, "made_at_s": time.time()}
            name_file.write_text(json.dumps(told))
            self.place.write(name_file, self._name_path(name))
            # An object may have been collected between the look at it and the writing of the name.
            for each, source in sources.items():
                if self.place.size(self._object_path(each)) != source.stat().st_size:
                    self.place.write(source, self._object_path(each))
        return digest

    def get(self, reference: str, folder: Path) -> str:
        """Copy an artefact into an empty folder, and compare every byte with its digest.

        Args:
            reference: A name, or ``sha256:`` and the digest of a tree.
            folder: The folder.

        Returns:
            The digest of the tree.

        Raises:
            UsageError: There is no such artefact, or the store cannot be read.
            ArtefactError: A file is missing or was changed.
        """
        digest = self.resolve(reference)
        with telling("read", self._shown):
            for name, (each, size) in self.files_of(digest).items():
                path = self._object_path(each)
                if self.place.size(path) is None:
                    raise ArtefactError(f"{self}: {path} is missing, of the artefact {reference}")
                copy_verified(self.place, path, folder / name, size, each)
        return digest

    def resolve(self, reference: str) -> str:
        """Return the digest of the tree that a name, or ``sha256:`` and a digest, refers to.

        Raises:
            UsageError: There is no such name, or it is not a name.
            ArtefactError: The file of the name is damaged.
        """
        if reference.startswith(_BY_DIGEST) and _DIGEST.fullmatch(digest := reference.removeprefix(_BY_DIGEST)):
            return digest
        check_name(reference)
        with telling("read", self._shown):
            told = self._read_json(self._name_path(reference), _MOST_NAME_BYTES)
        if told is None:
            raise UsageError(f"{self} holds no artefact {reference!r}; `collage store list` shows all names")
        if told.get("schema") != _SCHEMA or not _is_digest(told.get("tree")):
            raise ArtefactError(f"{self}: the name {reference} refers to nothing that this version reads")
        return str(told["tree"])

    def files_of(self, digest: str) -> Mapping[str, tuple[str, int]]:
        """Return the SHA-256 and size of each file of a tree.

        Raises:
            UsageError: There is no such tree.
            ArtefactError: The tree was changed, or is not one.
        """
        path = self._object_path(digest)
        with telling("read", self._shown), scratch() as folder:
            size = self.place.size(path)
            if size is None or size > _MOST_TREE_BYTES:
                raise UsageError(f"{self} holds no artefact {_BY_DIGEST}{digest}")
            copy_verified(self.place, path, folder / "tree", size, digest)
            return _files_of((folder / "tree").read_bytes(), f"{self}: {path}")

    def names(self) -> Iterator[StoredName]:
        """Give the names, sorted.

        Raises:
            ArtefactError: A name or a tree is damaged.
        """
        with telling("read", self._shown):
            for name in self._names():
                told = self._read_json(self._name_path(name), _MOST_NAME_BYTES)
                if told is None:
                    continue  # It was removed meanwhile.
                digest = self.resolve(name)
                made_at_s = told.get("made_at_s")
                known = made_at_s if isinstance(made_at_s, int | float) else 0.0
                yield StoredName(name, digest, self.files_of(digest), float(known))

    def remove(self, name: str) -> None:
        """Remove a name. Its files stay until ``collect``.

        Raises:
            UsageError: There is no such name.
        """
        self.resolve(name)
        with telling("write", self._shown):
            self.place.remove(self._name_path(name))

    def verify(self) -> Iterator[Problem]:
        """Verify every object, and return the damaged or missing ones."""
        with telling("read", self._shown):
            damaged = set()
            for path, digest in self._objects():
                if _digest_of_stream(self.place, path) != digest:
                    damaged.add(digest)
                    yield Problem(digest, f"{path} was changed: its SHA-256 is not its name", path)
            for name in self._names():
                try:
                    files = self.files_of(self.resolve(name))
                except (ArtefactError, UsageError) as error:
                    yield Problem(name, f"the name {name}: {error}")
                    continue
                for each, (digest, size) in files.items():
                    if digest not in damaged and self.place.size(self._object_path(digest)) != size:
                        yield Problem(name, f"{each} of {name} is missing: {self._object_path(digest)}")

    def collect(self, older_than_s: float = GRACE_S, *, dry_run: bool = False) -> Collected:
        """Remove objects that no name refers to, and drafts that killed processes left behind.

        Args:
            older_than_s: The age from which they are removed. Younger ones may belong to an artefact that is being stored.
            dry_run: Remove nothing.

        Raises:
            ArtefactError: A name or a tree is damaged, so the objects that it refers to are not known. Nothing is removed.
        """
        found = [*self._objects(), *((path, "") for path in self._drafts())]
        used = self._used()
        objects = size_bytes = young = 0
        with telling("write", self._shown):
            for path, digest in found:
                if digest in used:
                    continue
                # Its age at this moment: it may have been stored again meanwhile.
                if older_than_s > 0 and (self.place.age_s(path, time.time()) or 0.0) < older_than_s:
                    young += 1
                    continue
                objects += 1
                size_bytes += self.place.size(path) or 0
                if not dry_run:
                    self.place.remove(path)
        return Collected(objects, size_bytes, young)

    def _write(self, digest: str, source: Path, used: set[str] | None) -> set[str] | None:
        """Write an object, if it is not there. Return the objects in use, if they had to be looked up."""
        path = self._object_path(digest)
        if self.place.size(path) == source.stat().st_size:
            age_s = self.place.age_s(path, time.time())
            if age_s is not None and age_s < GRACE_S / 2:
                return used
            # An old object without a name may be collected at any moment. Writing it again makes it young.
            used = self._used() if used is None else used
            if digest in used:
                return used
        self.place.write(source, path)
        return used

    def _used(self) -> set[str]:
        """Return the digests of all objects that a name refers to."""
        used = set()
        for each in self.names():
            used |= {each.digest, *(digest for digest, _ in each.files.values())}
        return used

    def _names(self) -> list[str]:
        below = self.place.at("names") + "/"
        paths = [path.partition(below)[2] for path in self.place.files(self.place.at("names"))]
        return sorted(path.removesuffix(".json") for path in paths if path.endswith(".json"))

    def _objects(self) -> list[tuple[str, str]]:
        """Return the path and the digest of every object. Files with other names are drafts."""
        with telling("read", self._shown):
            found = []
            for path in self.place.files(self.place.at("objects", "sha256")):
                digest = "".join(path.split("/")[-2:])
                if _is_digest(digest):
                    found.append((path, digest))
            return sorted(found)

    def _drafts(self) -> list[str]:
        with telling("read", self._shown):
            folders = (self.place.at("objects"), self.place.at("names"))
            return sorted(path for folder in folders for path in self.place.files(folder) if path.endswith(DRAFT))

    def _object_path(self, digest: str) -> str:
        return self.place.at("objects", "sha256", digest[:2], digest[2:])

    def _name_path(self, name: str) -> str:
        return self.place.at("names", *f"{name}.json".split("/"))

    def _read_json(self, path: str, most_bytes: int) -> dict[str, Any] | None:
        """Return a JSON object, None if there is no such file."""
        if self.place.size(path) is None:
            return None
        with self.place.open(path) as file:
            data = file.read(most_bytes + 1)
        return _object(data[:most_bytes], f"{self}: {path}")


def _files_of(data: bytes, where: str) -> Mapping[str, tuple[str, int]]:
    told = _object(data, where)
    files = told.get("files")
    if told.get("schema") != _SCHEMA or not isinstance(files, dict):
        raise ArtefactError(f"{where} lists no files that this version reads")
    found = {}
    for name, facts in files.items():
        digest, size = (facts.get("sha256"), facts.get("bytes")) if isinstance(facts, dict) else (None, None)
        if not is_plain_name(name) or not _is_digest(digest) or type(size) is not int or size < 0:
            raise ArtefactError(f"{where} names a file {name[:80]!r} in a way that is not allowed")
        found[name] = (str(digest), size)
    return found


def _object(data: bytes, where: str) -> dict[str, Any]:
    try:
        told = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{where} is damaged: {error}") from error
    if not isinstance(told, dict):
        raise ArtefactError(f"{where} is damaged: it holds no JSON object")
    return told


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of_stream(place: FileSystem, path: str) -> str:
    seen = hashlib.sha256()
    with place.open(path) as file:
        while block := file.read(1 << 22):
            seen.update(block)
    return seen.hexdigest()
