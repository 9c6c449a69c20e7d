"""Options of ONNX Runtime's sessions that its class keeps to itself: a session of a small model with these options shows them.

ONNX Runtime has no list of the free dimensions that were overridden, and none of the tensors that were put in place of others.
A session of one ``Identity`` takes less than a millisecond, and needs no package but ONNX Runtime's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from collage._errors import ToolchainError, UsageError

__all__ = ["check_adapters", "overridden"]

_FLOAT = 1
_INPUT, _OUTPUT = "collage_probe", "collage_probed"
_lock = threading.Lock()


def overridden(options: Any, dims: Sequence[tuple[str, str]]) -> list[int | None]:
    """Return the lengths that free dimensions have with these options, None for those that stay free.

    Args:
        options: An ``onnxruntime.SessionOptions``.
        dims: Names and denotations of the free dimensions of a model, either of which may be empty.

    Raises:
        ToolchainError: Loading is cancelled.
        UsageError: The options put tensors in the place of weights.
    """
    import onnxruntime as ort

    # A dimension without a name would not come back as text.
    named = [(name or f"collage_dim_{i}", denotation) for i, (name, denotation) in enumerate(dims)]
    with _alone(options):
        try:
            session = ort.InferenceSession(
                _model(named), options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except Exception as error:
            said = " ".join(str(error).split())[-200:]
            if "CANCEL" in str(error):
                raise ToolchainError(
                    "the session was not made: SessionOptions.set_load_cancellation_flag is set"
                ) from None
            if "initializer" not in str(error):
                raise UsageError(f"ONNX Runtime cannot make a session with these SessionOptions: {said}") from None
            raise UsageError(
                "SessionOptions.add_external_initializers is not supported; write the weights into the model, as "
                f"onnx.external_data_helper.load_external_data_for_model does ({said})"
            ) from None
    shape = session.get_inputs()[0].shape
    return [dim if isinstance(dim, int) else None for dim in shape]


def check_adapters(options: Any) -> None:
    """Refuse adapters that were added to the options of a run.

    Raises:
        UsageError: There are some.
    """
    import numpy as np

    try:
        _plain_session().run(None, {_INPUT: np.zeros(1, np.float32)}, options)
    except Exception as error:
        raise UsageError(
            "RunOptions.add_active_adapter is not supported; the parameters of an adapter are inputs of the model, "
            f"so give them to run. ({' '.join(str(error).split())[-200:]})"
        ) from None


@cache
def _plain_session() -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(_model([("n", "")]), options, providers=["CPUExecutionProvider"])


@contextmanager
def _alone(options: Any) -> Iterator[None]:
    """Have a session made with options write no file, and need no threads of the process's."""
    own = {"enable_profiling": False, "use_per_session_threads": True}
    with _lock:
        were = {name: getattr(options, name) for name in own}
        try:
            for name, value in own.items():
                setattr(options, name, value)
            yield
        finally:
            for name, value in were.items():
                setattr(options, name, value)


def _model(dims: Sequence[tuple[str, str]]) -> bytes:
    """Return a file of one ``Identity`` whose input has these dimensions. The package ``onnx`` may not be there."""
    shape = b"".join(_field(1, _field(2, name) + (_field(3, kind) if kind else b"")) for name, kind in dims)
    taken = _field(1, _INPUT) + _field(2, _field(1, _number(1, _FLOAT) + _field(2, shape)))
    given = _field(1, _OUTPUT) + _field(2, _field(1, _number(1, _FLOAT)))
    node = _field(1, _INPUT) + _field(2, _OUTPUT) + _field(4, "Identity")
    graph = _field(1, node) + _field(2, "probe") + _field(11, taken) + _field(12, given)
    return _number(1, 8) + _field(7, graph) + _field(8, _number(2, 13))


def _field(number: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
