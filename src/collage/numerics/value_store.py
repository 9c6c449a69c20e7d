"""Tensors on disk, by which processes share the model's real intermediate values.

One raw file per value and one index, so that a worker maps only the inputs of its kernel. No pickle, no archive format.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 and its kin with NumPy
import numpy as np

__all__ = ["HARDER", "ValueStore", "is_beyond_ranges", "probe_folder", "probe_of"]

_INDEX = "values.json"
_LISTS = "lists.json"
_PROBE = "probe_"
HARDER = "other_values"
"""Name of the folder with the values of inputs that are made harder than ordinary ones."""
_MARKS = ("unsettled", "unstable", "unrepeatable")


class ValueStore:
    """Named tensors in a folder.

    Args:
        folder: Created if missing. An existing store is opened.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._entries: dict[str, dict[str, Any]] = {}
        self._lists: dict[str, int | None] = {}
        self.reload()

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def reload(self) -> None:
        """Take over the values that other processes have stored."""
        index = self.folder / _INDEX
        self._entries = json.loads(index.read_text()) if index.exists() else {}
        lists = self.folder / _LISTS
        self._lists = json.loads(lists.read_text()) if lists.exists() else {}

    def holds_input(self, name: str) -> bool:
        """Return True if ``put_input`` stored something under this name, or ``put`` a tensor."""
        return name in self._entries or name in self._lists

    def put_input(self, name: str, value: Any) -> None:
        """Store an input of a model: a tensor, a list of tensors, or None for an optional that is absent.

        Only ``input`` returns lists and None. They need no ``flush``, and iteration passes over them.
        """
        if isinstance(value, np.ndarray | np.generic):
            self.put(name, value)
            return
        if value is not None:
            items = self._list(name)
            for position, item in enumerate(value):
                items.put(str(position), np.asarray(item))
            items.flush()
        self._lists[name] = None if value is None else len(value)
        (self.folder / _LISTS).write_text(json.dumps(self._lists))

    def input(self, name: str) -> Any:
        """Return a copy of an input that ``put_input`` stored.

        Raises:
            KeyError: It was not stored.
        """
        if name not in self._lists:
            return np.array(self.get(name))
        count = self._lists[name]
        return None if count is None else [np.array(self._list(name).get(str(position))) for position in range(count)]

    def _list(self, name: str) -> ValueStore:
        return ValueStore(self.folder / f"list_{hashlib.sha256(name.encode()).hexdigest()[:24]}")

    def put(self, name: str, value: Any) -> None:
        """Store a tensor; call ``flush`` before another process reads it. Sequences and None are skipped."""
        if not isinstance(value, np.ndarray | np.generic):
            return
        array = np.ascontiguousarray(value)
        entry: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(np.shape(value))}
        if array.dtype.kind in "OSUT":
            entry = {"text": [str(item) for item in array.ravel().tolist()], "shape": list(np.shape(value))}
        else:
            file = hashlib.sha256(name.encode()).hexdigest()[:24]
            if array.size:
                array.reshape(-1).view(np.uint8).tofile(self.folder / file)
            entry["file"] = file
        self._entries[name] = entry

    def put_rounding_sensitive(self, name: str, elements: np.ndarray[Any, Any]) -> None:
        """Mark elements of a stored tensor that follow from close decisions: bool, of its shape. ``flush`` as after ``put``.

        Raises:
            KeyError: The tensor was not stored.
        """
        self._put_mask(name, "unsettled", elements)

    def put_unstable(self, name: str, elements: np.ndarray[Any, Any]) -> None:
        """Mark elements of a stored tensor that rounding errors change by more than is tolerated, as ``put_unsettled``."""
        self._put_mask(name, "unstable", elements)

    def put_unrepeatable(self, names: Iterable[str]) -> None:
        """Mark those of the stored tensors that depend on drawn random numbers. ``flush`` as after ``put``."""
        for name in names:
            if name in self._entries:
                self._entries[name]["unrepeatable"] = True

    def _put_mask(self, name: str, kind: str, elements: np.ndarray[Any, Any]) -> None:
        file = hashlib.sha256(f"{kind} {name}".encode()).hexdigest()[:24]
        np.ascontiguousarray(elements, bool).tofile(self.folder / file)
        self._entries[name][kind] = file

    def replace(self, name: str, value: np.ndarray[Any, Any]) -> None:
        """Store another tensor of the same shape in a tensor's place; its marks stay. ``flush`` as after ``put``."""
        marks = {kind: mark for kind, mark in self._entries[name].items() if kind in _MARKS}
        self.put(name, value)
        self._entries[name].update(marks)

    def flush(self) -> None:
        """Make everything stored so far visible to other processes."""
        temporary = self.folder / f"{_INDEX}.new"
        temporary.write_text(json.dumps(self._entries))
        temporary.replace(self.folder / _INDEX)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape; KeyError if it was not stored."""
        return tuple(self._entries[name]["shape"])

    def dtype(self, name: str) -> str:
        """The name of a tensor's element type, ``object`` for texts; KeyError if it was not stored."""
        return str(self._entries[name].get("dtype", "object"))

    def nbytes(self, name: str) -> int:
        """Bytes of a tensor's elements, 0 for texts; KeyError if it was not stored."""
        entry = self._entries[name]
        return math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize if "dtype" in entry else 0

    def is_repeatable(self, name: str) -> bool:
        """Return False if a tensor depends on drawn random numbers; KeyError if it was not stored."""
        return "unrepeatable" not in self._entries[name]

    def rounding_sensitive(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return the elements of a tensor that cannot be compared, as bool of its shape, or None if all can.

        Raises:
            KeyError: It was not stored.
        """
        masks = [mask for kind in ("unsettled", "unstable") if (mask := self._mask(name, kind)) is not None]
        return functools.reduce(np.logical_or, masks) if masks else None

    def unstable(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return the elements of a tensor that rounding errors change, as ``rounding_sensitive``, without close decisions."""
        return self._mask(name, "unstable")

    def _mask(self, name: str, kind: str) -> np.ndarray[Any, Any] | None:
        if kind not in (entry := self._entries[name]):
            return None
        return np.fromfile(self.folder / entry[kind], bool).reshape(entry["shape"])

    def get(self, name: str) -> np.ndarray[Any, Any]:
        """The tensor, mapped read-only.

        Raises:
            KeyError: It was not stored.
        """
        entry = self._entries[name]
        shape = tuple(entry["shape"])
        if "text" in entry:
            return np.array(entry["text"], dtype=object).reshape(shape)
        dtype = np.dtype(entry["dtype"])
        if 0 in shape:
            return np.zeros(shape, dtype)
        raw: np.ndarray[Any, Any] = np.memmap(self.folder / entry["file"], np.uint8, "r")
        tensor: np.ndarray[Any, Any] = raw.view(dtype).reshape(shape)
        return tensor


def probe_folder(beside: ValueStore, kind: str) -> Path:
    """Return the folder for the values of a kind of probing inputs."""
    return beside.folder.with_name(f"{_PROBE}{kind.replace(' ', '_')}")


def probe_of(folder: str | Path) -> str:
    """Return ``on zeros: `` and its like for the values of probing inputs, an empty text for others."""
    name = Path(folder).name
    return f"on {name.removeprefix(_PROBE).replace('_', ' ')}: " if name.startswith(_PROBE) else ""


def is_beyond_ranges(folder: str | Path) -> bool:
    """Return True for values of inputs that calibration does not see: probing inputs, and inputs with larger values.

    There, kernels of static 8 bits saturate, and their answers are only finite.
    """
    return bool(probe_of(folder)) or Path(folder).name == HARDER
