"""One ONNX operator, in the form that the lowering functions use."""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from collage.toolchains import Unsupported
from collage.toolchains.sdk.model_files import elem_type
from collage_ncnn.layers import Blob, Network, Parameter

if TYPE_CHECKING:
    import onnx_ir as ir

    from collage.toolchains import Tensor

__all__ = ["Lowering", "Operator", "shape_in_ncnn", "shape_of"]

_MOST_HELD = 1 << 20
"""Largest constant, in elements, that may be used where ncnn copies it in each run."""


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Return a value's shape in ONNX.

    Raises:
        Unsupported: A length is not known.
    """
    lengths = None if value.shape is None else tuple(value.shape)
    if lengths is None or not all(isinstance(length, int) for length in lengths):
        raise Unsupported(f"ncnn is given kernels of fixed shapes only ({value.name!r})")
    return tuple(int(length) for length in lengths)  # type: ignore[arg-type]  # Checked above.


def shape_in_ncnn(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape as ncnn holds it by default: without a batch of one, and of one dimension at least."""
    if not shape:
        return (1,)
    return tuple(shape[1:] if len(shape) > 1 and shape[0] == 1 else shape)


class Operator:
    """A node, the network that it becomes layers of, and the blobs that there are.

    Attributes:
        node: The node.
        network: The network.
    """

    def __init__(self, node: ir.Node, network: Network, blobs: MutableMapping[ir.Value, Blob]) -> None:
        self.node = node
        self.network = network
        self._blobs = blobs

    @property
    def kind(self) -> str:
        """Name of the operator."""
        return self.node.op_type

    def refuse(self, reason: str) -> Unsupported:
        """Return the refusal of this operator."""
        return Unsupported(f"ncnn: {self.kind} {reason}")

    def has(self, i: int) -> bool:
        """Return True if there is an input of this number."""
        return i < len(self.node.inputs) and self.node.inputs[i] is not None

    def value(self, i: int) -> ir.Value:
        """Return an input."""
        value = self.node.inputs[i] if i < len(self.node.inputs) else None
        if value is None:
            raise self.refuse(f"lacks input {i}")
        return value

    def shape(self, i: int = 0) -> tuple[int, ...]:
        """Return an input's shape."""
        return shape_of(self.value(i))

    def out_shape(self, i: int = 0) -> tuple[int, ...]:
        """Return an output's shape."""
        return shape_of(self.node.outputs[i])

    def constant(self, i: int) -> Tensor | None:
        """Return the array of an input, None if it is not a constant or not there."""
        tensor = self.value(i).const_value if self.has(i) else None
        return None if tensor is None else tensor.numpy()

    def weight(self, i: int, what: str) -> Tensor:
        """Return the array of an input that must be a constant of finite float32 numbers."""
        array = self.constant(i)
        if array is None:
            raise self.refuse(f"needs constant {what}")
        if array.dtype != np.float32:
            raise self.refuse(f"needs {what} of float32")
        if not np.isfinite(array).all():
            raise self.refuse(f"has {what} that are not finite")
        return array

    def integers(self, i: int, what: str) -> list[int] | None:
        """Return an input that lists integers, None if it is not there."""
        if not self.has(i):
            return None
        array = self.constant(i)
        if array is None or array.dtype.kind not in "iu":
            raise self.refuse(f"needs constant {what}")
        return [int(x) for x in array.reshape(-1)]

    def read(self, i: int = 0, shape: Sequence[int] | None = None) -> Blob:
        """Return an input as a blob of a shape, by default as ncnn holds it."""
        value = self.value(i)
        wanted = shape_in_ncnn(self.shape(i)) if shape is None else tuple(shape)
        if value.const_value is not None:
            array = self.weight(i, "operands")
            if array.size > _MOST_HELD:
                raise self.refuse(f"has a constant operand of {array.size} elements, which ncnn copies in each run")
            return self.network.constant(array, wanted)
        return self.network.reshaped(self.as_it_is(i), wanted)

    def as_it_is(self, i: int = 0) -> Blob:
        """Return an input in the shape of its blob, which has the same number of elements."""
        value = self.value(i)
        blob = self._blobs.get(value)
        if blob is None:
            raise self.refuse(f"reads {value.name!r}, which is not a tensor of float32")
        return blob

    def add(
        self,
        kind: str,
        inputs: Sequence[Blob],
        shape: Sequence[int],
        parameters: dict[int, Parameter] | None = None,
        weights: Sequence[Tensor] = (),
        tagged: int = 0,
    ) -> Blob:
        """Add a layer of one output to the network."""
        return self.network.add(kind, inputs, shape, parameters, weights, tagged)

    def axis(self, default: int, rank: int) -> int:
        """Return the attribute ``axis`` counted from the front."""
        axis = self.whole("axis", default)
        if not -rank <= axis < rank:
            raise self.refuse(f"has axis {axis} of {rank} dimensions")
        return axis % rank

    def whole(self, name: str, default: int) -> int:
        """Return an attribute."""
        found = self.node.attributes.get_int(name)
        return default if found is None else int(found)

    def wholes(self, name: str) -> list[int]:
        """Return an attribute, an empty list if it is not there."""
        return [int(x) for x in self.node.attributes.get_ints(name) or ()]

    def number(self, name: str, default: float) -> float:
        """Return an attribute, which must be finite."""
        found = self.node.attributes.get_float(name)
        value = default if found is None else float(found)
        if not math.isfinite(value):
            raise self.refuse(f"has {name} {value}")
        return value

    def text(self, name: str, default: str) -> str:
        """Return an attribute."""
        found = self.node.attributes.get_string(name)
        return default if found is None else str(found)

    def one_result(self) -> None:
        """Refuse outputs after the first."""
        if any(value.name and (value.uses() or value.is_graph_output()) for value in self.node.outputs[1:]):
            raise self.refuse("has only its first output")

    def refuse_types(self) -> None:
        """Refuse results of other types than float32."""
        for value in self.node.outputs:
            dtype = elem_type(value)
            if dtype is None and value.name:
                raise self.refuse(f"has a result {value.name!r} of unknown type")
            if dtype is not None and dtype.name != "FLOAT":
                raise self.refuse(f"is not computed in {dtype.name.lower()}")


Lowering = Callable[[Operator], Sequence[Blob]]
"""Adds an operator's layers, and returns the blobs of its outputs."""
