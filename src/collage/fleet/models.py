"""Models that are sent to other machines: their files, and the digest and interface that a returned artefact must have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from collage._errors import ModelError, UsageError
from collage.frontend import model_digest, read_model
from collage.runtime import Port

__all__ = ["ModelFiles", "describe_model", "read_files", "write_files"]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model as files.

    Attributes:
        path: The ONNX file.
        digest: See ``model_digest``.
        files: The names of all its files, relative to its folder, the ONNX file first.
        bytes: Their size together.
        inputs: Name and element type of each input.
        outputs: The same of each output.
    """

    path: Path
    digest: str
    files: tuple[str, ...]
    bytes: int
    inputs: tuple[tuple[str, str | None], ...]
    outputs: tuple[tuple[str, str | None], ...]


def describe_model(path: Path) -> ModelFiles:
    """Read a model through the front door, and describe it.

    Raises:
        UsageError: There is no such file.
        ModelError: It is not valid, or not safe.
    """
    model = read_model(path)
    files = (path.name, *_external_files(path))
    return ModelFiles(
        path.absolute(),
        model_digest(model),
        files,
        sum((path.parent / name).stat().st_size for name in files),
        tuple((port.name, port.dtype) for port in map(Port.of, model.graph.inputs)),
        tuple((port.name, port.dtype) for port in map(Port.of, model.graph.outputs)),
    )


def read_files(model: ModelFiles) -> dict[str, bytes]:
    """Return the contents of a model's files."""
    try:
        return {name: (model.path.parent / name).read_bytes() for name in model.files}
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from error


def write_files(files: dict[str, bytes], folder: Path) -> None:
    """Write the files of a model into an empty folder.

    Raises:
        ModelError: A name leads out of the folder.
    """
    for name, data in files.items():
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts or not place.parts:
            raise ModelError(f"a model's file cannot be called {name[:80]!r}")
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(data)


def _external_files(path: Path) -> Sequence[str]:
    """Return the files in which a model keeps weights; the front door has checked where they lie."""
    import onnx  # late: it is slow to import, and commands that only read rows do without

    found: dict[str, None] = {}
    for tensor in _tensors(onnx.load(path, load_external_data=False)):
        told = {entry.key: entry.value for entry in tensor.external_data}
        if tensor.data_location == onnx.TensorProto.EXTERNAL and "location" in told:
            found[PurePosixPath(told["location"]).as_posix()] = None
    return list(found)


def _tensors(message: Any) -> Iterator[Any]:
    """Return all tensors inside a message, wherever they are."""
    import onnx

    left = [message]
    while left:
        message = left.pop()
        if isinstance(message, onnx.TensorProto):
            yield message
            continue
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                left += [value] if hasattr(value, "ListFields") else value
