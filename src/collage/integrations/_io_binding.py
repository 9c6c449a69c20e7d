"""ONNX Runtime's values and bindings, over memory that both sides share."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from collage.integrations._session_errors import input_error
from collage.runtime import Port
from collage.toolchains.onnxruntime.toolchain import from_ort, narrow_type, to_ort

__all__ = ["IOBinding", "array_of", "value_of"]


class IOBinding:
    """Inputs and outputs of a session that stay bound from run to run, as ONNX Runtime's class of this name has them.

    Args:
        session: The session that makes it.
    """

    def __init__(self, session: Any) -> None:
        self.session = session
        self._ports = {port.name: port for port in session.executable.inputs}
        self._outputs = {port.name: port for port in session.executable.outputs}
        self.feeds: dict[str, Any] = {}
        self.out: dict[str, Any] = {}
        self.wanted: list[str] = []
        self._made: dict[str, Any] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input to an array. Its values are read by each run."""
        self._check(name, self._ports, "input")
        self.feeds[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an input to an ``OrtValue`` on the CPU, whose memory is shared."""
        self._check(name, self._ports, "input")
        self.feeds[name] = array_of(ortvalue)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind an input to memory at an address, which the caller keeps."""
        self._check(name, self._ports, "input")
        self.feeds[name] = _at(buffer_ptr, element_type, shape, device_type)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to memory at an address, or to memory that each run makes."""
        self._check(name, self._outputs, "output")
        _check_device(device_type)
        if buffer_ptr is None:
            self._want(name, None)
        elif element_type is None or shape is None:
            raise input_error("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        else:
            self._want(name, _at(buffer_ptr, element_type, shape, device_type))

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Bind an output to an ``OrtValue`` on the CPU, which each run overwrites."""
        self._check(name, self._outputs, "output")
        self._want(name, array_of(ortvalue))

    def synchronize_inputs(self) -> None:
        """Do nothing: inputs on the CPU need no synchronisation."""

    def synchronize_outputs(self) -> None:
        """Do nothing: outputs on the CPU need no synchronisation."""

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the last run as ``OrtValue``s that share their memory, in the order of binding."""
        return [value_of(self._made[name], self._outputs[name]) for name in self.wanted if name in self._made]

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return copies of the outputs of the last run as arrays, in the order of binding."""
        made = [self._made[name] for name in self.wanted if name in self._made]
        return [np.array(value) if isinstance(value, np.ndarray) else value for value in made]

    def clear_binding_inputs(self) -> None:
        """Unbind all inputs."""
        self.feeds.clear()

    def clear_binding_outputs(self) -> None:
        """Unbind all outputs."""
        self.out.clear()
        self.wanted.clear()
        self._made.clear()

    def keep(self, outputs: dict[str, Any]) -> None:
        """Take the outputs of a run."""
        self._made = outputs

    def _want(self, name: str, array: Any) -> None:
        if name not in self.wanted:
            self.wanted.append(name)
        self.out.pop(name, None)
        if array is not None:
            self.out[name] = array

    def _check(self, name: str, ports: dict[str, Port], kind: str) -> None:
        if name not in ports:
            raise input_error(f"unknown {kind} {name!r}; the model has {', '.join(ports)}")


def array_of(value: Any) -> Any:
    """Return a tensor of ONNX Runtime as an array over the same memory; texts and types that NumPy lacks are copied.

    Args:
        value: An ``OrtValue``, or the C object inside one.

    Raises:
        InputError: It lies on another device.
    """
    inner = getattr(value, "_ortvalue", value)
    _check_device(inner.device_name())
    if not inner.is_tensor():
        raise input_error("an OrtValue that is not a tensor cannot be passed on; pass lists and dictionaries to run()")
    kind = inner.data_type()
    if kind == "tensor(string)":
        return inner.numpy()
    if (narrow := narrow_type(kind)) is not None:
        return from_ort(inner, narrow)
    dtype = {"tensor(float)": "float32", "tensor(double)": "float64"}.get(kind) or kind[len("tensor(") : -1]
    return _memory(inner.data_ptr(), np.dtype(dtype), inner.shape(), value)


def value_of(value: Any, port: Port) -> Any:
    """Return an output as an ``OrtValue`` that shares its memory, or a copy of texts and of types that NumPy lacks."""
    import onnxruntime

    if not isinstance(value, np.ndarray):
        raise input_error(f"output {port} is not a tensor, and cannot be an OrtValue; use run()")
    if value.dtype.hasobject or value.dtype.isbuiltin != 1:
        return onnxruntime.OrtValue(to_ort(value, narrow_type(_kind(value))))
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(value, order="C"))


def _kind(value: Any) -> str:
    return "tensor(string)" if value.dtype.hasobject else f"tensor({value.dtype.name.replace('_', '')})"


def _at(address: int, element_type: Any, shape: Sequence[int], device_type: str) -> Any:
    _check_device(device_type)
    try:
        if isinstance(element_type, int):
            import onnx

            element_type = onnx.helper.tensor_dtype_to_np_dtype(element_type)
        dtype = np.dtype(element_type)
    except (TypeError, KeyError):
        dtype = np.dtype(object)
    if dtype.kind in "OSU":
        raise input_error(f"{element_type!r} is not an element type of memory that can be bound")
    if any(length < 0 for length in shape) or (not address and 0 not in shape):
        raise input_error(f"there is no memory of the shape {list(shape)} at the address {address}")
    return _memory(address, dtype, shape, None)


def _memory(address: int, dtype: np.dtype[Any], shape: Sequence[int], owner: Any) -> Any:
    """Return an array over memory, which keeps the owner of it."""
    size_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not size_bytes:
        return np.empty(tuple(shape), dtype)
    block: Any = (ctypes.c_char * size_bytes).from_address(address)
    block._owner = owner
    return np.frombuffer(block, dtype).reshape(tuple(shape))


def _check_device(name: str) -> None:
    if name.lower() != "cpu":
        raise input_error(f"memory on {name} cannot be bound; collage's sessions run on the CPU. Copy it there first")
