"""Builder of the standard form of a contributed operator: the nodes so far, and facts about the operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["Body", "Definition", "Facts", "Undefined"]

Facts = Callable[[str], "tuple[int, Sequence[int | None] | None]"]
"""Element type of a value, 0 if it is not known, and its lengths, None if the rank is not known."""


class Undefined(Exception):
    """A node is of a form that is not written out here."""


class Body:
    """The nodes of a definition, as they are written."""

    def __init__(self, node: onnx.NodeProto, version: int, facts: Facts, exact: bool, assuming: bool) -> None:
        self.version = version
        self.exact = exact
        self.assuming = assuming
        self.nodes: list[onnx.NodeProto] = []
        self._attributes: Mapping[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self._inputs: list[str] = list(node.input)
        self._outputs: list[str] = list(node.output)
        self._facts = facts
        self._like = 0
        self._prefix = next(name for name in node.output if name)

    def __call__(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output."""
        return self.several(1, op_type, *inputs, **attributes)[0]

    def several(self, count: int, op_type: str, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node of several outputs."""
        name = f"{self._prefix}.{op_type}.{len(self.nodes)}"
        outputs = [f"{name}.{i}" for i in range(count)]
        self.nodes.append(helper.make_node(op_type, list(inputs), outputs, name, **attributes))
        return outputs

    @property
    def count(self) -> int:
        """Number of inputs, with those that are left out."""
        return len(self._inputs)

    def has(self, index: int) -> bool:
        """Return True if an input is given."""
        return index < len(self._inputs) and bool(self._inputs[index])

    def wants(self, index: int) -> bool:
        """Return True if an output is wanted."""
        return index < len(self._outputs) and bool(self._outputs[index])

    def input(self, index: int) -> str:
        """The name of an input that must be given."""
        if not self.has(index):
            raise Undefined
        return self._inputs[index]

    def get(self, name: str, default: Any) -> Any:
        """An attribute; texts are decoded."""
        value = self._attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def need(self, known: bool) -> None:
        """Give up where something is not known, or not written out here, and the outputs' values count."""
        if self.exact and not known:
            raise Undefined

    def attributes(self, *left_out: str) -> dict[str, Any]:
        """All attributes but some."""
        return {name: value for name, value in self._attributes.items() if name not in left_out}

    def is_vector(self, index: int) -> bool:
        """Return True if an input holds several elements along one axis, as scales by channel do."""
        shape = self._facts(self.input(index))[1]
        self.need(shape is not None and len(shape) <= 1)
        return bool(shape) and shape != [1]

    def kind(self, index: int) -> int:
        """Element type of an input, 0 if it is not known."""
        return self._facts(self.input(index))[0]

    def rank(self, index: int) -> int | None:
        """Return the rank of an input, None if it is not known."""
        shape = self._facts(self.input(index))[1]
        return None if shape is None else len(shape)

    def length(self, index: int, axis: int) -> int:
        """Return the length of an input along an axis; -1 if it is not known and need not be."""
        shape = self._facts(self.input(index))[1]
        length = None if shape is None or len(shape) <= axis else shape[axis]
        self.need(length is not None)
        return -1 if length is None else length

    def is_one(self, index: int, axis: int) -> bool:
        """Return True if an input is known to be of length 1 along an axis."""
        shape = self._facts(self.input(index))[1]
        return shape is not None and len(shape) > axis and shape[axis] == 1

    def compute_in(self, index: int) -> None:
        """Has numbers in the type of another input than the first."""
        self._like = index

    def integers(self, *values: int) -> str:
        """A vector of int64."""
        return self._constant(np.array(values, np.int64))

    def integer(self, value: int) -> str:
        """A scalar of int64."""
        return self._constant(np.array(value, np.int64))

    def integer_of_32_bits(self, value: int) -> str:
        """A scalar of int32."""
        return self._constant(np.array(value, np.int32))

    def number(self, value: float) -> str:
        """A scalar of the type that is computed in, the first input's unless told otherwise."""
        if kind := self.kind(self._like):
            return self._constant(np.array(value, helper.tensor_dtype_to_np_dtype(kind)))
        return self.as_computed(self._constant(np.array(value, np.float32)))

    def least(self) -> str:
        """A scalar: the least finite number of the type that is computed in."""
        dtype = helper.tensor_dtype_to_np_dtype(self.kind(self._like) or onnx.TensorProto.FLOAT)
        return self.number(float(np.finfo(dtype).min))

    def as_computed(self, x: str) -> str:
        """A value in the type that is computed in."""
        like = self.input(self._like)
        return self("Cast", x, to=kind) if (kind := self.kind(self._like)) else self("CastLike", x, like)

    def _constant(self, array: np.ndarray[Any, Any]) -> str:
        return self("Constant", value=numpy_helper.from_array(array))

    def mean(self, x: str) -> str:
        """Along the last axis, which stays."""
        if self.version >= 18:
            return self("ReduceMean", x, self.integers(-1), keepdims=1)
        return self("ReduceMean", x, axes=[-1], keepdims=1)

    def counted(self, length: str) -> str:
        """0, 1, ... up to a length, a scalar."""
        return self("Range", self.integer(0), length, self.integer(1))

    def length_of(self, x: str, axis: int) -> str:
        """The length of a value along an axis, a scalar that is known when the model runs."""
        return self("Gather", self("Shape", x), self.integer(axis))

    def sliced(self, x: str, axis: int, start: int, end: int) -> str:
        """A part of a value along an axis."""
        return self("Slice", x, self.integers(start), self.integers(end), self.integers(axis))


Definition = Callable[[Body], Sequence[str]]
"""Writes the nodes of an operator; returns the names of its outputs, empty for those that it does not make."""
