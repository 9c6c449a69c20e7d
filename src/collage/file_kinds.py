"""Kinds of files that are not models in ONNX, by their first bytes, and what to do with each."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_address", "other_kind", "torch_file_reason", "way_out"]

_HEAD_BYTES = 512

# The first bytes of each kind, its name, and the way to a model in ONNX.
_KINDS: tuple[tuple[bytes, int, str, str], ...] = (
    (b"version https://git-lfs", 0, "a pointer of git-lfs, not the file itself", "git lfs pull"),
    (b"\x1f\x8b", 0, "compressed with gzip", "gunzip it first"),
    (b"BZh", 0, "compressed with bzip2", "bunzip2 it first"),
    (b"\xfd7zXZ", 0, "compressed with xz", "unxz it first"),
    (b"\x28\xb5\x2f\xfd", 0, "compressed with zstd", "unzstd it first"),
    (b"TFL3", 4, "a model of TensorFlow Lite", "convert it with tf2onnx: python -m tf2onnx.convert --tflite"),
    (b"\x89HDF", 0, "a file of HDF5, as Keras writes", "convert it with tf2onnx"),
    (
        b"\x80\x02",
        0,
        "objects of Python, as PyTorch saves them",
        "export the network from PyTorch with torch.onnx.export",
    ),
    (b"GGUF", 0, "weights in GGUF", "export the network from PyTorch with torch.onnx.export"),
    (b"\x89PNG", 0, "a picture", "give the model, and pictures with --data"),
    (b"\xff\xd8\xff", 0, "a picture", "give the model, and pictures with --data"),
    (b"<?xml", 0, "XML, as OpenVINO's own format is", "give the ONNX file that it was converted from"),
)
_WEIGHTS = "weights in safetensors, without the network", "export the network from PyTorch with torch.onnx.export"
_PAGE = "a page in HTML, not the file itself", "download the file behind it: on GitHub the one named raw"
_ARCHIVE = "an archive", "unpack it first"


def is_address(path: object) -> bool:
    """Return True if a path is an address on the network, also one that ``Path`` has taken a slash from."""
    return str(path).startswith(("http:/", "https:/", "s3:/", "gs:/", "hf:/"))


def other_kind(head: bytes) -> tuple[str, str] | None:
    """Return the kind of a file that is not a model in ONNX and the way out; None if its first bytes do not tell."""
    for magic, place, kind, out in _KINDS:
        if head[place : place + len(magic)] == magic:
            return kind, out
    start = head.lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return _PAGE
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < 1 << 32:
        return _WEIGHTS
    if start.startswith(b"{"):
        return "JSON", "give the ONNX file"
    if head.startswith(b"PK\x03\x04") and b".npy" not in head:
        return _ARCHIVE
    return None


def torch_file_reason(path: Path) -> str | None:
    """Return advice for a file of PyTorch's, by the end of its name; None for any other file."""
    if path.suffix == ".pt2":
        # Loading one unpickles objects, evaluates expressions and looks up functions by name.
        return (
            "is a program of torch.export, and loading it can run code that is in it; "
            f"if you trust the file, write collage.compile(torch.export.load({str(path)!r}))"
        )
    if path.suffix in (".pt", ".pth", ".ckpt"):
        return (
            "is a PyTorch file, not an ONNX model; make the module in Python and write "
            "collage.compile(module, example_inputs=...), or convert it with torch.onnx.export"
        )
    return None


def way_out(path: str | os.PathLike[str]) -> tuple[str, str] | None:
    """Return the same as ``other_kind`` for a file; None for one that cannot be read, or is a pipe or a device."""
    try:
        if not Path(path).is_file():
            return None
        with Path(path).open("rb") as file:
            return other_kind(file.read(_HEAD_BYTES))
    except OSError:
        return None
