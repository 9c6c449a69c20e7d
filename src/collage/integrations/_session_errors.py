"""Errors of sessions that handlers of ONNX Runtime's errors catch too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from collage._errors import ArtefactError, CollageError, InputError, ModelError, ToolchainError, UsageError

__all__ = ["input_error", "like_onnxruntime"]

# The names of ONNX Runtime's classes for each of Collage's, the more special ones first.
_NAMES: tuple[tuple[type[CollageError], tuple[str, ...]], ...] = (
    (InputError, ("InvalidArgument",)),
    (UsageError, ("InvalidArgument",)),
    (ModelError, ("InvalidGraph", "Fail")),
    (ArtefactError, ("InvalidProtobuf", "Fail")),
    (ToolchainError, ("RuntimeException", "Fail")),
)


@contextmanager
def like_onnxruntime() -> Iterator[None]:
    """Raise errors of Collage as classes that are ONNX Runtime's too, where it can be imported.

    An error for a wrong input or option is a ``ValueError`` as well.
    """
    try:
        yield
    except CollageError as error:
        kind = _both(type(error))
        made = kind.__new__(kind, *error.args)
        made.args = error.args
        made.__dict__.update(error.__dict__)
        raise made.with_traceback(error.__traceback__) from error.__cause__


def input_error(message: str) -> CollageError:
    """Return an error for a wrong input, as ``like_onnxruntime`` raises it."""
    return _both(InputError)(message)


_made: dict[type[CollageError], type[CollageError]] = {}


def _both(kind: type[CollageError]) -> type[CollageError]:
    """Return a class of this kind and of ONNX Runtime's kinds, the same one each time."""
    if kind not in _made:
        _made[kind] = _make_both(kind)
    return _made[kind]


def _make_both(kind: type[CollageError]) -> type[CollageError]:
    try:
        from onnxruntime.capi import onnxruntime_pybind11_state as theirs
    except ImportError:
        theirs = None
    names = next((names for own, names in _NAMES if issubclass(kind, own)), ("Fail",))
    bases: list[type] = [getattr(theirs, name) for name in names if hasattr(theirs, name)]
    if issubclass(kind, UsageError):
        bases.append(ValueError)
    return type(kind.__name__, (kind, *bases), {"__module__": kind.__module__, "__doc__": kind.__doc__})
