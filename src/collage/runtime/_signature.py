"""Inputs and outputs of an executable: names, types and shapes, and the check of a caller's inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401  registers bfloat16 and its kin with NumPy
import numpy as np

from collage._errors import InputError, ToolchainError
from collage._expressions import evaluate, symbols_of
from collage.runtime._tensors import as_numpy, as_torch, is_torch
from collage.system.codec import RARE

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.frontend import Classes

__all__ = ["Port", "Signature", "as_maps", "output_ports", "targets_of"]

_ndarray = np.ndarray
_MOST_KNOWN = 256
"""Combinations of inputs' shapes that are remembered to fit."""

Restore = Callable[[Any], Any]
"""Turns an output into the kind of tensor that the caller passed."""


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output.

    Attributes:
        name: Its name in the model.
        dtype: NumPy or ml_dtypes name, ``string`` for text, None if the value is not a tensor (sequence, optional).
        shape: One entry per axis: a length, a symbol, or None if unknown. None as a whole if the rank is unknown.
        kind: Its type if it is not a tensor, such as ``seq(tensor(float))``.
        default: The tensor that is used for an input that is not given, as text. None if the input must be given.
        classes: The keys of an output that is a list of maps. Kernels make a tensor, whose last axis has a number for each key.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None
    kind: str | None = field(default=None, metadata=RARE)
    default: str | None = field(default=None, metadata=RARE)
    classes: tuple[str, ...] | tuple[int, ...] = field(default=(), metadata=RARE)

    def __post_init__(self) -> None:
        _numpy_dtype(self.dtype)

    def __str__(self) -> str:
        if self.kind is not None:
            return f"{self.name}: {self.kind}"
        axes = "?" if self.shape is None else ", ".join("?" if axis is None else str(axis) for axis in self.shape)
        return f"{self.name}: {self.dtype or 'any'}[{axes}]{'' if self.default is None else ' (optional)'}"

    @classmethod
    def of(cls, value: ir.Value) -> Port:
        """Describe a value of a model."""
        import onnx_ir as ir  # late: running compiled kernels does not need it

        from collage.frontend import default_text, kind_of

        name, dtype = str(value.name), value.dtype
        if dtype is None or (kind := kind_of(value)) is not None:
            return cls(name, None, None, None if dtype is None else kind)
        axes: tuple[int | str | None, ...] | None = None
        if value.shape is not None:
            axes = tuple(axis if isinstance(axis, int) else axis.value for axis in value.shape)
        kind_of_element = "string" if dtype == ir.DataType.STRING else dtype.numpy().name
        return cls(name, kind_of_element, axes, None, default_text(value))


def output_ports(model: ir.Model) -> tuple[Port, ...]:
    """Describe the outputs of a model, those that are lists of maps as such.

    Raises:
        ModelError: The metadata of the model are damaged.
    """
    from collage.frontend import classes_of

    classes, ports = classes_of(model), map(Port.of, model.graph.outputs)
    return tuple(
        Port(port.name, None, None, _kind_of_maps(classes[port.name]), classes=classes[port.name])
        if port.name in classes
        else port
        for port in ports
    )


def _kind_of_maps(classes: Classes) -> str:
    return f"seq(map({'string' if isinstance(classes[0], str) else 'int64'},tensor(float)))"


def as_maps(port: Port, tensor: Any) -> list[dict[str | int, float]]:
    """Return the maps of an output: for each row of a tensor, its numbers by class.

    Raises:
        ToolchainError: The tensor has another number of columns than there are classes.
    """
    rows = np.atleast_2d(as_numpy(tensor))
    if rows.shape[1:] != (len(port.classes),):
        raise ToolchainError(
            f"output {port.name!r} has {len(port.classes)} classes, and its tensor the shape {list(np.shape(tensor))}"
        )
    # ONNX Runtime sorts the keys of maps, and callers take the values alone.
    order = sorted(range(len(port.classes)), key=port.classes.__getitem__)
    keys = [port.classes[place] for place in order]
    return [dict(zip(keys, row, strict=True)) for row in rows[:, order].tolist()]


Bound = tuple[list[Any], Restore | None, bool]
"""A bound call: row-major tensors in the model's order, the conversion of outputs, and True for unchecked empty inputs.

Outputs are converted if an input was a tensor of PyTorch; else the conversion is None. Inputs are unchecked and empty if
an open length is 0 and kernels were not checked at 0. It is not a named tuple, since making one takes as long as
checking an input.
"""


class Signature:
    """The inputs of an executable, with the conversion of a caller's values to tensors for its kernels.

    Args:
        inputs: The model's inputs, in its order.
        empty: Dimensions that may be 0 as any other length; see ``Recipe``.
    """

    def __init__(self, inputs: Sequence[Port], empty: Sequence[str] = ()) -> None:
        self.inputs = tuple(inputs)
        self._may_be_empty = frozenset(empty)
        self._names = tuple(port.name for port in inputs)
        self._expected = tuple((port.name, _numpy_dtype(port.dtype), port) for port in inputs)
        self._defaults = {port.name: _default(port) for port in inputs if port.default is not None}
        self._required = tuple(name for name in self._names if name not in self._defaults)
        self._known: dict[tuple[Any, ...], bool] = {}

    def bind(self, feeds: Mapping[str, Any] | Sequence[Any]) -> Bound:
        """Orders and checks inputs.

        Args:
            feeds: Tensors by name, or in the model's order. Inputs with a default may be absent.

        Raises:
            InputError: A name, type or shape does not fit; the message says which and what was expected.
        """
        if type(feeds) is not dict and not isinstance(feeds, Mapping):
            feeds = self._by_name(feeds)
        restore: Restore | None = None
        bound, shapes = [], []
        absent = 0
        for name, dtype, port in self._expected:
            try:
                value = feeds[name]
            except KeyError:
                if name not in self._defaults:
                    raise InputError(self._names_message(feeds)) from None
                absent += 1
                value = self._defaults[name]
            # The usual call, in as few steps as can be: an array of the right type, laid out as kernels want it.
            if type(value) is _ndarray and value.dtype == dtype and value.flags.c_contiguous:
                shapes.append(value.shape)
            else:
                if is_torch(value):
                    restore = as_torch
                value = _as_tensor(port, dtype, value)
                shapes.append(getattr(value, "shape", None))
            bound.append(value)
        if len(feeds) + absent != len(bound):
            raise InputError(self._names_message(feeds))
        # Callers mostly come with shapes that they came with before; to check these takes longer than all else here.
        key = tuple(shapes)
        is_empty = self._known.get(key)
        return bound, restore, self._check_shapes(key) if is_empty is None else is_empty

    def _check_shapes(self, shapes: tuple[Any, ...]) -> bool:
        """Return if a dimension is 0 that kernels were not checked at; raises InputError where shapes do not fit."""
        symbols: dict[str, int] = {}
        for port, shape in zip(self.inputs, shapes, strict=True):
            if port.dtype is not None:
                _check_shape(port, shape, symbols)
        self._check_expressions(symbols)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[shapes] = is_empty = any(not n and name not in self._may_be_empty for name, n in symbols.items())
        return is_empty

    def _check_expressions(self, symbols: Mapping[str, int]) -> None:
        """Check dimensions that the model states as expressions of others: shapes are computed with these."""
        for port in self.inputs:
            for axis, dim in enumerate(port.shape or ()):
                if not isinstance(dim, str) or not symbols.keys() >= {dim, *symbols_of(dim)}:
                    continue
                if (wanted := evaluate(dim, symbols.__getitem__)) not in (None, symbols[dim]):
                    told = ", ".join(f"{name}={symbols[name]}" for name in symbols_of(dim))
                    raise InputError(
                        f"input {port.name!r} has length {symbols[dim]} along axis {axis}, but the model takes {port}, "
                        f"which is {wanted} where {told}; if it may have another one, "
                        f"compile with --dim '{port.name}[{axis}]={symbols[dim]}'"
                    )

    def _by_name(self, feeds: Sequence[Any]) -> Mapping[str, Any]:
        if isinstance(feeds, np.ndarray) or not isinstance(feeds, Sequence):
            raise InputError(
                "inputs are a mapping from names to tensors, or a sequence of tensors in the model's order"
            )
        for names in (self._names, self._required):
            if len(feeds) == len(names):
                return dict(zip(names, feeds, strict=True))
        raise InputError(f"{len(feeds)} inputs given, but the model has {len(self._names)}: {self}")

    def _names_message(self, feeds: Mapping[str, Any]) -> str:
        missing = [name for name in self._required if name not in feeds]
        unknown = [str(name) for name in feeds if name not in self._names]
        parts = [f"missing input {', '.join(map(repr, missing))}"] if missing else []
        parts += [f"unknown input {', '.join(map(repr, unknown))}"] if unknown else []
        return f"{' and '.join(parts)}; the model takes {self}"

    def __str__(self) -> str:
        return "; ".join(map(str, self.inputs)) or "no inputs"


def targets_of(outputs: Sequence[Port], out: Mapping[str, Any]) -> list[np.ndarray[Any, Any] | None]:
    """Return for each output the caller's array to write to, or None.

    Raises:
        InputError: A name, a type or a rank does not fit, memory cannot be written to, or two outputs would share it.
    """
    if not isinstance(out, Mapping):
        raise InputError(f"out: arrays by name are expected, not {type(out).__name__}")
    if unknown := [name for name in out if name not in {port.name for port in outputs}]:
        known = ", ".join(port.name for port in outputs)
        raise InputError(f"out: there is no output {str(unknown[0])!r}; the model has {known}")
    targets = [None if port.name not in out else _target(port, out[port.name]) for port in outputs]
    given = [target for target in targets if target is not None]
    for position, target in enumerate(given):
        if any(np.may_share_memory(target, other) for other in given[:position]):
            raise InputError("out: two outputs cannot be written to the same memory")
    return targets


def _target(port: Port, value: Any) -> np.ndarray[Any, Any]:
    is_tensor = is_torch(value)
    if not isinstance(value, np.ndarray) and not is_tensor:
        raise InputError(f"out: output {port.name!r} is written to arrays of NumPy and tensors of PyTorch only")
    if is_tensor and not value.is_contiguous():
        raise InputError(f"out: the tensor for output {port.name!r} is not contiguous")
    try:
        array = value if not is_tensor else as_numpy(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"out: output {port.name!r}: {error}") from None
    dtype = _numpy_dtype(port.dtype)
    if dtype is None or array.dtype != dtype:
        raise InputError(f"out: output {port.name!r} is {port.dtype or port.kind}, and its array is {array.dtype}")
    if not array.flags.writeable:
        raise InputError(f"out: the array for output {port.name!r} is read-only")
    lengths = port.shape or ()
    fits = port.shape is None or len(lengths) == array.ndim
    for given, wanted in zip(array.shape, lengths, strict=False):
        fits = fits and (not isinstance(wanted, int) or given == wanted)
    if not fits:
        raise InputError(f"out: output {port} does not fit into an array of shape {list(array.shape)}")
    return array


def _default(port: Port) -> np.ndarray[Any, Any]:
    from collage.frontend import decode_default

    return decode_default(str(port.default))


def _numpy_dtype(name: str | None) -> np.dtype[Any] | None:
    if name is None:
        return None
    if not name.isidentifier():  # A list of types, or another expression that NumPy parses.
        raise ValueError(f"{name[:40]!r} is not an element type")
    return np.dtype(object) if name == "string" else np.dtype(name)


def _as_tensor(port: Port, dtype: np.dtype[Any] | None, value: Any) -> Any:
    if dtype is None:
        return value
    try:
        array = as_numpy(value)
        if array.dtype.kind == "S" and dtype.kind == "O":
            # As objects they would be taken for other objects, of which runtimes take the printed form.
            array = np.char.decode(array, "utf-8")
    except (ValueError, TypeError, RuntimeError, BufferError) as error:
        raise InputError(f"input {port.name!r} is not a usable tensor: {error}") from None
    if dtype.kind == "O" and array.dtype.kind in "UTO":
        array = array.astype(object)
    elif isinstance(value, int | float | bool | list | tuple) and array.dtype != dtype and array.dtype.kind in "biuf":
        # Python numbers have no element type of their own; they take the model's where nothing is lost.
        with np.errstate(invalid="ignore", over="ignore"):
            cast = array.astype(dtype)
            is_same = np.array_equal(cast.astype(array.dtype), array, equal_nan=True)
        if is_same:
            array = cast
    if array.dtype != dtype:
        raise InputError(f"input {port.name!r} is {array.dtype}, but the model takes {port}; convert it first")
    return array


def _check_shape(port: Port, shape: tuple[int, ...], symbols: dict[str, int]) -> None:
    if port.shape is None:
        return
    fits, remedy = len(shape) == len(port.shape), ""
    for axis, (given, wanted) in enumerate(zip(shape, port.shape, strict=False)):
        if isinstance(wanted, int):
            fits = fits and given == wanted
        elif symbols.setdefault(wanted or f"{port.name}[{axis}]", given) != given:
            fits, place = False, f"{port.name}[{axis}]"
            remedy = f"; if it may have another {wanted} than other inputs, compile with --dim '{place}={given}'"
    if not fits:
        where = f" where {', '.join(f'{k}={v}' for k, v in symbols.items())}" if symbols else ""
        raise InputError(f"input {port.name!r} has shape {list(shape)}, but the model takes {port}{where}{remedy}")
