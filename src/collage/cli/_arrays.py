"""Arrays in .npy files: texts, and types that NumPy lacks, among them.

NumPy would write texts as a pickle, which is a program, and bfloat16 as two bytes of no type. Here texts are written as NumPy's
own type of texts. bfloat16 and its kin are written as integers in a field that has the name of the type:
``np.load(file)["bfloat16"].view(ml_dtypes.bfloat16)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from collage._errors import UsageError

__all__ = ["read_arrays", "write_array"]

Array = np.ndarray[Any, np.dtype[Any]]


def read_arrays(files: Mapping[str, str], dtypes: Mapping[str, str | None] | None = None) -> dict[str, Any]:
    """Return arrays by name, from .npy files by name.

    Args:
        files: The files.
        dtypes: Types by name, as far as they are known: elements of no type are taken for these.

    Raises:
        UsageError: A file that cannot be read, or holds something else.
    """
    return {name: _read(name, Path(file), (dtypes or {}).get(name)) for name, file in files.items()}


def write_array(file: Path, array: Array) -> None:
    """Write an array to a file.

    Raises:
        OSError: The file cannot be written.
        UsageError: A text ends with a null character, which NumPy's texts do not keep.
    """
    if array.dtype == object:
        texts = array.astype(str)
        if texts.tolist() != array.tolist():
            raise UsageError(
                f"cannot write {file}: a text in it ends with a null character, which .npy files do not keep"
            )
        array = texts
    elif _is_narrow(array.dtype.name):
        array = np.ascontiguousarray(array).reshape(array.shape).view(_field_of(array.dtype))
    np.save(file, array, allow_pickle=False)


def _read(name: str, file: Path, dtype: str | None) -> Array:
    try:
        array = np.load(file, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"cannot read {file} for input {name!r}: {error.strerror or error}") from error
    except MemoryError as error:
        raise UsageError(f"cannot read {file} for input {name!r}: it is larger than the memory") from error
    except Exception as error:  # NumPy's parsers of headers and archives raise what they please.
        raise UsageError(f"cannot read {file} for input {name!r}: it is not a .npy file of numbers or texts") from error
    if not isinstance(array, np.ndarray):
        raise UsageError(f"cannot read {file} for input {name!r}: it holds several arrays; a .npy file holds one")
    fields = array.dtype.names
    if fields is not None and len(fields) == 1 and _is_narrow(fields[0]):
        narrow = np.dtype(fields[0])
        if array.dtype == _field_of(narrow):
            return array.view(narrow)
    if fields is None and array.dtype.kind == "V":
        return _typed(array, name, file, dtype)
    return array


def _typed(array: Array, name: str, file: Path, dtype: str | None) -> Array:
    """Return elements that NumPy wrote without their type as those of a type of the same size."""
    if dtype is not None and _is_narrow(dtype) and np.dtype(dtype).itemsize == array.itemsize:
        return array.view(np.dtype(dtype))
    raise UsageError(
        f"cannot read {file} for input {name!r}: its elements of {array.itemsize} bytes have no type. To write x of bfloat16: "
        "np.save(file, x.view([('bfloat16', 'u2')]))"
    )


def _is_narrow(name: str) -> bool:
    """Return if a name is that of a type which NumPy lacks and ml_dtypes has."""
    kind = getattr(ml_dtypes, name, None)
    return isinstance(kind, type) and issubclass(kind, np.generic)


def _field_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype([(dtype.name, f"u{dtype.itemsize}")])
