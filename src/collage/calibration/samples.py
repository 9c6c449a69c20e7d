"""Samples of a model's inputs: read one at a time, checked against the model, and split for three uses.

A folder holds one ``.npz`` file for each sample. One ``.npz`` file may hold them all, along a leading axis. In Python, any
iterable will do. Files are untrusted: nothing is unpickled, and an array is read only if its header states a sane size.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import lzma
import math
import os
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx_ir as ir

from collage._errors import InputError, UsageError
from collage.calibration.images import ImageFolder
from collage.frontend import check_given, default_of, describe_inputs, lengths_of
from collage.numerics.value_store import ValueStore
from collage.runtime._decoder import with_empty_past
from collage.runtime._tensors import as_numpy

__all__ = ["CalibrationData", "Sample", "Split", "files_for", "holds_nan", "open_data", "put_values", "split_samples"]

Array = np.ndarray[Any, np.dtype[Any]]

_LABELS = ("label", "labels")
_MOST_SAMPLE_BYTES = 1 << 30
_MOST_BYTES = 16 << 30
_MOST_SAMPLES = 100_000
_CHUNK_BYTES = 1 << 20
_TEXT_BYTES = 64
_SPLIT_SEED = 0
_MOST_CALIBRATING = 128
_MOST_CHOOSING = 64
_SHARE = 5
"""One sample in so many calibrates, and as many choose. All others judge."""
_EACH_ONE = 3
_MOST_TOLD = 200
_BROKEN = zipfile.BadZipFile, zlib.error, lzma.LZMAError


def put_values(folder: Path, values: Mapping[str, Any]) -> ValueStore:
    """Return a store that holds only these values. Earlier files of the folder are removed."""
    for index in ("values.json", "lists.json"):
        (folder / index).unlink(missing_ok=True)
    store = ValueStore(folder)
    for name, value in values.items():
        store.put_input(name, value)
    store.flush()
    return store


@dataclass(frozen=True, slots=True)
class Sample:
    """One set of inputs.

    Attributes:
        name: Name of the sample in messages, such as its file.
        feeds: Its inputs by name.
        label: The right answer, if the data gives one.
        is_text: Only tokens of a decoder are given. Its past is empty, so that lengths are those of no step of it.
    """

    name: str
    feeds: Mapping[str, Array]
    label: Array | None = None
    is_text: bool = False


def holds_nan(feeds: Mapping[str, Any]) -> bool:
    """Return True if an input holds NaN, which 8 bits cannot express."""
    listed = (value if isinstance(value, list) else [value] for value in feeds.values())
    arrays = (value for value in itertools.chain.from_iterable(listed) if isinstance(value, np.ndarray))
    return any("float" in array.dtype.name and bool(np.isnan(array).any()) for array in arrays)


@dataclass(frozen=True, slots=True)
class Split:
    """The samples that serve each purpose, by index.

    Attributes:
        calibrate: Ranges come from these.
        choose: Precisions and plans are chosen on these.
        judge: Errors are reported on these.
    """

    calibrate: tuple[int, ...]
    choose: tuple[int, ...]
    judge: tuple[int, ...]

    @property
    def is_independent(self) -> bool:
        """False if there are too few samples for the judging ones to have served nothing else."""
        return set(self.judge).isdisjoint((*self.calibrate, *self.choose))


def split_samples(count: int) -> Split:
    """Return the same split whenever it is asked for: a fifth calibrates, a fifth chooses, the others judge.

    With two samples the first calibrates and chooses. A single one does everything, and ``is_independent`` is False.
    """
    if count < 1:
        raise UsageError("there is no sample")
    order = [int(i) for i in np.random.default_rng(_SPLIT_SEED).permutation(count)]
    if count < _EACH_ONE:
        return Split((order[0],), (order[0],), (order[-1],))
    calibrating = max(1, min(_MOST_CALIBRATING, count // _SHARE))
    choosing = max(1, min(_MOST_CHOOSING, count // _SHARE))
    middle = calibrating + choosing
    return Split(tuple(order[:calibrating]), tuple(order[calibrating:middle]), tuple(order[middle:]))


def files_for(judging: int) -> int:
    """Return the number of samples of which ``split_samples`` leaves so many for judging."""
    count = judging
    while len(split_samples(count).judge) < judging:
        count += max(1, judging - len(split_samples(count).judge))
    return count


@dataclass(frozen=True, slots=True)
class CalibrationData:
    """Samples that are read when they are asked for.

    Attributes:
        count: Number of samples.
        digest: Changes when the samples do.
        has_labels: Every sample says what is right.
        read: Returns a sample by index.
        origin: Name of the data in messages.
        labelled: Number of samples that say what is right.
        how: The steps from files to inputs, in words; empty if there are none.
        lengths: Number of samples of each length, by dimension, as far as the samples differ.
    """

    count: int
    digest: str
    has_labels: bool
    read: Callable[[int], Sample] = field(repr=False)
    origin: str
    labelled: int = 0
    how: str = ""
    lengths: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def samples(self, indices: Iterable[int]) -> Iterator[Sample]:
        """Read samples one after the other."""
        return (self.read(index) for index in indices)


def open_data(source: Any, model: ir.Model, folder: Path, *, fitting: bool = False) -> CalibrationData:
    """Return the samples of a folder, a file or an iterable, all of which fit a model.

    Args:
        source: A folder of ``.npz`` files, one ``.npz`` file with a leading axis of samples, or an iterable of samples: inputs
            by name, or a pair of these and a label.
        model: A model with its inputs.
        folder: Folder for samples that have no files of their own.
        fitting: Leave out samples of a folder or an iterable that do not fit.

    Raises:
        UsageError: The source cannot be read, or holds nothing.
        InputError: Names, shapes or types that do not fit the model; the message names the sample.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_dir():
            return _of_folder(path, model, fitting=fitting)
        if path.is_file():
            return _of_file(path, model, folder)
        raise UsageError(f"cannot read the samples: {path} does not exist")
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise UsageError(
            f"samples are a folder, a .npz file or an iterable of inputs by name, not {type(source).__name__}; "
            "a single sample is a list of one"
        )
    return _of_iterable(source, model, folder, fitting=fitting)


@dataclass(frozen=True, slots=True)
class _Header:
    """Type and shape of an array in an archive, before it is read."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def memory_bytes(self) -> int:
        """Bytes of the array once it is read: each text becomes an object, however short it is."""
        return self.nbytes + (_TEXT_BYTES * math.prod(self.shape) if self.dtype.kind in "SU" else 0)

    def stand_in(self, shape: Sequence[int]) -> Array:
        """Return an array of this type that takes no memory."""
        return np.broadcast_to(np.zeros((), self.dtype), tuple(shape))


class _Tally:
    """Counts samples that fit a model, by their lengths."""

    def __init__(self, model: ir.Model, *, fitting: bool) -> None:
        self.labelled = 0
        self._model, self._fitting = model, fitting
        self._lengths: dict[str, Counter[int]] = {}

    def takes(self, arrays: Mapping[str, Array], where: str) -> bool:
        """Count a sample; return False for one that does not fit and may be left out.

        Raises:
            InputError: It does not fit, and may not be left out.
        """
        try:
            sample = _sample(self._model, arrays, where)
        except InputError:
            if not self._fitting:
                raise
            return False
        self.labelled += sample.label is not None
        for name, length in lengths_of(self._model, sample.feeds).items():
            self._lengths.setdefault(name, Counter())[length] += 1
        return True

    @property
    def lengths(self) -> dict[str, Mapping[int, int]]:
        """The number of samples of each length, by dimension, as far as they differ."""
        return {name: dict(found) for name, found in self._lengths.items() if len(found) > 1}


def _of_folder(path: Path, model: ir.Model, *, fitting: bool) -> CalibrationData:
    found = sorted(each for each in path.iterdir() if each.suffix == ".npz" and each.is_file())
    if not found:
        return _of_images(path, model)
    digest, tally, files = hashlib.sha256(), _Tally(model, fitting=fitting), list[Path]()
    for file in found[:_MOST_SAMPLES]:
        with _archive(file) as archive:
            headers = _headers(archive, file, _MOST_SAMPLE_BYTES)
        stand_ins = {name: header.stand_in(header.shape) for name, header in headers.items()}
        if not tally.takes(stand_ins, str(file)):
            continue
        files.append(file)
        stat = file.stat()
        digest.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    if not files:
        raise UsageError(f"no sample in {path} has these lengths")

    def read(index: int) -> Sample:
        file = files[index]
        with _archive(file) as archive:
            headers = _headers(archive, file, _MOST_SAMPLE_BYTES)
            arrays = {name: _array(archive, name, file) for name in headers}
        return _sample(model, arrays, str(file))

    count, labelled = len(files), tally.labelled
    return CalibrationData(
        count, digest.hexdigest(), labelled == count, read, str(path), labelled, lengths=tally.lengths
    )


def _of_images(path: Path, model: ir.Model) -> CalibrationData:
    folder = ImageFolder(path, describe_inputs(model))

    def read(index: int) -> Sample:
        return _sample(model, folder.arrays(index), str(folder.files[index]))

    count = min(len(folder.files), _MOST_SAMPLES)
    labelled = count if folder.has_labels else 0
    return CalibrationData(count, folder.digest, folder.has_labels, read, str(path), labelled, folder.how)


def _of_file(path: Path, model: ir.Model, folder: Path) -> CalibrationData:
    """Return samples along the leading axis; arrays are unpacked into a folder, from which one sample at a time is mapped."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Array] = {}
    with _archive(path) as archive:
        headers = _headers(archive, path, _MOST_BYTES)
        if not headers:
            raise UsageError(f"{path} holds no array; write arrays named as the inputs, samples along the first axis")
        if scalar := [name for name, header in headers.items() if not header.shape]:
            raise InputError(f"{path}: array {scalar[0]!r} is a scalar, and has no leading axis of samples")
        lengths = {name: header.shape[0] for name, header in headers.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InputError(f"{path}: the first axis is that of samples, and its length differs ({told})")
        count = min(lengths.values())
        if not count:
            raise UsageError(f"{path} holds no sample: its first axis has length 0")
        stand_ins = {name: header.stand_in(header.shape[1:]) for name, header in headers.items()}
        has_labels = _sample(model, stand_ins, str(path)).label is not None
        for number, (name, header) in enumerate(headers.items()):
            arrays[name] = _unpacked(archive, name, header, folder / f"data_{number}", path)
    stat = path.stat()
    digest = hashlib.sha256(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()

    def read(index: int) -> Sample:
        return _sample(
            model, {name: np.array(array[index]) for name, array in arrays.items()}, f"{path}, sample {index}"
        )

    return CalibrationData(min(count, _MOST_SAMPLES), digest, has_labels, read, str(path))


def _of_iterable(source: Iterable[Any], model: ir.Model, folder: Path, *, fitting: bool) -> CalibrationData:
    """Write the samples of an iterable, which may be read only once, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    digest, tally, written, count = hashlib.sha256(), _Tally(model, fitting=fitting), 0, 0
    for number, item in enumerate(source):
        where = f"sample {number}"
        feeds, label = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        if not isinstance(feeds, Mapping):
            raise UsageError(
                f"{where} is {type(feeds).__name__}; a sample is inputs by name, or a pair of these and a label"
            )
        arrays = {str(name): _plain(value, str(name), where) for name, value in feeds.items()}
        if label is not None:
            arrays[_LABELS[0]] = _plain(label, "label", where)
        if not tally.takes(arrays, where):
            continue
        for name, array in arrays.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
            written += array.nbytes
        if written > _MOST_BYTES or count >= _MOST_SAMPLES:
            raise UsageError(f"{where}: more than {_MOST_BYTES >> 30} GiB or {_MOST_SAMPLES} samples; give fewer")
        put_values(folder / f"sample_{count}", arrays)
        count += 1
    if not count:
        raise UsageError("no sample has these lengths" if fitting else "the samples are empty; give at least one")

    def read(index: int) -> Sample:
        store = ValueStore(folder / f"sample_{index}")
        return _sample(model, {name: np.array(store.get(name)) for name in store}, f"sample {index}")

    labelled = tally.labelled
    return CalibrationData(
        count, digest.hexdigest(), labelled == count, read, "the samples given", labelled, lengths=tally.lengths
    )


def _sample(model: ir.Model, arrays: Mapping[str, Array], where: str) -> Sample:
    """Return a sample whose inputs fit the model.

    Raises:
        InputError: They do not.
    """
    specs = {spec.name: spec for spec in describe_inputs(model)}
    labels = [name for name in _LABELS if name in arrays and name not in specs]
    feeds = {name: value for name, value in arrays.items() if name not in labels}
    for name, value in feeds.items():
        shape = specs[name].shape if name in specs else None
        # A batch of one may be left out of samples.
        if shape is not None and value.ndim == len(shape) - 1 and (isinstance(shape[0], str) or shape[0] in (1, None)):
            feeds[name] = value[np.newaxis]
    text = with_empty_past(model, feeds)
    try:
        feeds = check_given(model, text or feeds)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if missing := [spec for spec in specs.values() if spec.name not in feeds and spec.default is None]:
        raise InputError(f"{where}: there is no array for input {missing[0].name!r}; the model takes {missing[0]}")
    # The prepared model, from which ranges come, has no defaults.
    defaults = {str(v.name): default_of(v) for v in model.graph.inputs if str(v.name) not in feeds}
    feeds |= {name: value for name, value in defaults.items() if value is not None}
    return Sample(where, feeds, arrays[labels[0]] if labels else None, text is not None)


@contextlib.contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive of arrays; turn its errors into a sentence for the user."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (*_BROKEN, EOFError, RuntimeError, struct.error, UnicodeError) as error:
        told = " ".join(str(error).split())[:_MOST_TOLD]
        raise UsageError(f"cannot read {path}: it is not a .npz file ({told})") from error


def _headers(archive: zipfile.ZipFile, path: Path, most_bytes: int) -> dict[str, _Header]:
    """Return types and shapes of the arrays of an archive, which together may not be larger than stated.

    Raises:
        UsageError: An array of objects, a member that holds no array, or too large a size.
    """
    found: dict[str, _Header] = {}
    for member in archive.namelist():
        name = member.removesuffix(".npy")
        with archive.open(member) as stream:
            header, _ = _header(stream, f"{path}: {name!r}")
        found[name] = header
        if sum(each.memory_bytes for each in found.values()) > most_bytes:
            raise UsageError(f"{path}: its arrays take more than {most_bytes >> 20} MiB; give smaller ones")
    return found


def _header(stream: IO[bytes], where: str) -> tuple[_Header, bool]:
    """Read an array's header; return it, and True if elements lie in the order of Fortran."""
    try:
        version = np.lib.format.read_magic(stream)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, is_fortran, dtype = reader(stream)
        np.broadcast_to(np.zeros((), dtype), shape)  # NumPy has limits of its own, such as the number of axes.
    except (*_BROKEN, OSError):
        raise
    except Exception as error:  # Headers are untrusted texts, and NumPy's parser raises what it pleases.
        raise UsageError(f"{where} is not an array in NumPy's format") from error
    if any(length < 0 for length in shape) or dtype.names is not None or dtype.subdtype is not None:
        raise UsageError(f"{where} is not an array of plain elements; save numbers or fixed-width strings")
    if dtype.hasobject:
        raise UsageError(f"{where} holds Python objects, which are never read; save numbers or fixed-width strings")
    return _Header(dtype, shape), is_fortran


def _array(archive: zipfile.ZipFile, name: str, path: Path) -> Array:
    with archive.open(_member(archive, name)) as stream:
        try:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
        except (ValueError, EOFError) as error:
            raise UsageError(f"{path}: array {name!r} is cut short") from error


def _unpacked(archive: zipfile.ZipFile, name: str, header: _Header, file: Path, path: Path) -> Array:
    """Copy an array's bytes into a file, as many as its header states, and map it."""
    with archive.open(_member(archive, name)) as stream, file.open("wb") as out:
        _, is_fortran = _header(stream, f"{path}: {name!r}")
        left = header.nbytes
        while left and (chunk := stream.read(min(left, _CHUNK_BYTES))):
            out.write(chunk)
            left -= len(chunk)
    if left:
        raise UsageError(f"{path}: array {name!r} is cut short")
    if not header.nbytes:
        return np.zeros(header.shape, header.dtype)
    return np.memmap(file, header.dtype, "r", shape=header.shape, order="F" if is_fortran else "C")


def _member(archive: zipfile.ZipFile, name: str) -> str:
    return f"{name}.npy" if f"{name}.npy" in archive.NameToInfo else name


def _plain(value: Any, name: str, where: str) -> Array:
    """Return a tensor of any library as an array without Python objects: texts get a fixed width."""
    try:
        array = as_numpy(value)
    except (ValueError, TypeError, RuntimeError, BufferError) as error:
        raise InputError(f"{where}: {name!r} is not a tensor: {error}") from error
    if array.dtype.kind != "O":
        return array
    if all(isinstance(item, str | bytes) for item in array.ravel()):
        with contextlib.suppress(UnicodeError):
            return array.astype(str)
    raise InputError(f"{where}: {name!r} holds Python objects; give numbers or texts")
