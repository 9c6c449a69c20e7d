"""Free lengths of images as multiples of a number, in networks that take no others.

A network that halves an image five times, doubles it again and joins the two takes multiples of 32 alone: with 33 rows the
joined sides differ. TVM cannot know, and loses all lengths where they meet. With a length written as ``32 * n`` it proves that
they are equal. A kernel of such code is given ``n`` beside the image, and leaves other lengths to the host.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from tvm import relax, tirx

from collage._errors import Unsupported
from collage.toolchains.tvm.free_lengths import may_be_cut
from collage.toolchains.tvm.importer import KernelImporter
from collage.toolchains.tvm.length_numbers import has_lengths

__all__ = ["import_in_multiples", "multiples_of"]

_LARGEST = 64
"""Networks halve images five times, rarely six."""

_OF_IMAGES = 2
"""The first axis of an image that may be a multiple: before it are samples and channels."""

_ATTRIBUTE = "multiples"
_NO_INPUT = "numbers of multiples"
"""A key beside the names of inputs, which are identifiers."""


def import_in_multiples(proto: onnx.ModelProto) -> Any:
    """A Relax module of an ONNX model, whose images have sides that are multiples of a power of 2 if it needs that.

    It has the least power with which all lengths are known, at least by name; none if that is so without one, or with none.
    """
    names = _sides(proto.graph)
    if not names:
        return KernelImporter().read(proto)
    whole = _Multiples({})
    try:
        made = whole.read(proto)
    except Exception as error:
        made, failure = None, error
    if made is not None and not whole.loses_lengths:
        return made
    step, best = _LARGEST, None
    while step > 1 and (found := _in_steps(proto, names, step)) is not None:
        step, best = step // 2, found
    if best is not None:
        return best
    if made is None:
        raise failure
    return made


def multiples_of(module: Any) -> list[list[int]]:
    """Return the sides that a module takes multiples of: the number of an input, an axis, and what it must be a multiple of."""
    text = (module["main"].attrs or {}).get(_ATTRIBUTE)
    return [] if text is None else list(json.loads(str(text)))


def _sides(graph: onnx.GraphProto) -> set[str]:
    """Return the names of free lengths that are sides of images, and nothing else."""
    sides, others = set[str](), set[str]()
    for port in graph.input:
        for axis, length in enumerate(port.type.tensor_type.shape.dim):
            (sides if axis >= _OF_IMAGES else others).add(length.dim_param)
    return sides - others - {""}


def _in_steps(proto: onnx.ModelProto, names: set[str], step: int) -> Any | None:
    importer = _Multiples(dict.fromkeys(names, step))
    try:
        made = importer.read(proto)
    except Exception:
        return None
    return None if importer.loses_lengths else made


class _Multiples(KernelImporter):
    """An importer of networks with sides that are multiples.

    Args:
        steps: The number that each of these lengths is a multiple of.

    Attributes:
        loses_lengths: True if a tensor has lengths that are not known, not even by name, though those it is made of have, or
            operands have lengths that are not known to agree.
    """

    def __init__(self, steps: Mapping[str, int]) -> None:
        super().__init__()
        self._steps = steps
        self._multiples: list[list[int]] = []
        self.loses_lengths = False

    def read(self, proto: onnx.ModelProto) -> Any:
        """A Relax module of an ONNX model."""
        module = super().read(proto)
        if self._multiples:
            module["main"] = module["main"].with_attr(_ATTRIBUTE, json.dumps(self._multiples))
        return module

    def _parse_graph_input(self, graph: onnx.GraphProto) -> None:
        if self._steps:
            counts = self._in_multiples(graph)
            super()._parse_graph_input(graph)
            self._inputs[_NO_INPUT] = relax.Var(_ATTRIBUTE, relax.ShapeType(counts))
        else:
            super()._parse_graph_input(graph)

    def _in_multiples(self, graph: onnx.GraphProto) -> Sequence[Any]:
        """Set the shapes of all inputs. Return the numbers that a caller gives in place of the sides."""
        known: dict[str, Any] = {}
        counts = []
        for i, port in enumerate(port for port in graph.input if port.name not in self._nodes):
            shape: list[Any] = []
            for axis, length in enumerate(port.type.tensor_type.shape.dim):
                name = length.dim_param
                if name and name not in known:
                    known[name] = tirx.Var(name, "int64")
                    if name in self._steps:
                        self._multiples.append([i, axis, self._steps[name]])
                        counts.append(known[name])
                shape.append(known[name] * self._steps.get(name, 1) if name else length.dim_value)
            self._shape[port.name] = shape
        return counts

    def _with_common_lengths(self, op_name: str, inputs: list[Any]) -> list[Any]:
        made = super()._with_common_lengths(op_name, inputs)
        if any(x is not y and not may_be_cut(x) for x, y in zip(inputs, made, strict=True)):
            self._lose(op_name)
        return made

    def _lose(self, op_name: str) -> None:
        self.loses_lengths = True
        if self._steps:
            raise Unsupported(f"tvm does not know the lengths of {op_name}")

    def _convert_operator(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:
        made = super()._convert_operator(op_name, inputs, attrs, opset)
        tensors = [x for x in inputs if isinstance(getattr(x, "ty", None), relax.TensorType)]
        is_tensor = isinstance(getattr(made, "ty", None), relax.TensorType)
        if is_tensor and not has_lengths(made) and all(map(has_lengths, tensors)):
            self._lose(op_name)
        return made
