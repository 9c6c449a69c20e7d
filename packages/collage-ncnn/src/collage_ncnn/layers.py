"""Layers of an ncnn network, and its two files: a text of layers, and the bytes of their weights.

A tensor of ncnn has one to four dimensions and no batch. A value of ONNX whose first length is 1 is held without it. Every blob
is read by one layer, so that a ``Split`` stands where several read a value.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from collage.toolchains import Unsupported

if TYPE_CHECKING:
    from collage.toolchains import Tensor

__all__ = ["Blob", "Layer", "Network", "fused", "param_text", "weight_bytes", "with_copies", "with_splits"]

Number = int | float
Parameter = Number | Sequence[Number]

_MAGIC = 7767517
_LARGEST = 2**31 - 1
"""The library counts bytes and elements in 32 bits."""
_FLOAT32_TAG = np.zeros(1, "<u4").tobytes()
"""A word before a weight. Zero means float32."""

_OWN_MEMORY = frozenset(
    (
        "BinaryOp",
        "Concat",
        "Convolution",
        "Convolution1D",
        "ConvolutionDepthWise",
        "ConvolutionDepthWise1D",
        "DeepCopy",
        "Deconvolution",
        "Deconvolution1D",
        "DeconvolutionDepthWise",
        "DeconvolutionDepthWise1D",
        "Gemm",
        "InnerProduct",
    )
)
"""Layers whose result never shares the memory of an operand, and that do not write over it."""

_FUSES = frozenset(kind for kind in _OWN_MEMORY if kind.startswith(("Conv", "Deconv")))
"""Layers that can apply an activation to their result."""


@dataclass(frozen=True)
class Blob:
    """A tensor of a network.

    Attributes:
        name: A name that ncnn reads: letters and digits.
        shape: One to four lengths, the last one of neighbours in memory.
    """

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """One line of the text.

    Attributes:
        kind: A type of layer that ncnn has.
        inputs: Names of blobs.
        outputs: Names of blobs.
        parameters: Values by number. Those that equal ncnn's defaults may be missing.
        weights: Arrays in the order in which the layer reads them.
        tagged: Number of weights, the first ones, that begin with a word for their type.
    """

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: Mapping[int, Parameter] = field(default_factory=dict)
    weights: tuple[Tensor, ...] = ()
    tagged: int = 0


class Network:
    """A network in the making.

    Attributes:
        layers: Layers in an order in which each comes after those that it reads.
    """

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self._count = 0

    def given(self, shape: Sequence[int]) -> Blob:
        """Add an input."""
        blob = self._blob(shape)
        self.layers.append(Layer("Input", (), (blob.name,), _lengths(blob.shape)))
        return blob

    def constant(self, x: Tensor, shape: Sequence[int]) -> Blob:
        """Add a constant tensor."""
        blob = self._blob(shape)
        weight = np.ascontiguousarray(x, np.float32).reshape(blob.shape)
        self.layers.append(Layer("MemoryData", (), (blob.name,), {**_lengths(blob.shape), 21: 1}, (weight,)))
        return blob

    def add(
        self,
        kind: str,
        inputs: Sequence[Blob],
        shape: Sequence[int],
        parameters: Mapping[int, Parameter] | None = None,
        weights: Iterable[Tensor] = (),
        tagged: int = 0,
    ) -> Blob:
        """Add a layer of one output."""
        (blob,) = self.split(kind, inputs, [shape], parameters, weights, tagged)
        return blob

    def split(
        self,
        kind: str,
        inputs: Sequence[Blob],
        shapes: Sequence[Sequence[int]],
        parameters: Mapping[int, Parameter] | None = None,
        weights: Iterable[Tensor] = (),
        tagged: int = 0,
    ) -> list[Blob]:
        """Add a layer of several outputs."""
        blobs = [self._blob(shape) for shape in shapes]
        names = tuple(blob.name for blob in inputs), tuple(blob.name for blob in blobs)
        held = tuple(np.ascontiguousarray(weight, np.float32) for weight in weights)
        self.layers.append(Layer(kind, *names, dict(parameters or {}), held, tagged))
        return blobs

    def reshaped(self, blob: Blob, shape: Sequence[int]) -> Blob:
        """Return a blob with the same elements in another shape, by a layer if the shape is another."""
        if blob.shape == tuple(shape):
            return blob
        return self.add("Reshape", [blob], shape, _lengths(tuple(shape)))

    def _blob(self, shape: Sequence[int]) -> Blob:
        lengths = tuple(int(length) for length in shape)
        if not 1 <= len(lengths) <= 4:
            raise Unsupported(f"ncnn has tensors of one to four dimensions beside the batch, not {list(lengths)}")
        if min(lengths) < 1:
            raise Unsupported(f"ncnn has no tensors without elements ({list(lengths)})")
        # Channels are padded to 16 bytes, and four of them may lie together.
        if 4 * (math.prod(lengths) + 16 * lengths[0]) > _LARGEST:
            raise Unsupported(f"ncnn counts bytes in 32 bits, too few for {list(lengths)}")
        self._count += 1
        return Blob(f"b{self._count}", lengths)


def _lengths(shape: tuple[int, ...]) -> dict[int, Parameter]:
    """Return a shape as parameters of ``Input``, ``MemoryData`` and ``Reshape``."""
    numbers = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}[len(shape)]
    return dict(zip(numbers, shape, strict=True))


def fused(layers: Sequence[Layer], outputs: Iterable[str]) -> list[Layer]:
    """Fuse layers that ncnn has as one: an activation with the layer before it, and a product with a gate of the same value.

    Args:
        layers: Layers in order.
        outputs: Names of the network's output blobs.
    """
    for join in (_gated, _activated):
        layers = join(layers, Counter([*(name for layer in layers for name in layer.inputs), *outputs]))
    return [part for layer in layers for part in (_softplus(layer) if layer.kind == "Softplus" else (layer,))]


def _softplus(layer: Layer) -> tuple[Layer, ...]:
    """Write ``softplus(x)`` as ``relu(x) + softplus(-|x|)``. The exponential inside ncnn's is infinite from 89 on."""
    (x,), (y,) = layer.inputs, layer.outputs
    size, turned, low, high = (f"{y}{part}" for part in ("size", "turned", "low", "high"))
    return (
        Layer("UnaryOp", (x,), (size,), {0: 0}),
        Layer("UnaryOp", (size,), (turned,), {0: 1}),
        Layer("Softplus", (turned,), (low,)),
        Layer("ReLU", (x,), (high,)),
        Layer("BinaryOp", (low, high), (y,), {0: 0}),
    )


def _gated(layers: Sequence[Layer], uses: Mapping[str, int]) -> list[Layer]:
    """Join ``x * sigmoid(x)``, ``x * hardsigmoid(x)`` and ``x * tanh(softplus(x))``."""
    makers = {layer.outputs[0]: layer for layer in layers if len(layer.outputs) == 1}
    gone: set[str] = set()
    joined: dict[str, Layer] = {}
    for layer in layers:
        if layer.kind != "BinaryOp" or layer.parameters.get(0) != 2 or len(layer.inputs) != 2:
            continue
        for x, gate in (layer.inputs, layer.inputs[::-1]):
            found = _gate(makers, uses, gate)
            if found is not None and found[0] == x:
                _, kind, parameters, inner = found
                joined[layer.outputs[0]] = Layer(kind, (x,), layer.outputs, parameters)
                gone |= {gate, *inner}
                break
    return [joined.get(each.outputs[0], each) for each in layers if not gone.intersection(each.outputs)]


def _gate(
    makers: Mapping[str, Layer], uses: Mapping[str, int], gate: str
) -> tuple[str, str, Mapping[int, Parameter], tuple[str, ...]] | None:
    """Return the operand of a gate, the kind and parameters of the fused layer, and the blobs inside it."""
    maker = makers.get(gate)
    if maker is None or uses[gate] != 1 or len(maker.inputs) != 1:
        return None
    (x,) = maker.inputs
    if maker.kind == "Sigmoid":
        return x, "Swish", {}, ()
    if maker.kind == "HardSigmoid":
        return x, "HardSwish", maker.parameters, ()
    before = makers.get(x)
    if maker.kind == "TanH" and before is not None and before.kind == "Softplus" and uses[x] == 1:
        return before.inputs[0], "Mish", {}, (x,)
    return None


def _activated(layers: Sequence[Layer], uses: Mapping[str, int]) -> list[Layer]:
    """Join convolutions with the activation that alone reads them."""
    result: list[Layer] = []
    place: dict[str, int] = {}
    for layer in layers:
        code = _activation(layer)
        at = place.get(layer.inputs[0]) if layer.inputs else None
        if code is not None and at is not None and uses[layer.inputs[0]] == 1:
            before = result[at]
            number, values = code
            parameters = {**before.parameters, 9: number, **({10: values} if values else {})}
            result[at] = replace(before, outputs=layer.outputs, parameters=parameters)
            continue
        if layer.kind in _FUSES:
            place[layer.outputs[0]] = len(result)
        result.append(layer)
    return result


def _activation(layer: Layer) -> tuple[int, tuple[Number, ...]] | None:
    """Return the number of an activation within a convolution, with its parameters."""
    numbers = [layer.parameters.get(i) for i in (0, 1)]
    values = tuple(value for value in numbers if isinstance(value, int | float))
    match layer.kind:
        case "ReLU":
            return (2, values) if values and values[0] else (1, ())
        case "Clip" if len(values) == 2:
            return 3, values
        case "Sigmoid":
            return 4, ()
        case "Mish":
            return 5, ()
        case "HardSwish":
            return 6, values
    return None


def with_copies(layers: Sequence[Layer]) -> list[Layer]:
    """Copy inputs for layers that could write over them or return their memory, which belongs to the caller."""
    given = {layer.outputs[0] for layer in layers if layer.kind == "Input"}
    result: list[Layer] = []
    copied: dict[str, str] = {}
    for layer in layers:
        # Arithmetic with a number, unlike that of two tensors, is done in place.
        if layer.kind not in _OWN_MEMORY or (layer.kind == "BinaryOp" and len(layer.inputs) == 1):
            for name in given.intersection(layer.inputs) - copied.keys():
                copied[name] = f"{name}copy"
                result.append(Layer("DeepCopy", (name,), (copied[name],)))
            layer = replace(layer, inputs=tuple(copied.get(name, name) for name in layer.inputs))
        result.append(layer)
    return result


def with_splits(layers: Sequence[Layer], outputs: Sequence[str]) -> tuple[list[Layer], list[str]]:
    """Give every reader of a blob a blob of its own.

    Args:
        layers: Layers in order. Outputs that are not read are dropped, if a layer has no other.
        outputs: Names of the network's output blobs, each as often as it is an output.

    Returns:
        The layers, and the names under which the outputs are found.
    """
    layers = _needed(layers, outputs)
    uses = Counter([*(name for layer in layers for name in layer.inputs), *outputs])
    parts = {name: iter([f"{name}s{i}" for i in range(count)] if count > 1 else [name]) for name, count in uses.items()}
    result: list[Layer] = []
    for layer in layers:
        result.append(replace(layer, inputs=tuple(next(parts[name]) for name in layer.inputs)))
        for name in layer.outputs:
            if (count := uses[name]) > 1:
                result.append(Layer("Split", (name,), tuple(f"{name}s{i}" for i in range(count))))
    return result, [next(parts[name]) for name in outputs]


def _needed(layers: Sequence[Layer], outputs: Iterable[str]) -> list[Layer]:
    wanted = set(outputs)
    kept: list[Layer] = []
    for layer in reversed(layers):
        if wanted.intersection(layer.outputs):
            wanted.update(layer.inputs)
            kept.append(layer)
    return kept[::-1]


def param_text(layers: Sequence[Layer]) -> str:
    """Return the text of a network's layers."""
    lines = [str(_MAGIC), f"{len(layers)} {sum(len(layer.outputs) for layer in layers)}"]
    for index, layer in enumerate(layers):
        counts = f"{len(layer.inputs)} {len(layer.outputs)}"
        values = (_parameter(number, value) for number, value in sorted(layer.parameters.items()))
        lines.append(" ".join((layer.kind, f"l{index}", counts, *layer.inputs, *layer.outputs, *values)))
    return "\n".join(lines) + "\n"


def weight_bytes(layers: Iterable[Layer]) -> Iterator[bytes]:
    """Yield the bytes of a network's weights, in the order of its layers."""
    for layer in layers:
        for index, weight in enumerate(layer.weights):
            if index < layer.tagged:
                yield _FLOAT32_TAG
            yield weight.astype("<f4", copy=False).tobytes()


def _parameter(number: int, value: Parameter) -> str:
    if isinstance(value, int | float):
        return f"{number}={_number(value)}"
    return ",".join((f"{-23300 - number}={len(value)}", *map(_number, value)))


def _number(value: Number) -> str:
    """Return a number as ncnn reads it: at most 15 characters, with at most nine digits behind the point."""
    if isinstance(value, int):
        if abs(value) > _LARGEST:
            raise Unsupported(f"ncnn reads integers of 32 bits, not {value}")
        return str(value)
    if not math.isfinite(value):
        raise Unsupported(f"ncnn cannot read a parameter of value {value}")
    return f"{np.float32(value):.8e}"
