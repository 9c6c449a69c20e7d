"""Tensors on disk, by which processes share the model's real intermediate values.

One raw file per value and one index, so that a worker maps only the inputs of its kernel. No pickle, no archive format.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 and its kin with NumPy
import numpy as np

__all__ = ["HARDER", "ValueStore", "is_beyond_ranges", "is_only_told", "probe_folder", "probe_of"]

_INDEX = "values.json"
_LISTS = "lists.json"
_PROBE = "probe_"
HARDER = "other_values"
"""Name of the folder with the values of inputs that are made harder than ordinary ones."""
_ANSWERS = "answers"


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
        array = np.ascontiguousarray(value, value.dtype.newbyteorder("="))  # The name of a type does not say the order.
        entry: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(np.shape(value))}
        if array.dtype.kind in "OSUT":
            entry = {"text": [_text(item) for item in array.ravel().tolist()], "shape": list(np.shape(value))}
        else:
            file = hashlib.sha256(name.encode()).hexdigest()[:24]
            if array.size:
                array.reshape(-1).view(np.uint8).tofile(self.folder / file)
            entry["file"] = file
        self._entries[name] = entry

    def put_answer(self, name: str, value: Any) -> None:
        """Store an output of a model as metrics read it: each tensor of a list has a name of its own."""
        if isinstance(value, list | tuple):
            for place, item in enumerate(value):
                self.put(f"{name}[{place}]", item)
        else:
            self.put(name, value)

    def put_unrepeatable(self, names: Iterable[str]) -> None:
        """Mark those of the stored tensors that depend on drawn random numbers. ``flush`` as after ``put``."""
        for name in names:
            if name in self._entries:
                self._entries[name]["unrepeatable"] = True

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

    @property
    def answers(self) -> ValueStore:
        """Return the store of the original model's outputs on the same inputs; empty if they were not kept."""
        return ValueStore(self.folder / _ANSWERS)

    def right(self, name: str) -> np.ndarray[Any, Any]:
        """Return the original model's output if it was kept, else the tensor; KeyError if there is neither."""
        answers = self.answers
        return answers.get(name) if name in answers else self.get(name)

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


def _text(item: Any) -> str:
    return item.decode(errors="replace") if isinstance(item, bytes) else str(item)


def probe_folder(beside: ValueStore, kind: str) -> Path:
    """Return the folder for the values of a kind of probing inputs."""
    return beside.folder.with_name(f"{_PROBE}{kind.replace(' ', '_')}")


def probe_of(folder: str | Path) -> str:
    """Return ``on zeros: `` and its like for the values of probing inputs, an empty text for others."""
    name = Path(folder).name
    return f"on {name.removeprefix(_PROBE).replace('_', ' ')}: " if name.startswith(_PROBE) else ""


def is_only_told(folder: str | Path) -> bool:
    """Return True for values of inputs with NaN on which a plan may be wrong, unless the user asks for more: it is told."""
    return Path(folder).name == f"{_PROBE}nan"


def is_beyond_ranges(folder: str | Path) -> bool:
    """Return True for values of inputs that calibration does not see: probing inputs, and inputs with larger values.

    There, kernels of static 8 bits saturate, and their answers are only finite.
    """
    return bool(probe_of(folder)) or Path(folder).name == HARDER
