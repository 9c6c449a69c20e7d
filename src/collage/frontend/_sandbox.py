"""ONNX's compiled functions, run in a child process with little memory and little time.

Shape inference believes the file: a length of 2^31 in a body becomes two thousand million dimensions of some fifty
bytes each. No list of such files would be complete, and a thread cannot be stopped. Real models take milliseconds and
megabytes, so a request that takes seconds is refused. The child is started when it is first needed, and serves this
process until it ends.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading

import onnx
import onnx.onnx_cpp2py_export

from collage._errors import ModelError
from collage.frontend import _sandbox_child as sandbox_child
from collage.frontend._nodes import bodies_of
from collage.frontend._sandbox_child import read_exactly, write_all

__all__ = ["convert_functions", "convert_version", "infer_shapes"]

_LONGEST_SHAPE = 2**17
_DYING_S = 5.0
"""A process that has closed its pipes ends at once, unless the machine is very busy."""

_ANSWER_BYTES = 2**24
_ANSWER_GROWTH = 8
"""Limits of an answer: bytes, and bytes per byte of the request. One byte of it may become fifty in this process."""


def infer_shapes(model: onnx.ModelProto, *, strict: bool = False) -> onnx.ModelProto:
    """``onnx.shape_inference.infer_shapes``, with the contents of shapes propagated where that is little.

    Inference propagates the contents of vectors element by element, at some fifty bytes each. No shape is as long
    as the vectors that make that much.

    Args:
        model: The model.
        strict: Fail if an operator's input has a type or shape that it does not take. Otherwise its results are left unknown.

    Raises:
        RuntimeError: It failed.
        ModelError: It takes more memory or time than any real model needs.
    """
    if strict:
        try:
            return _call("check", model, int(_longest_vector(model.graph) <= _LONGEST_SHAPE))
        except ModelError:
            return _call("check", model, 0)
    plain = _call("infer", model, 0)
    if _longest_vector(plain.graph) > _LONGEST_SHAPE:
        return plain
    try:
        return _call("infer", model, 1)
    except (ModelError, RuntimeError):
        return plain


def _longest_vector(graph: onnx.GraphProto) -> int:
    shapes = [value.type.tensor_type.shape.dim for value in (*graph.input, *graph.value_info)]
    lengths = [int(dims[0].dim_value) for dims in shapes if len(dims) == 1]
    return max([0, *lengths, *(_longest_vector(body) for node in graph.node for body in bodies_of(node))])


def convert_version(model: onnx.ModelProto, target_version: int) -> onnx.ModelProto:
    """``onnx.version_converter.convert_version``, which infers shapes too.

    Raises:
        RuntimeError: It failed.
        ModelError: It takes more memory or time than any real model needs.
    """
    return _call("convert", model, target_version)


def convert_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """``onnx.inliner.inline_local_functions`` with conversion to the model's operator sets.

    Raises:
        RuntimeError: It failed.
        ModelError: It takes more memory or time than any real model needs.
    """
    return _call("inline", model, 1)


def _call(operation: str, model: onnx.ModelProto, argument: int) -> onnx.ModelProto:
    request = model.SerializeToString()
    outcome, answer = _child.ask(f"{operation} {argument}", request, _ANSWER_BYTES + _ANSWER_GROWTH * len(request))
    if outcome == "failed":
        raise RuntimeError(answer.decode(errors="replace"))
    if outcome != "done":
        raise ModelError("has shapes that take more memory or time to work out than those of any real model")
    return onnx.ModelProto.FromString(answer)


class _Child:
    """The child process: started when first asked, and again after it died and in forks of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._stop)

    def ask(self, command: str, request: bytes, most_bytes: int) -> tuple[str, bytes]:
        """Return the outcome, and the result or the reason; ``exhausted`` if the child died, or if its answer is too long.

        If another process killed the child, as a system short of memory does, the request is made again.
        """
        with self._lock:
            answer = self._answer(command, request, most_bytes)
            if answer is None and self._was_killed():
                answer = self._answer(command, request, most_bytes)
            if answer is None:
                self._stop()
            return answer or ("exhausted", b"")

    def _answer(self, command: str, request: bytes, most_bytes: int) -> tuple[str, bytes] | None:
        """Return the outcome, and the result or the reason; None if the child died, or if its answer is too long."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            write_all(process.stdin, f"{command} {len(request)}\n".encode() + request)
            outcome, told = process.stdout.readline().decode().split()
            if (length := int(told)) > most_bytes:
                self._stop()
                return None
            result = read_exactly(process.stdout, length)
            return (outcome, result) if len(result) == length else None
        except (OSError, ValueError):
            return None  # It died, and with it the pipe, or after half a line.
        except BaseException:
            self._stop()  # What it answers to this request would be taken for the answer to the next one.
            raise

    def _was_killed(self) -> bool:
        """Return True if a signal killed the child that does not come from its own limits."""
        if self._process is None:
            return False
        try:
            return self._process.wait(_DYING_S) == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            return False

    def _start(self) -> subprocess.Popen[bytes]:
        # The child's last output is C++'s message about memory, which helps no user.
        command = [sys.executable, "-I", "-S", sandbox_child.__file__, onnx.onnx_cpp2py_export.__file__]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _forget(self) -> None:
        self._process = None
        self._lock = threading.Lock()


_child = _Child()
